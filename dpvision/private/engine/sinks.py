"""Sinks, to which rules pass gradients: each belongs to one use of a weight and forwards to the weight's slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.slots import Slot, Slots

if TYPE_CHECKING:
    from dpvision.private.engine.trace import Pass

# With at least this many inputs per position, it is less work to scale output gradients than gradients of a weight.
MANY_INPUTS = 4
# Inputs and output gradients of all views of all units, with a unit's views in sequence, and one note per view.
AllViews = tuple[Tensor, Tensor, list[Any]]


class SeparateViews:
    """Views of the same units that pass one after the other, each at its own weights.

    Factors that a rule contracts over a unit's views wait here until the last view has passed. Then one contraction
    covers all views, as if they had passed at the same weights.
    """

    def __init__(self, weights: Sequence[dict[str, Tensor]], slots: Slots, possible: dict[int, bool]) -> None:
        """Begin with a group of units; all groups of a sum share `possible`."""
        self.count, self._weights, self._slots = len(weights), weights, slots
        self._notes: dict[int, list[Any]] = {}
        self._possible = possible

    def all_possible(self, number: int, possible: Callable[..., Tensor], names: Sequence[str]) -> bool:
        """Whether `possible` holds at the weights of every view; decided once, so that all views agree."""
        if number not in self._possible:
            self._possible[number] = bool(possible(*([weights[name] for weights in self._weights] for name in names)))
        return self._possible[number]

    def require_empty(self) -> None:
        """Require, after the last view, that all factors were contracted."""
        if self._notes:
            raise UnsafeLayer(
                "the model does not treat every view alike, so a part of their gradients would be lost. Fix: use a "
                "forward pass that does not depend on the values of weights, or train without weight multiplicity."
            )

    def keep(
        self, number: int, x: Tensor, dy: Tensor, scale: Tensor | None = None, note: Any = None
    ) -> AllViews | None:
        """Store a view's input, output gradient (times `scale`) and note; after the last view, return those of all.

        A unit's views are consecutive, in memory that is reused for the next units.
        """
        notes = self._notes.setdefault(number, [])
        inputs, outputs = (self._buffer(number, which, t) for which, t in enumerate((x, dy)))
        inputs[:, len(notes)] = x.movedim(1, -1)
        if scale is None:
            outputs[:, len(notes)] = dy.movedim(1, -1)
        else:
            torch.mul(dy.movedim(1, -1), scale, out=outputs[:, len(notes)])
        notes.append(note)
        if len(notes) < self.count:
            return None
        return inputs.flatten(0, 1).movedim(-1, 1), outputs.flatten(0, 1).movedim(-1, 1), self._notes.pop(number)

    def _buffer(self, number: int, which: int, like: Tensor) -> Tensor:
        """Return memory of shape (units, views, height, width, channels)."""
        units, channels, *places = like.shape
        size = (self._slots.capacity, self.count, *places, channels)
        return self._slots.scratch(("views", number, which), size, like)[:units]


class Sink:
    """Takes the gradients of one use of a weight, for all units at once."""

    def __init__(
        self, current: Pass, slot: Slot, finish: Callable[[], None] = lambda: None, *, number: int | None = None
    ) -> None:
        self.current, self.slot, self._finish = current, slot, finish
        self._number = number  # of this use of a weight within the pass; None if views cannot be contracted

    @property
    def waits_for_views(self) -> bool:
        """Whether the contraction waits for the units' other views."""
        return self.current.separate_views is not None and self._number is not None

    def all_views(self, x: Tensor, dy: Tensor, y: Tensor, of_bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return the inputs and output gradients of all views, unit by unit; None until the last view has passed."""
        views = self._keep(x, dy)
        return views and views[:2]

    def _keep(self, x: Tensor, dy: Tensor, scale: Tensor | None = None, note: Any = None) -> AllViews | None:
        assert self.current.separate_views is not None and self._number is not None
        return self.current.separate_views.keep(self._number, x, dy, scale, note)

    def put(self, values: Tensor) -> None:
        """Add gradients of shape (units, *shape)."""
        self.slot.put(values)
        self._finish()

    def put_in_order(self, values: Tensor, order: tuple[int, ...]) -> None:
        """Add gradients, preferably in memory order `order`."""
        self.slot.prefer_order(order)
        self.put(values)

    def write(self, one: Callable[[int], Tensor], order: tuple[int, ...] | None = None) -> None:
        """Write or add the gradient of each unit e, a new tensor `one(e)`, preferably in memory order `order`."""
        if order is not None:
            self.slot.prefer_order(order)
        self.slot.write(map(one, range(len(self.current.views))))
        self._finish()

    def may_scale(self, positions: int) -> bool:
        """Whether output gradients with this number of positions are passed to `PulledBackSink.scale` first."""
        return False

    def may_keep_factors(self) -> bool:
        """Whether the slot may store factors of the gradients instead of rows."""
        return self.current.factors and self.slot.factored and not self.slot.used


class PulledBackSink(Sink):
    """A sink for a weight computed by a function with its own pullback, which turns rows into gradients in place."""

    def __init__(
        self, current: Pass, names: list[str], func: Any, options: dict[str, Any], args: Any, number: int
    ) -> None:
        slots, views = [current.slots[name] for name in names], current.separate_views
        over_views = views and hasattr(func, "of_views") and views.all_possible(number, func.of_views.possible, names)
        super().__init__(current, slots[0], self._pull_back, number=number if over_views else None)
        self._slots, self._func, self._options = slots, func, options
        self._args = [a.detach() for a in args]
        self._over_views: list[Any] = []
        self._along: Tensor | None = None  # what `of_views.before` returned for each unit, if all views pass together
        self._others: list[list[Tensor]] = []  # each unit's gradients of the other arguments

    def all_views(self, x: Tensor, dy: Tensor, y: Tensor, of_bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Apply the linear part of the pullback at each view's own weights, before the sum over views."""
        views = self._keep(x, dy, *self._func.of_views.before(dy, y, of_bias, *self._args, **self._options))
        if views is None:
            return None
        self._over_views = views[2]
        return views[:2]

    def may_scale(self, positions: int) -> bool:
        """Whether to apply the linear part of the pullback to output gradients, because they have fewer numbers.

        Shapes and weights decide, so all units are treated alike.
        """
        if self.current.separate_views is not None or self.current.batched or not hasattr(self._func, "of_views"):
            return False
        few = self._args[0].dim() == 4 and self._args[0][0].numel() >= MANY_INPUTS * positions
        return few and bool(self._func.of_views.possible(*([a] for a in self._args)))

    def scale(self, dy: Tensor, y: Tensor, by_unit: Callable[[Tensor], Tensor]) -> Tensor:
        """Return scaled output gradients, and keep what else `of_views.before` returns, summed `by_unit`."""
        scale, (along, *_) = self._func.of_views.before(dy, y, None, *self._args, **self._options)
        self._along = by_unit(along)
        return dy * scale.view(-1, 1, 1)

    def put(self, values: Tensor) -> None:
        self._choose_slot()
        super().put(values)

    def write(self, one: Callable[[int], Tensor], order: tuple[int, ...] | None = None) -> None:
        """Write with output channels first, and pull each gradient back while it is in the cache."""
        self._choose_slot()
        order = order and (0, *(a for a in order if a))
        if self._over_views:
            super().write(one, order)
            return
        pull_back = self._func.pullback(*self._args, **self._options)

        def pulled_back(e: int) -> Tensor:
            gradient = one(e)
            self._others.append(pull_back(gradient.unsqueeze(0), *self._of_units(slice(e, e + 1))))
            return gradient

        with torch.no_grad():
            super().write(pulled_back, order)

    def may_keep_factors(self) -> bool:
        return False

    def _choose_slot(self) -> None:
        """Give a second use its own slot: rows that are already gradients must not be pulled back again."""
        first = self._slots[0]
        first.expand_factors()
        self.slot = Slot("", self._args[0], len(self.current.views), 1.0) if first.used else first

    def _of_units(self, part: slice) -> list[Tensor]:
        return [] if self._along is None else [self._along[part]]

    def _pull_back(self) -> None:
        units = len(self.current.views)
        with torch.no_grad():
            if self._others:  # already done, unit by unit
                others = [torch.cat(of_units) for of_units in zip(*self._others, strict=True)]
            elif self._over_views:
                others = self._func.of_views.after(self.slot.rows(units), self._over_views)
            else:
                pull_back = self._func.pullback(*self._args, **self._options)
                others = pull_back(self.slot.rows(units), *self._of_units(slice(units)))
        if self.slot is not self._slots[0]:
            self._slots[0].put(self.slot.rows(units))
        for slot, gradient in zip(self._slots[1:], others, strict=True):
            slot.put(gradient)
