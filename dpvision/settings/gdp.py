"""Gaussian differential privacy: one-number summaries mu, and the central limit theorem, which is only approximate.

The central limit theorem (Dong, Roth, Su; Bu et al.) is not a bound: at rate 16/50000, T = 50000 and a claimed epsilon
of 1, the true epsilon is 1.42. It is shown next to the bound, labelled "approximate", and is never relied upon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from dpvision.core import accountant
from dpvision.core.adaptive import find_least, gaussian_delta
from dpvision.core.events import Event, exposures, split_kind


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return an upper bound on the epsilon of mu-GDP at `delta`."""
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    return find_least(lambda epsilon: gaussian_delta(mu, epsilon) <= delta, start=1.0)


def mu_of_point(epsilon: float, delta: float) -> float:
    """Return the least mu, rounded up, such that mu-GDP implies no better guarantee than (epsilon, delta)."""
    return find_least(lambda mu: gaussian_delta(mu, epsilon) >= delta, start=1.0)


def mu_of_curve(profile: Callable[[Sequence[float]], Iterable[float]], top: float) -> float:
    """Return the least mu whose curve lies on or above the given profile for every epsilon up to `top`.

    It is a sound one-number summary: whatever mu-GDP implies at those epsilons holds. The profile is decreasing, so
    between two grid points it is bounded by its value at the left one.
    """
    if not 0 < top < math.inf:
        return 0.0 if top <= 0 else math.inf
    grid = [top * i / 1024 for i in range(1025)]
    points = list(zip(grid[1:], (float(d) for d in profile(grid)), strict=False))
    return find_least(lambda mu: all(gaussian_delta(mu, e) >= d for e, d in reversed(points)), start=1.0, rounds=16)


def mu(event: Event, delta: float) -> float:
    """Return the least mu such that mu-GDP bounds the whole profile from delta up: a sound one-number summary."""
    return mu_of_curve(lambda epsilons: accountant.profile(event, epsilons).tolist(), accountant.epsilon(event, delta))


def central_limit_mu(event: Event) -> float:
    """Return sqrt(sum of T q^2 (e^(1/sigma^2) - 1)), an approximation; at rate 1, it is exact: sqrt(sum of T)/sigma."""

    def squared(rate: float, sigma: float, steps: int) -> float:
        if rate == 1.0:
            return steps / sigma**2
        return steps * rate**2 * math.expm1(sigma**-2) if sigma > 0.04 else math.inf

    kinds = [split_kind(kind) for kind in exposures(event)]
    if any(points for _, points in kinds):  # not defined for hyperparameter tuning
        return math.inf
    return max((math.sqrt(sum(squared(*x) for x in steps)) for steps, _ in kinds), default=0.0)


def central_limit_sigma(mu: float, *, rate: float, steps: int) -> float:
    """Return the sigma whose central_limit_mu is `mu`: an approximation, used as a first guess."""
    if rate == 1.0:
        return math.sqrt(steps) / mu
    return math.log1p((mu / rate) ** 2 / steps) ** -0.5
