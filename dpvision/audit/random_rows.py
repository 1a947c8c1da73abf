"""The account of a record that meets a random number of releases: the curve of delta, averaged over that number.

Hierarchical sampling with its class coins drawn in secret: a record of class k meets R ~ Binomial(rows, chance)
releases, in each by its own coin of probability `rate`. The coins are the same in both worlds, so with them released

    delta(epsilon) = sum over r of P[R = r] delta_r(epsilon),    delta_r that of PoissonGaussian(rate, sigma, r)

and not more without them (docs/hierarchical-sampling.md). delta_r grows with r: fewer releases are part of more. So R
is rounded up to one of a few numbers, and beyond the last of them everything counts as lost: never too little.
It is delta that may be averaged, at one epsilon; an average of epsilons would mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dpvision.core import accountant
from dpvision.core.events import Budget, Event, PoissonGaussian
from dpvision.settings import calibrate, quick

# R is rounded up to as many numbers: with 8 of them sigma is less than 1% above what all would need.
POINTS = 8
# The share of a budget's delta for an R above the last of them.
BEYOND = 1e-3
# Relative precision of sigma.
PRECISION = 1e-3


def delta(*, rate: float, sigma: float, rows: int, chance: float, epsilon: float, beyond: float = 1e-9) -> float:
    """The least delta at `epsilon` that this proves; `beyond` of it is for an R above the last number looked at."""
    return _delta(accountant.delta, rate, sigma, rows, chance, epsilon, beyond)


def sigma(budget: Budget, *, rate: float, rows: int, chance: float) -> float:
    """The least noise multiplier, to PRECISION and from above, with which the average stays within the budget.

    It is that of `delta` where `beyond` is BEYOND times the budget's delta.
    """

    def within(by: Callable[[Event, float], float], x: float) -> bool:
        return _delta(by, rate, x, rows, chance, budget.epsilon, BEYOND * budget.delta) <= budget.delta

    # The expected number of releases needs nearly as much noise; from there up until it holds, and halfway back.
    low = calibrate.sigma(budget, rate=rate, steps=max(1, math.floor(rows * chance)), confirm=False)
    high = low * 1.02
    while not within(quick.delta, high):
        low, high = high, high * 1.02
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if within(quick.delta, middle) else (middle, high)
    while not within(accountant.delta, high):  # dp-accounting has the last word
        high *= 1 + PRECISION
    return high


def _delta(
    by: Callable[[Event, float], float],
    rate: float,
    sigma: float,
    rows: int,
    chance: float,
    epsilon: float,
    beyond: float,
) -> float:
    counts = _points(rows, chance, beyond)
    weights = np.diff(binom.cdf(counts, rows, chance), prepend=0.0)  # that R rounds up to each
    deltas = [by(PoissonGaussian(rate, sigma, int(r)), epsilon) for r in counts]
    return min(1.0, float(weights @ deltas) + beyond)


def _points(rows: int, chance: float, beyond: float) -> NDArray[np.float64]:
    """Numbers of releases, ascending; R is above the last of them with a chance of at most `beyond`."""
    low, high = (float(f(x, rows, chance)) for f, x in ((binom.ppf, 0.05), (binom.isf, beyond)))
    return np.unique(np.ceil(np.linspace(low, high, POINTS)))
