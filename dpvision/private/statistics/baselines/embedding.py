"""The mean embedding of each class, released once, and rows from a network that is fitted to it.

    released:  ( b sum_i phi(x_i) y_i^T,  c sum_i y_i ) + noise,    b^2 + c^2 = 1, y_i the class as 0 and 1

Formal guarantee: every phi(x) is cut to length at most 1 and y has length 1, so one row more moves the released vector
by at most sqrt(b^2 |phi|^2 |y|^2 + c^2 |y|^2) <= 1, the sensitivity. The event is Gaussian(sigma, 1). phi is drawn
from a public seed; how wide it looks is a public setting and not the median distance of private rows. Everything after
the noisy vector is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvision.core.rows import BoundedSum, Floats, Rows, lengths
from dpvision.errors import ConfigError

# (rows, d) -> (rows, D): a public function of each row alone, whose rows should have length at most 1.
Phi = Callable[[Tensor], Tensor]
# No class is taken to be smaller than this share of an even one: a noisy count may be near or below 0.
LEAST_OF_EVEN = 0.1


def embedded_sum(rows: Rows, phi: Phi, *, c: float) -> BoundedSum:
    """( b sum phi(x) y^T, c counts ) with b^2 + c^2 = 1; the counts are left out where c is 0."""
    b = math.sqrt(1 - c**2)
    sums: Floats | None = None
    counts = np.zeros(rows.classes)
    for x, y in [(np.zeros((1, rows.width)), np.zeros((1, rows.classes))), *rows.blocks()]:  # for no rows at all, too
        embedded = within_length_1(phi(torch.from_numpy(x)).numpy())
        sums = embedded.T @ y + (0.0 if sums is None else sums)
        counts += y.sum(axis=0)
    assert sums is not None
    return BoundedSum(np.concatenate([b * sums.reshape(-1), *([c * counts] if c else [])]), 1.0)


def within_length_1(embedded: Floats) -> Floats:
    """What is longer is shortened, and what is not finite is zero: the bound does not rest on what phi promises."""
    finite = np.isfinite(embedded).all(axis=1, keepdims=True)
    embedded = np.where(finite, embedded, 0.0)
    return embedded / np.maximum(1.0, lengths(embedded))


def by_class(noisy: Floats, *, classes: int, c: float, n: int) -> tuple[Floats, Floats]:
    """From the noisy vector: the (D, classes) sums over n, and the classes' shares of all rows."""
    b = math.sqrt(1 - c**2)
    size = len(noisy) - classes * (c > 0)
    return noisy[:size].reshape(-1, classes) / (b * n), shares(noisy[size:] / c if c else None, classes=classes, n=n)


def shares(counts: Floats | None, *, classes: int, n: int) -> Floats:
    """The classes' shares from their noisy counts; even where there are none."""
    if counts is None:
        return np.full(classes, 1.0 / classes)
    sound = np.maximum(counts, LEAST_OF_EVEN * n / classes)
    return sound / sound.sum()


def spread(count: int, shares: Floats) -> NDArray[np.int64]:
    """`count` classes in proportion to their shares, ascending."""
    places = (np.arange(count) + 0.5) / count
    return np.minimum(np.searchsorted(np.cumsum(shares), places), len(shares) - 1).astype(np.int64)


def counts_weight(*, balanced: bool, counts_share: float) -> float:
    """c: 0 where the classes are said to be even, for then no counts are asked for."""
    if not (isinstance(counts_share, int | float) and 0 < counts_share < 1):
        raise ConfigError(f"counts_share is {counts_share!r}: it must be between 0 and 1.")
    return 0.0 if balanced else math.sqrt(counts_share)
