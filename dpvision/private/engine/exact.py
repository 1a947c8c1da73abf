"""Exact sums: every contribution is rounded to one grid, on which float64 adds without error.

Formal guarantee: `ExactSum` holds sum_e round(f_e * g_e / grid) * grid, with no other error. Sums of multiples of the
grid are exact in float64, so they do not depend on the order of the units, the size of a pass or the number of ranks,
and no unit's contribution depends on the others. Rounding moves a unit of d numbers by at most sqrt(d) * grid / 2; with
grid = bound * 2^-34, that is 1e-7 of the bound at ten million weights.

Outer products of factors are summed as whole numbers: for d inputs x and p outputs, x is rounded to b bits of its norm
and the scaled outputs to 42 - b bits of the bound. Products of these, and their sums up to 2048 bounds, are exact in
float64; every 1024 units, the part above 2^-10 bounds is carried to a second accumulator. A contribution moves by at
most sqrt(d) 2^-b + sqrt(p) 2^(b-43) of the bound, and b is chosen to minimise this (`rounding_of_products`).

Method: float64 numbers near A = 1.5 * 2^52 * grid are exactly `grid` apart, so adding to an accumulator that starts at
A rounds each addend to the grid.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

GRID_BITS = 34
# An accumulator is emptied before it could leave the range in which its numbers are `grid` apart.
MAX_UNITS = 1 << 16
# Number of values processed at a time, so that they and their accumulators stay in a core's cache.
CHUNK = 1 << 17
# Rows and columns of factors multiplied at a time, which are converted to float64 in the cache: whole rows if there are
# few outputs, since then the sum stays in the cache too.
TILE, WIDTH = 256, 512
FEW_OUTPUTS, TILE_OF_FEW, WIDTH_OF_FEW = 64, 64, 4096
# Products of float64 are fastest if the number of outputs is a multiple of this.
OUTPUTS = 4
PRODUCT_BITS = 42  # (b + 1 bits of x) * (43 - b bits of d) * (256 rows) fit float64's 53 bits
MAX_PRODUCTS = 1024  # units between two carries
# Inputs of a smaller norm count as zero.
TINY = 1e-30
# Below this sum of squares, float32 loses too many digits, so float64 is used.
SMALL_SQUARE = 1e-26
# Norms are computed of this many float32 numbers at a time and combined in float64: relative error below 2^-15.
BLOCK = 1024
# Up to this many numbers, all units are added at once, in blocks of this many values.
SMALL, SMALL_AT_ONCE = 1 << 14, 1 << 15
# On an accelerator, all units are always added at once, this many values at a time.
AT_ONCE = 1 << 25


class ExactSum:
    """The sum of contributions of `size` numbers each, of norm at most `bound`."""

    def __init__(self, size: int, bound: float, device: torch.device) -> None:
        self._bound = _power_of_two(bound)
        self._anchor = 1.5 * 2.0**52 * self._bound * 2.0**-GRID_BITS
        self._size, self._device = size, device
        self._near: Tensor | None = None  # anchor + sum
        self._total: Tensor | None = None  # a sum without the anchor
        self._units = 0
        self._carried: Tensor | None = None  # the coarse part of a sum of products
        self._products = 0

    def add(self, rows: Tensor, factors: Tensor) -> None:
        """Add sum_e factors[e] * rows[e]; each scaled row has norm at most `bound`."""
        if rows.device.type != "cpu" or rows.shape[1] <= SMALL:  # sums on the grid do not depend on the order
            size = (SMALL_AT_ONCE if rows.device.type == "cpu" else AT_ONCE) // max(1, len(rows))
            parts = (part * factors.unsqueeze(1) for part in rows.split(max(1, size), dim=1))
            self._add(torch.cat([self._on_grid(part).sum(0) for part in parts]))
            return
        self.add_each(list(rows.unbind(0)), factors)

    def add_each(self, rows: list[Tensor], factors: Tensor) -> None:
        """Add sum_e factors[e] * rows[e], each row its own tensor, on the CPU."""
        if self._units + len(rows) > MAX_UNITS:
            self._settle()
        self._units += len(rows)
        if self._near is None:
            self._near = torch.full((self._size,), self._anchor, dtype=torch.float64, device=self._device)
        scales, wide = factors.tolist(), torch.empty(CHUNK, dtype=torch.float64)
        pieces = zip(*(row.split(CHUNK) for row in rows), strict=True)
        for near, parts in zip(self._near[: rows[0].shape[0]].split(CHUNK), pieces, strict=True):
            buffer = wide[: near.shape[0]]
            for part, scale in zip(parts, scales, strict=True):
                near.add_(buffer.copy_(part), alpha=scale)

    def _on_grid(self, numbers: Tensor) -> Tensor:
        return numbers.add_(self._anchor).sub_(self._anchor)

    def _add(self, whole: Tensor) -> None:
        """Add numbers that are on the grid to the total."""
        self._total = whole if self._total is None else self._total.add_(whole)

    def add_products(self, inputs: Tensor, outputs: Tensor, norms: Tensor) -> None:
        """Add the sum of the outer products of `outputs` (float64, scaled) and `inputs` (float32, with these norms)."""
        shape = outputs.shape[1], inputs.shape[1]
        bits = _bits(*shape)
        unit = self._bound * 2.0**-PRODUCT_BITS
        grids = torch.where(norms > TINY, _powers_of_two(norms) * 2.0**-bits, 0.0).unsqueeze(1)
        whole = (outputs * (grids / unit)).round_() / grids.masked_fill(grids == 0, torch.inf)
        anchors = 1.5 * 2.0**52 * grids
        if self._total is None:
            self._total = torch.zeros(self._size, dtype=torch.float64, device=self._device)
        count = min(-(-shape[0] // OUTPUTS) * OUTPUTS, self._size // shape[1])  # padded if there is room
        whole = F.pad(whole, (0, count - shape[0]))
        total = self._total[: count * shape[1]].view(count, shape[1])
        size, width = (TILE_OF_FEW, WIDTH_OF_FEW) if shape[0] <= FEW_OUTPUTS else (TILE, WIDTH)
        if self._device.type != "cpu":
            size, width = TILE, shape[1]
        tile = torch.empty(size, min(width, shape[1]), dtype=torch.float64, device=self._device)
        for x, anchor, d in zip(inputs.split(size), anchors.split(size), whole.split(size), strict=True):
            if self._products + len(x) > MAX_PRODUCTS:
                self._carry()
            self._products += len(x)
            for columns, result in zip(x.split(width, dim=1), total.split(width, dim=1), strict=True):
                wide = tile[: len(columns), : columns.shape[1]]
                wide.copy_(columns).add_(anchor).sub_(anchor)
                result.addmm_(d.T, wide, alpha=unit)

    def take(self) -> Tensor | None:
        """Return the sum, or None if nothing was added, and reset it."""
        if self._units:
            self._settle()
        total = self._total
        if self._carried is not None:
            assert total is not None
            total = total.add_(self._carried)  # rounds only if the sum exceeds 2048 bounds
        self._total = self._carried = None
        self._products = 0
        return total

    def absorb(self, other: ExactSum) -> None:
        """Add the sum of another ExactSum to this one, and empty the other."""
        for one in (self, other):
            if one._products:
                one._carry()
        if other._carried is not None:
            self._carried = other._carried if self._carried is None else self._carried.add_(other._carried)
            other._carried = None
        total = other.take()
        if total is not None:
            self._add(total)

    def _carry(self) -> None:
        """Move multiples of 2^-10 bounds to the second accumulator, which holds them exactly up to 2^43 bounds."""
        assert self._total is not None
        anchor = 1.5 * 2.0**52 * self._bound * 2.0**-10
        coarse = (self._total + anchor).sub_(anchor)
        self._total.sub_(coarse)
        self._carried = coarse if self._carried is None else self._carried.add_(coarse)
        self._products = 1  # the remainder is less than one bound

    def _settle(self) -> None:
        """Move the accumulator near the anchor to the total."""
        assert self._near is not None
        near, self._near, self._units = self._near, None, 0
        self._add(near.sub_(self._anchor))


def _power_of_two(bound: float) -> float:
    """Return the least power of two that is at least `bound`."""
    fraction, exponent = torch.frexp(torch.tensor(bound, dtype=torch.float64))
    return float(torch.ldexp(torch.tensor(1.0, dtype=torch.float64), exponent - (fraction == 0.5).int()))


def _bits(outputs: int, inputs: int) -> int:
    """Return the number of bits to which inputs are rounded."""
    return round(21.5 + math.log2(inputs / outputs) / 4)


def rounding_of_products(outputs: int, inputs: int) -> float:
    """Bound the rounding error of a contribution from rounded factors, relative to the bound, within a factor of 2."""
    bits = _bits(outputs, inputs)
    return 2 * (math.sqrt(inputs) * 2.0**-bits + math.sqrt(outputs) * 2.0 ** (bits - 43))


def _powers_of_two(norms: Tensor) -> Tensor:
    """Return the least power of two above each norm."""
    return torch.ldexp(torch.ones_like(norms), torch.frexp(norms).exponent)


def norms_of_blocks(vectors: Tensor) -> Tensor:
    """Return the norms of BLOCK numbers of each vector at a time: (vectors, blocks)."""
    whole = vectors.shape[1] // BLOCK * BLOCK
    parts = [vectors[:, :whole].unflatten(1, (-1, BLOCK)), vectors[:, whole:].unsqueeze(1)]
    return torch.cat([torch.linalg.vector_norm(part, dim=2) for part in parts if part.numel()], dim=1)


def squares(vectors: Tensor, norms: Tensor | None = None) -> Tensor:
    """Return |v|^2 of each vector, from the norms of its blocks in float32, which are added in float64."""
    sums = (norms_of_blocks(vectors) if norms is None else norms).double().square_().sum(1)
    small = sums < SMALL_SQUARE
    if vectors.device.type != "cpu":  # without waiting to find out whether any is small
        return torch.where(small, vectors.double().square().sum(1), sums)
    if small.any():
        sums[small] = vectors[small].double().square().sum(1)
    return sums
