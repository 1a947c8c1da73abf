"""Slots, which store the units' gradients until their norms are known: one slot per parameter, one row per unit.

A slot stores its rows in the memory order that its rule writes fastest (channels last for convolutions), padded with
zeros. All operations on rows here are elementwise, so the order matters only once, at the end. Large gradients that a
rule computes one by one are kept as they are, without a copy, until something has to change them.

For a linear layer with one row of inputs per unit, the slot stores two factors instead of the gradient: the unit's
input x and output gradient d. The norm of d'x is |d||x|, and a product of whole numbers gives the weighted sum. With
several rows, the terms could cancel, and rounding the factors would not be small relative to their sum; then the
gradient itself is stored.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator

import torch
from torch import Tensor

from dpvision.private.engine.exact import AT_ONCE, BLOCK, OUTPUTS, SMALL, ExactSum, rounding_of_products, squares

# The largest rounding error of a contribution from factors, relative to the bound: a part of noise.ARITHMETIC_SLACK.
MAX_ROUNDING = 6.5e-5
# Memory of at least this many bytes is allocated in large pages.
LARGE = 4 << 20


class Slot:
    """Per-unit gradients of one parameter."""

    def __init__(self, name: str, like: Tensor, capacity: int, bound: float, *, factored: bool = False) -> None:
        self.factored = factored  # whether factors may be stored instead of rows
        self.name, self.shape, self.numel = name, tuple(like.shape), like.numel()
        self._device, self._dtype = like.device, like.dtype
        block = BLOCK if self.numel >= BLOCK else 16
        room = math.ceil(like.shape[0] / OUTPUTS) * OUTPUTS * like.shape[1] if factored else self.numel
        self._padded = max(1, math.ceil(room / block)) * block
        self._block = block
        self._capacity = capacity
        self._rows: Tensor | None = None
        self._order: tuple[int, ...] = tuple(range(len(self.shape)))
        self.total = ExactSum(self._padded, bound, like.device)
        self._factors: tuple[Tensor, Tensor] | None = None
        self._input_norms: Tensor | None = None
        self._input_squares = torch.empty(0)
        self._settled = False
        self._kept: list[Tensor] = []  # the units' gradients, in memory order, with one element per number
        self._norms: list[Tensor] = []  # of their blocks
        self.used = False

    def reset(self) -> None:
        """Prepare for the next group of units; the total remains."""
        self.used = False
        self._kept, self._norms, self._factors = [], [], None

    def inherit(self, previous: Slot) -> None:
        """Take over the total and the memory order of a slot with a smaller capacity."""
        self._order, self._settled = previous._order, previous._settled
        self.total = previous.total

    def prefer_order(self, order: tuple[int, ...]) -> None:
        """Set the order of axes in memory; only the first call has an effect, since orders cannot be mixed in a sum."""
        if not self._settled:
            self._order, self._settled = order, True

    def rows(self, units: int) -> Tensor:
        """Return rows of shape (units, *shape), to be written or added to."""
        self._settled = True
        flat = self._flat(units)[:, : self.numel]
        if self._kept:
            kept, self._kept, self._norms = self._kept, [], []
            torch.stack(kept, out=flat)
        sizes = [self.shape[a] for a in self._order]
        inverse = sorted(range(len(sizes)), key=lambda i: self._order[i])
        return flat.unflatten(1, sizes).permute(0, *(i + 1 for i in inverse)) if sizes else flat.squeeze(1)

    def put(self, values: Tensor) -> None:
        """Write values of shape (units, *shape), or add them if the slot was already used for this group."""
        self.expand_factors()
        rows = self.rows(len(values))
        rows.add_(values) if self.used else rows.copy_(values)
        self.used = True

    def write(self, values: Iterator[Tensor]) -> None:
        """Write or add the units' gradients one by one, new tensors that nothing else uses."""
        self.expand_factors()
        if self.used or self.numel <= SMALL:
            self.put(torch.stack(list(values)))
            return
        self._settled = self.used = True
        for value in values:
            self._kept.append(value.permute(self._order).reshape(-1))
            self._norms.append(_norms_of_blocks(self._kept[-1]))  # while the numbers are in the cache

    def keep_factors(self, inputs: Tensor, outputs: Tensor, norms: Tensor | None = None) -> None:
        """Store factors (units, d) and (units, p) of the gradients; only if the slot was not used for this group.

        `norms` has those of the inputs' blocks, if they are known.
        """
        self._factors, self._input_norms = (inputs, outputs), norms
        self.used = True

    def expand_factors(self) -> None:
        """Convert stored factors, if any, to rows."""
        if self._factors is not None:
            inputs, outputs = self._factors
            self._factors = None
            torch.mul(outputs.unsqueeze(2), inputs.unsqueeze(1), out=self.rows(len(inputs)))

    def transform(self, units: int, scale: Tensor | None, shift: Tensor | None) -> None:
        """Set rows to scale * rows - shift, for flat public vectors in the parameter's own order."""
        self.expand_factors()
        rows = self.rows(units)
        if not self.used:
            rows.zero_()
            self.used = True
        if scale is not None:
            rows.mul_(scale.view(self.shape))
        if shift is not None:
            rows.sub_(shift.view(self.shape))

    def squares(self, units: int) -> Tensor:
        """Return |row|^2 of each unit, in float64; not finite where the row is not."""
        if not self.used:
            return torch.zeros(units, dtype=torch.float64, device=self._device)
        if self._factors is not None:
            inputs, outputs = self._factors
            self._input_squares = squares(inputs, self._input_norms)
            return self._input_squares * squares(outputs)
        if self._kept:
            norms = torch.stack(self._norms)
        else:
            norms = torch.linalg.vector_norm(self._flat(units).view(units, -1, self._block), dim=2)
        return norms.double().square_().sum(1)

    def inner_products(self, units: int, direction: Tensor) -> Tensor:
        """Return <row, direction> of each unit, in float64."""
        self.expand_factors()
        if not self.used:
            return torch.zeros(units, dtype=torch.float64, device=self._device)
        size = units if self._device.type == "cpu" else max(1, AT_ONCE // self.numel)  # limits memory for float64
        parts = self.rows(units).split(size)
        return torch.cat([(p.double() * direction.view(self.shape)).reshape(len(p), -1).sum(1) for p in parts])

    def add(self, factors: Tensor, bad: Tensor) -> None:
        """Add sum_e factors[e] * row[e] to the total; `bad` rows are not finite, have factor 0 and count as zero."""
        if not self.used:
            return
        clear = bad.device.type != "cpu" or bool(bad.any())  # on an accelerator, without waiting
        if self._factors is not None:
            parts = (*self._factors, self._input_squares.sqrt().unsqueeze(1))
            inputs, outputs, norms = (p.masked_fill(bad.unsqueeze(1), 0.0) if clear else p for p in parts)
            self.total.add_products(inputs, outputs.double() * factors.unsqueeze(1), norms.squeeze(1))
            return
        if self._kept:
            for unit in bad.nonzero().flatten().tolist() if clear else ():
                self._kept[unit].zero_()
            self.total.add_each(self._kept, factors)
            self._kept, self._norms, self.used = [], [], False  # frees memory for the next group
            return
        rows = self._flat(len(factors))
        self.total.add(rows.masked_fill_(bad.unsqueeze(1), 0.0) if clear else rows, factors)

    def add_to(self, out: Tensor) -> None:
        """Add the total to a flat vector in the parameter's own order, and reset it."""
        total = self.total.take()
        if total is not None:
            sizes = [self.shape[a] for a in self._order]
            out.view(self.shape).permute(self._order).add_(total[: self.numel].view(sizes))

    def absorb(self, other: Slot) -> None:
        """Take over another slot's total, if it has the same memory order."""
        if self._order == other._order:
            self.total.absorb(other.total)

    def _flat(self, units: int) -> Tensor:
        if self._rows is None:
            self._rows = _allocate_zeros(self._capacity, self._padded, self._dtype, self._device)
        return self._rows[:units]


def _norms_of_blocks(row: Tensor) -> Tensor:
    rest = row.shape[0] % BLOCK
    if not rest:
        return torch.linalg.vector_norm(row.view(-1, BLOCK), dim=1)
    return torch.cat([_norms_of_blocks(row[:-rest]), torch.linalg.vector_norm(row[-rest:]).view(1)])


def _choose_factored(parameters: dict[str, Tensor]) -> set[str]:
    """Return the matrices for which factors are cheaper, as long as their combined rounding is small enough."""
    names, error = set(), 0.0
    for name, parameter in parameters.items():
        if parameter.dim() == 2 and 4 * sum(parameter.shape) <= parameter.numel():
            error += rounding_of_products(*parameter.shape) ** 2
            if error > MAX_ROUNDING**2:
                break
            names.add(name)
    return names


class Slots(dict[str, Slot]):
    """The slots of all trainable parameters, by name."""

    def __init__(self, parameters: dict[str, Tensor], capacity: int, bounds: dict[str, float]) -> None:
        factored = _choose_factored(parameters)
        super().__init__((n, Slot(n, p, capacity, bounds[n], factored=n in factored)) for n, p in parameters.items())
        self.capacity = capacity
        self.batched = any(p.device.type != "cpu" for p in parameters.values())
        self._scratch: dict[tuple[object, ...], Tensor] = {}

    def scratch(self, use: tuple[object, ...], size: tuple[int, ...], like: Tensor) -> Tensor:
        """Return memory for one use and size, initially zero; it is reused, since new memory is slow."""
        key = (*use, size, like.dtype, like.device)
        if key not in self._scratch:
            self._scratch[key] = torch.zeros(size, dtype=like.dtype, device=like.device)
        return self._scratch[key]

    def inherit(self, previous: Slots) -> None:
        """Take over the totals of slots with a smaller capacity."""
        for name, slot in self.items():
            slot.inherit(previous[name])

    def reset(self) -> None:
        """Prepare for the next group of units."""
        for slot in self.values():
            slot.reset()

    def squares(self, units: int) -> Tensor:
        """Return |row|^2 of each unit and parameter: (units, parameters)."""
        return torch.stack([slot.squares(units) for slot in self.values()], dim=1)

    def absorb(self, others: Slots) -> None:
        """Take over the totals of other slots that have the same memory order."""
        for name, slot in self.items():
            slot.absorb(others[name])

    def add_to(self, out: Tensor) -> None:
        """Add the totals to one flat vector, and reset them."""
        for slot, part in zip(self.values(), out.split([slot.numel for slot in self.values()]), strict=True):
            slot.add_to(part)


def _allocate_zeros(units: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate zeros, in large pages if the system supports them, because rows are accessed sequentially."""
    count = units * size
    if device.type != "cpu" or count * dtype.itemsize < LARGE:
        return torch.zeros(units, size, dtype=dtype, device=device)
    memory = mmap.mmap(-1, count * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(units, size)
