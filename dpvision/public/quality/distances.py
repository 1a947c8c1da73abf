"""Distances between all rows of two sets, a block of rows at a time, so that 50,000 by 50,000 fit into memory.

    |x - y|^2 = |x|^2 - 2 x'y + |y|^2    in float64, both sets moved by the same mean first, which keeps the terms small

What this formula can not tell from 0 is 0: rows that differ by less than about a millionth of their lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dpvision.errors import ConfigError

Progress = Callable[[int, int], None]

# Numbers of a block: 128 MB.
AT_ONCE = 1 << 24
# Share of |x|^2 + |y|^2 below which a squared distance is rounding.
FLOOR = 2.0**-42


def squared(x: Tensor, y: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Which rows of x, and their squared distances (rows, len(y)) to all rows of y."""
    require_rows(x, y)
    centre = y.mean(0, dtype=torch.float64)
    y = y.double() - centre
    of_y = y.square().sum(1)
    step = max(1, AT_ONCE // len(y))
    for start in range(0, len(x), step):
        rows = slice(start, min(start + step, len(x)))
        some = x[rows].double() - centre
        sizes = some.square().sum(1, keepdim=True) + of_y
        found = torch.addmm(sizes, some, y.T, alpha=-2.0)
        yield rows, found.masked_fill_(found <= FLOOR * sizes, 0.0)


def nearest(
    x: Tensor, y: Tensor | None = None, *, count: int, progress: Progress = lambda *_: None
) -> tuple[Tensor, Tensor]:
    """(len(x), count) squared distances to the nearest rows of y, the nearest first, and which rows they are.

    Without y: to the other rows of x, each row itself left out.
    """
    others = len(x) - 1 if y is None else len(y)
    if not 1 <= count <= others:
        raise ConfigError(f"{count} nearest neighbours can not be found among {others}. Fix: more images.")
    distances, places = [], []
    for rows, block in squared(x, x if y is None else y):
        if y is None:
            block[torch.arange(len(block)), torch.arange(rows.start, rows.stop)] = torch.inf
        found = block.topk(count, largest=False)
        distances.append(found.values)
        places.append(found.indices)
        progress(rows.stop, len(x))
    return torch.cat(distances), torch.cat(places)


def require_rows(*sets: Tensor) -> None:
    """Finite rows of one width."""
    for rows in sets:
        if rows.dim() != 2 or not rows.shape[0] or rows.shape[1] != sets[0].shape[1]:
            raise ConfigError(f"features must be rows of one width: they are {[tuple(s.shape) for s in sets]}.")
        if not bool(rows.isfinite().all()):
            raise ConfigError("some features are not numbers. Fix: other weights of the network, or a sound image.")
