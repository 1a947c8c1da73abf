"""Sums of the records that were drawn, exactly: values lie on a grid, and are added up so that nothing is rounded.

    on the grid      each value cut towards 0 to a multiple of 2^-bits, so a row gets no longer
    most             2^(24 - bits) values of size 1 at most add up exactly in float32, PIECE of them at most; more are
                     added up in pieces of so many, and the pieces in float64
    with weights     of size 1 at most and multiples of 2^-WEIGHT_BITS: products and their sums are exact in float64

Formal guarantee: a sum is exact, whatever the order and however many records are drawn (up to 2^29 times `most`; with
weights up to 2^9 times `most`, 131,072 where the degree is 64 or more): one record more moves it by that record's own
row times its weight, to the last bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpvision.core.sampling import RowMembers

# Steps of a weight in [0, 1], as a power of two.
WEIGHT_BITS = 20
# Records at a time, so that what is worked on stays in the cache.
PIECE = 256


class Grid(NamedTuple):
    """(N, d) values on a grid; sums of `most` of them are exact in float32."""

    x: NDArray[np.float32]
    most: int


def on_grid(*parts: tuple[NDArray[np.float32], float], degree: float) -> Grid:
    """Values of size 1 at most, each part times its scale of 1 at most, side by side.

    `degree` is how many rows are usually added up.
    """
    bits = 24 - math.ceil(math.log2(min(4 * max(degree, 1.0), PIECE)))
    out = np.empty((len(parts[0][0]), sum(x.shape[1] for x, _ in parts)), dtype=np.float32)
    left = 0
    for x, scale in parts:
        here = out[:, left : left + x.shape[1]]
        np.multiply(x, np.float32(scale * 2.0**bits), out=here)
        left += x.shape[1]
    np.trunc(out, out=out)
    out *= np.float32(2.0**-bits)
    return Grid(out, 2 ** (24 - bits))


def summed(grid: Grid, chosen: RowMembers, weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """(rows, d) sums of the chosen records, each times its weight: one for each of `chosen.members`."""
    out = np.zeros((len(chosen.starts) - 1, grid.x.shape[1]))
    size = grid.most
    room = np.empty((size, grid.x.shape[1]), dtype=np.float32)
    for row, total in enumerate(out):
        for start in range(chosen.starts[row], chosen.starts[row + 1], size):
            piece = slice(start, min(start + size, chosen.starts[row + 1]))
            x = room[: piece.stop - start]
            np.take(grid.x, chosen.members[piece], axis=0, out=x, mode="clip")  # all are there; "raise" would copy
            total += x.sum(axis=0) if weights is None else np.einsum("i,id->d", weights[piece], x)
    return out
