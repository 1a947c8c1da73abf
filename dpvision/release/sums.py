"""Sums of the records that were drawn, exactly: values lie on a grid, and are added up so that nothing is rounded.

    on the grid      each value cut towards 0 to a multiple of 2^-bits, so a row gets no longer
    most             2^(24 - bits) values of size 1 at most add up exactly in float32; more are added up in parts of so
                     many, and the parts in float64

Formal guarantee: a sum is exact, whatever the order and however many records are drawn (up to 2^29 times `most`): one
record more moves it by that record's own row, to the last bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dpvision.release.sampling import Chosen


class Grid(NamedTuple):
    """(N, d) values on a grid; sums of `most` of them are exact in float32."""

    x: Tensor
    most: int


def on_grid(x: NDArray[np.float32], *, degree: float, scale: float = 1.0) -> Grid:
    """Values of size 1 at most, times `scale` of 1 at most; `degree` is how many are usually added up."""
    bits = 24 - math.ceil(math.log2(4 * max(degree, 1.0)))
    out = np.multiply(x, np.float32(scale * 2.0**bits))
    np.trunc(out, out=out)
    out *= np.float32(2.0**-bits)
    return Grid(torch.from_numpy(out), 2 ** (24 - bits))


def summed(grid: Grid, chosen: Chosen) -> NDArray[np.float64]:
    """(rows, d) sums of the chosen records."""
    sizes = np.diff(chosen.starts)
    if not len(chosen.members):
        return np.zeros((len(sizes), grid.x.shape[1]))
    parts = np.maximum(1, -(-sizes // grid.most))
    first = np.cumsum(parts) - parts
    number = np.arange(parts.sum()) - np.repeat(first, parts)  # of the part, in its row
    starts = np.append(np.repeat(chosen.starts[:-1], parts) + number * grid.most, chosen.starts[-1])
    members = torch.from_numpy(chosen.members)
    sums = F.embedding_bag(members, grid.x, torch.from_numpy(starts), mode="sum", include_last_offset=True)
    return np.asarray(np.add.reduceat(sums.double().numpy(), first, axis=0))
