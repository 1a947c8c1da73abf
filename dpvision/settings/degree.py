"""How many records to mix into a row: the degree with the least bias of a linear model (NeuroMixGDP, Theorem 3.2).

With m = nu n / sqrt(T), the central limit gives mu-GDP for the noise 1 / sqrt(ln(1 + mu^2 / nu^2)), and the theorem
bounds the error of least squares on T released rows by

    bias  ~  1 / sqrt(nu ln(1 + mu^2 / nu^2)),    so    nu* = argmax of nu ln(1 + mu^2 / nu^2),  m* = nu* n / sqrt(T)

(the remark after the theorem says argmin; there is none, and the bias is least at the maximum). With nu = t mu that is
mu t ln(1 + t^-2), so t* is one number for all: the root of ln(1 + t^-2) = 2 / (1 + t^2), and nu* = t* mu.

Everything here is a function of public numbers. mu is only where the degree comes from: it is the mu whose curve meets
the budget's epsilon at its delta, by a limit that is no bound. The noise at that degree is calibrated by a bound.
"""

from __future__ import annotations

import math

from dpvision.core.events import Budget
from dpvision.errors import ConfigError
from dpvision.settings import gdp

# t*: of nu* = t* mu. A number and not a search: plans are made without scipy, which takes long to load.
SHARE = 0.5049762122278388


def optimal_nu(mu: float) -> float:
    """nu* = argmax over nu of nu ln(1 + mu^2 / nu^2), which is 0.505 mu."""
    if not 0 < mu < math.inf:
        raise ConfigError(f"mu is {mu!r}: it must be a finite number above 0.")
    return SHARE * mu


def optimal_degree(n: int, rows: int, *, budget: Budget) -> float:
    """m* = nu* n / sqrt(rows), n at most; mu from the budget's epsilon and delta."""
    if n < 1 or rows < 1:
        raise ConfigError(f"n is {n:,} and there are {rows:,} rows: both must be 1 at least.")
    mu = gdp.mu_of_point(budget.epsilon, budget.delta)
    return min(optimal_nu(mu) * n / math.sqrt(rows), float(n))
