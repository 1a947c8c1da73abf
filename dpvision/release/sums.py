"""Sums of the records that were drawn, exactly: values lie on a grid that float32 adds without rounding.

    x on the grid    each value cut towards 0 to a multiple of 2^-bits, so a row gets no longer
    bits             so many that sums of 4 * degree values of size 1 still fit float32's 24 bits

Formal guarantee: while a row has at most 4 * degree records (more are drawn with a probability below e^(-1.5 degree)),
its sum is exact, whatever the order: a record more moves it by that record's own row, to the last bit. Beyond, float32
rounds, by less than noise.ARITHMETIC_SLACK of a record's bound.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dpvision.release.sampling import Chosen


def on_grid(x: NDArray[np.float32], *, degree: float, scale: float = 1.0) -> Tensor:
    """(N, d) values of size 1 at most, times `scale` of 1 at most, ready to be added up."""
    bits = 24 - math.ceil(math.log2(4 * max(degree, 1.0)))
    out = np.multiply(x, np.float32(scale * 2.0**bits))
    np.trunc(out, out=out)
    out *= np.float32(2.0**-bits)
    return torch.from_numpy(out)


def summed(x: Tensor, chosen: Chosen) -> Tensor:
    """(rows, d) sums of the chosen records."""
    rows = len(chosen.starts) - 1
    if not len(chosen.members):
        return torch.zeros(rows, x.shape[1])
    members, starts = torch.from_numpy(chosen.members), torch.from_numpy(chosen.starts)
    return F.embedding_bag(members, x, starts, mode="sum", include_last_offset=True)
