"""Sums without rounding: every contribution is put on one grid, where float64 adds without error.

Formal guarantee: `ExactSum` holds sum_e round(f_e * g_e / grid) * grid, with no other error. Sums of multiples of the
grid are exact in float64, so neither the order of the units, nor how the batch was cut, nor how many ranks share the
work can change a bit of it, and no unit's contribution depends on which others are there. Rounding moves a unit of d
numbers by at most sqrt(d) * grid / 2; with grid = bound * 2^-34 that is 1e-7 of the bound at ten million weights.

How: a float64 near A = 1.5 * 2^52 * grid has exactly `grid` between it and the next one, so adding to an accumulator
that starts at A rounds what is added to the grid.
"""

from __future__ import annotations

import torch
from torch import Tensor

GRID_BITS = 34
# An accumulator is emptied before it could leave the range in which its numbers are `grid` apart.
MOST_UNITS = 1 << 16
# Numbers worked on at a time: they and their accumulators stay in a core's own cache.
CHUNK = 1 << 16
# Up to this many numbers, all units are added at once.
SMALL = 1 << 14


class ExactSum:
    """The sum of contributions of norm at most `bound`, for `size` numbers."""

    def __init__(self, size: int, bound: float, device: torch.device) -> None:
        self._anchor = 1.5 * 2.0**52 * _power_of_two(bound) * 2.0**-GRID_BITS
        self._near = torch.full((size,), self._anchor, dtype=torch.float64, device=device)
        self._total = torch.zeros(size, dtype=torch.float64, device=device)
        self._units = 0

    def add(self, rows: Tensor, factors: Tensor) -> None:
        """Add sum_e factors[e] * rows[e]; each scaled row has norm at most `bound`."""
        self._units += len(rows)
        if rows.shape[1] <= SMALL:
            self._total += self.on_grid(rows.double() * factors.unsqueeze(1)).sum(0)
            return
        scales = factors.tolist()
        for near, part in zip(self._near.split(CHUNK), rows.split(CHUNK, dim=1), strict=True):
            wide = torch.empty_like(near)
            for row, scale in zip(part.unbind(0), scales, strict=True):
                near.add_(wide.copy_(row), alpha=scale)
        if self._units >= MOST_UNITS:
            self._empty()

    def add_whole(self, sums: Tensor) -> None:
        """Add float64 sums that were made elsewhere."""
        self._total += self.on_grid(sums)

    def on_grid(self, values: Tensor) -> Tensor:
        return values.add_(self._anchor).sub_(self._anchor)

    def take(self) -> Tensor:
        """The sum so far; the next one starts at zero."""
        self._empty()
        total, self._total = self._total, torch.zeros_like(self._total)
        return total

    def _empty(self) -> None:
        self._total += self._near - self._anchor
        self._near.fill_(self._anchor)
        self._units = 0


def _power_of_two(bound: float) -> float:
    """The least power of two that is at least `bound`."""
    fraction, exponent = torch.frexp(torch.tensor(bound, dtype=torch.float64))
    return float(torch.ldexp(torch.tensor(1.0, dtype=torch.float64), exponent - (fraction == 0.5).int()))
