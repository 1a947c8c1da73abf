"""Whether noise has the law that was charged: checks of draws, each returning what is wrong with them in words.

    of_draws      standard normal: Kolmogorov-Smirnov, mean, variance, kurtosis, tails, and no number again and again;
                  a million draws show 0.5% of sigma
    of_releases   releases of nothing, one row a step: the scale in every coordinate, none that follows another, no step
                  that repeats another's noise
    of_grid       every number a multiple of the grid's width, whatever the sum was
    of_keys       fresh keys that do not repeat: a seed of 17 bits shows in 2,000 of them

A sound mechanism fails each of the tests named in the code with a probability of about FALSE_ALARM.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpvision.core.keys import Key

Floats = NDArray[np.float64]

FALSE_ALARM = 1e-6


def of_draws(draws: Floats, *, scale: float = 1.0) -> list[str]:
    """What is wrong with independent draws that should be N(0, scale^2)."""
    x = np.asarray(draws, dtype=np.float64).reshape(-1) / scale
    n = x.size
    limit = float(stats.norm.isf(FALSE_ALARM / 2))
    far = np.sum(np.abs(x) > 4)
    due = n * 2 * stats.norm.sf(4)
    results = {
        "the law": stats.kstest(x, "norm").pvalue < FALSE_ALARM,
        "the mean": abs(x.mean()) * np.sqrt(n) > limit,
        "the variance": _unlikely_square_sum(float(x @ x), n, tests=1),
        "the kurtosis": abs(stats.kurtosis(x)) / np.sqrt(24 / n) > 1.2 * limit,  # it is normal for many draws only
        "the precision": n - len(np.unique(x)) > max(2, 1e-4 * n),
        "the tails": min(stats.poisson.sf(far - 1, due), stats.poisson.cdf(far, due)) < FALSE_ALARM / 2,
    }
    return [what for what, wrong in results.items() if wrong]


def of_releases(rows: Floats, *, scale: float) -> list[str]:
    """What is wrong with (steps, size) releases of a zero sum, of which each number should be N(0, scale^2)."""
    x = np.asarray(rows, dtype=np.float64) / scale
    steps, size = x.shape
    pairs = size * (size - 1) // 2
    results = []
    if len({row.tobytes() for row in x}) < steps:
        results.append("a step repeats another's noise")
    if any(_unlikely_square_sum(float(column @ column), steps, tests=size) for column in x.T):
        results.append("a coordinate's variance")
    if _unlikely_square_sum(float((x * x).sum()), x.size, tests=1):
        results.append("the variance")
    between = (x.T @ x)[np.triu_indices(size, 1)] / np.sqrt(steps)
    if pairs and np.abs(between).max() > 1.1 * stats.norm.isf(FALSE_ALARM / (2 * pairs)):  # products have longer tails
        results.append("a coordinate follows another")
    for lag in (1, 2, 7):
        along = (x[:-lag] * x[lag:]).sum(axis=0) / np.sqrt(steps - lag)
        if np.abs(along).max() > 1.1 * stats.norm.isf(FALSE_ALARM / (2 * size)):
            results.append(f"a step follows the one {lag} before")
    return results


def of_grid(numbers: Floats, *, grid: float) -> list[str]:
    """The low bits must say nothing."""
    places = np.asarray(numbers, dtype=np.float64) / grid
    return [] if np.array_equal(places, np.rint(places)) else ["not on the grid"]


def of_keys(fresh: Callable[[], Key] = Key.fresh, *, count: int = 2000) -> list[str]:
    """Keys that are made one after another: their streams must not meet."""
    first = {int(fresh().stream("noise", step=0).words(1)[0]) for _ in range(count)}
    return [] if len(first) == count else [f"{count - len(first)} of {count} keys were there before"]


def _unlikely_square_sum(squares: float, count: int, *, tests: int) -> bool:
    """Whether the sum of `count` squared standard normals is out of range, among `tests` - 1 others."""
    share = FALSE_ALARM / (2 * tests)
    return bool(stats.chi2.sf(squares, count) < share or stats.chi2.cdf(squares, count) < share)
