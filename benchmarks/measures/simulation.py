"""The error of least squares on released rows against the degree, simulated (NeuroMixGDP, Fig. 11 and Appendix J.1).

    x ~ N(0, S), S_ij = 0.3^|i - j|;    beta ~ N(0, I);    y = x beta + N(0, 1);    columns less their means
    C_x, C_y the longest row and response, so nothing is clipped;    lambda = 1
    X~ = M X + N(0, (C_x sigma_x / m)^2),    y~ = M y + N(0, (C_y sigma_y / m)^2),    M_ti = 1/m with probability m/n
    sigma_x = sigma_y = sqrt(2) / sqrt(ln(1 + mu^2 / nu^2)),    nu = m sqrt(T) / n

and the error is |beta~ - beta| / |beta|, its median over the runs. All degrees of a run share data, coins and noise, so
that the curve is smooth with few runs. The noise is that of the central limit, as the theorem's: not a release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError
from dpvision.settings.release import optimal_nu

Floats = NDArray[np.float64]

# From one nu of the grid to the next, and how far the grid reaches on each side of mu / 2.
STEP, REACH = math.sqrt(2), 6


@dataclass(frozen=True, eq=False)
class Curve:
    """Median errors over a grid of nu."""

    mu: float
    nus: Floats
    errors: Floats

    @property
    def best(self) -> float:
        return float(self.nus[self.errors.argmin()])

    @property
    def steps_off(self) -> int:
        """From the grid point next to nu* to the one with the least error."""
        nearest = np.abs(np.log(self.nus / optimal_nu(self.mu))).argmin()
        return abs(int(self.errors.argmin()) - int(nearest))


def grid(mu: float) -> Floats:
    """Powers of sqrt(2), those around mu / 2."""
    middle = round(math.log(mu / 2, STEP))
    return STEP ** np.arange(middle - REACH, middle + REACH + 1, dtype=np.float64)


def simulate(mu: float, *, n: int = 300, rows: int = 900, width: int = 5, runs: int = 20, seed: int = 0) -> Curve:
    """Medians over `runs` of the error at each nu of the grid; those whose degree would be n or more are left out."""
    if not 0 < mu < math.inf or min(n, rows, width, runs) < 1 or rows < width:
        raise ConfigError(f"mu {mu!r}, n {n}, {rows} rows, width {width}, {runs} runs: there is nothing to simulate.")
    nus = grid(mu)
    nus = nus[nus * n / math.sqrt(rows) < n]
    generators = np.random.default_rng(seed).spawn(runs)
    return Curve(mu, nus, np.median([_errors(mu, nus, n, rows, width, rng) for rng in generators], axis=0))


def _errors(mu: float, nus: Floats, n: int, rows: int, width: int, rng: np.random.Generator) -> list[float]:
    lags = np.abs(np.subtract.outer(np.arange(width), np.arange(width)))
    x = rng.normal(size=(n, width)) @ np.linalg.cholesky(0.3**lags).T
    beta = rng.normal(size=width)
    y = x @ beta + rng.normal(size=n)
    x, y = x - x.mean(0), y - y.mean()
    c_x, c_y = np.linalg.norm(x, axis=1).max(), np.abs(y).max()
    rng, noise_x, noise_y = rng.random((rows, n)), rng.normal(size=(rows, width)), rng.normal(size=rows)
    results = []
    for nu in nus:
        m, sigma = nu * n / math.sqrt(rows), math.sqrt(2 / math.log1p((mu / nu) ** 2))
        mixing = (rng < m / n) / m
        mixed_x, mixed_y = mixing @ x + noise_x * (c_x * sigma / m), mixing @ y + noise_y * (c_y * sigma / m)
        estimate = np.linalg.lstsq(mixed_x, mixed_y, rcond=None)[0]
        results.append(float(np.linalg.norm(estimate - beta) / np.linalg.norm(beta)))
    return results
