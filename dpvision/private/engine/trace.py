"""Follow a forward pass: which tensors are made of weights alone, which carry the batch, and where the two meet.

During a pass every trainable parameter is a `Weight` and the images are `Data`. An operation among weights gives a
weight (weight standardisation, a reshaped scale), an operation among data gives data, constants change nothing. Where a
weight meets data, the rule of that operation (rules/) takes over: it computes what the operation computes, and in the
backward pass puts the gradient of each unit alone into the parameter's slot. No gradient of a weight may leave a rule
in any other way, which `Pass.backward` checks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise, starmap
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.growth import Growth, not_first
from dpvision.private.engine.slots import Slot, Slots

# What is done where a weight meets data: (the pass, the torch function, its arguments) -> its result, not traced.
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
# Inputs and output gradients of all views of all units, a unit's views one after the other, and a note of each view.
Kept = tuple[Tensor, Tensor, list[Any]]
_here = threading.local()


def rule_for(*functions: Any) -> Callable[[Rule], Rule]:
    """Register a rule for these torch functions."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


class _Traced(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class Data(_Traced):
    """A tensor whose first axis is the images of the pass, or a whole number of rows of each, in their order."""


class Weight(_Traced):
    """A function of parameters and constants only."""


# Arguments that hold no tensors inside them: looking into every one would cost more than many an operation.
_FLAT = (Tensor, int, float, str, type(None), torch.dtype, torch.device, torch.memory_format)


def plain(value: Any) -> Any:
    """The same tensors without their roles."""
    if isinstance(value, _FLAT):
        return value.as_subclass(Tensor) if isinstance(value, _Traced) else value
    return tree_map_only(_Traced, lambda t: t.as_subclass(Tensor), value)


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves: list[Any] = [*args, *kwargs.values()]
    if not all(isinstance(a, _FLAT) for a in leaves):
        leaves = tree_leaves(leaves)
    tensors = [t for t in leaves if isinstance(t, _Traced)]
    weights, data = (any(isinstance(t, kind) for t in tensors) for kind in (Weight, Data))
    current: Pass | None = getattr(_here, "current", None)
    if current is not None and data and (weights or func in ALWAYS):
        return _as(Data, RULES.get(func, RULES["anything"])(current, func, *args, **kwargs))
    with torch._C.DisableTorchFunctionSubclass():
        out = _reshaped(func, args, kwargs) if func is Tensor.view and data else func(*args, **kwargs)
    if current is not None and weights and (func in SPREADS or hasattr(func, "pullback")):
        out = out.as_subclass(Weight)
        current.made[id(out)] = (out, func, args, kwargs)
        return out
    return _as(Weight if weights and not data else Data, out)


def _reshaped(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A view where the memory allows one, else a copy: channels lie last here, which a model need not know."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        return Tensor.reshape(*args, **kwargs)


# Operations by which a parameter may be given to every image (a class token). Whether it was shows where it meets data.
SPREADS = {Tensor.expand, Tensor.repeat, Tensor.broadcast_to, torch.broadcast_to}
# Operations that go by their rules also with frozen weights: so that an image has the same bits in any batch.
ALWAYS: set[Any] = set()


def _as(kind: type[_Traced], value: Any) -> Any:
    if isinstance(value, _FLAT):
        return value.as_subclass(kind) if isinstance(value, Tensor) and not isinstance(value, _Traced) else value
    return tree_map_only(Tensor, lambda t: t if isinstance(t, _Traced) else t.as_subclass(kind), value)


class Together:
    """Views of the same units that pass one after the other, each at weights of its own.

    What a rule contracts over a unit's views it lays down here until the last view has passed: then the contraction is
    done once, over all of them, as if they had passed at the same weights.
    """

    def __init__(self, weights: Sequence[dict[str, Tensor]], slots: Slots) -> None:
        self.views, self._weights, self._slots = len(weights), weights, slots
        self._notes: dict[int, list[Any]] = {}
        self._agreed: dict[int, bool] = {}

    def agree(self, number: int, possible: Callable[..., bool], names: Sequence[str]) -> bool:
        """Whether something is possible at the weights of every view: decided once, so that all views do the same."""
        if number not in self._agreed:
            self._agreed[number] = all(possible(*(weights[name] for name in names)) for weights in self._weights)
        return self._agreed[number]

    def require_empty(self) -> None:
        """After the last view nothing may be left that was never contracted."""
        if self._notes:
            raise UnsafeLayer(
                "the model does not do the same with every view, so a part of their gradients would be lost. Fix: a "
                "forward pass that does not depend on the values of weights, or training without weight multiplicity."
            )

    def keep(self, number: int, x: Tensor, dy: Tensor, scale: Tensor | None = None, note: Any = None) -> Kept | None:
        """What all views gave in this place: inputs, output gradients (times `scale`) and notes; None until the last.

        A unit's views lie one after the other, in memory that is used again for the next units.
        """
        notes = self._notes.setdefault(number, [])
        inputs, outputs = (self._room(number, which, t) for which, t in enumerate((x, dy)))
        inputs[:, len(notes)] = x.movedim(1, -1)
        if scale is None:
            outputs[:, len(notes)] = dy.movedim(1, -1)
        else:
            torch.mul(dy.movedim(1, -1), scale, out=outputs[:, len(notes)])
        notes.append(note)
        if len(notes) < self.views:
            return None
        return inputs.flatten(0, 1).movedim(-1, 1), outputs.flatten(0, 1).movedim(-1, 1), self._notes.pop(number)

    def _room(self, number: int, which: int, like: Tensor) -> Tensor:
        """(units, views, height, width, channels)"""
        units, channels, *places = like.shape
        size = (self._slots.capacity, self.views, *places, channels)
        return self._slots.scratch(("views", number, which), size, like)[:units]


class Pass:
    """One forward and backward pass over images of `len(views)` units; unit e has `views[e]` consecutive images."""

    def __init__(
        self,
        slots: Slots,
        views: Sequence[int],
        growth: Growth,
        *,
        factors: bool = False,
        together: Together | None = None,
        measures: bool = False,
    ) -> None:
        self.slots, self.views, self.together = slots, list(views), together
        self.factors = factors  # whether a slot may keep factors instead of rows
        self.measures = measures  # a forward pass over blank images, which fills `growth`
        self._growth = growth
        self._sinks = self._calls = 0
        self.made: dict[int, tuple[Tensor, Any, tuple[Any, ...], dict[str, Any]]] = {}
        self._leaves: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._spans: dict[int, list[slice]] = {}

    @cached_property
    def images(self) -> int:
        return sum(self.views)

    def weights(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The parameters as traced leaves, to be put into the model."""
        traced: dict[str, Tensor] = {}
        for name, value in values.items():
            self._leaves[name] = value.detach().requires_grad_()
            traced[name] = self._leaves[name].as_subclass(Weight)
            self._names[id(traced[name])] = name
        return traced

    def __enter__(self) -> Pass:
        _here.current = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.current = None

    def spans(self, tensor: Tensor, what: str) -> list[slice]:
        """Which rows of a tensor belong to each unit."""
        each, rest = divmod(tensor.shape[0] if tensor.dim() else 0, self.images)
        if rest or not each:
            raise not_first(what)
        if self.measures:
            self._growth.note_rows(self.images, what, plain(tensor))
        if each not in self._spans:
            ends = list(accumulate((count * each for count in self.views), initial=0))
            self._spans[each] = list(starmap(slice, pairwise(ends)))
        return self._spans[each]

    def note_call(self, name: str, sizes: list[int]) -> None:
        """Of a function without a rule: the lengths of the first axes of its arguments and its result."""
        self._growth.note_call(self.images, name, sizes)

    def of_call(self, name: str) -> list[bool]:
        """Of the next function without a rule: which of these axes are the images."""
        self._calls += 1
        return self._growth.of_call(self._calls - 1, name)

    def sink(self, weight: Any) -> Sink | None:
        """Where the gradients of a weight go; None for what is not trained, or detached."""
        if not isinstance(weight, Weight) or not weight.requires_grad:
            return None
        self._sinks += 1
        name = self._names.get(id(weight))
        if name is not None:
            return Sink(self, self.slots[name], number=self._sinks)
        made = self.made.get(id(weight))
        if made is not None and hasattr(made[1], "pullback"):
            _, func, args, options = made
            names = [str(self._names.get(id(a), "")) for a in args]
            if all(names) and self.slots[names[0]].shape == tuple(weight.shape):
                return _InPlace(self, names, func, options, plain(args), self._sinks)
        bare = plain(weight)
        slot = Slot("", bare.detach(), len(self.views), 1.0)
        return Sink(self, slot, lambda: self._pull_back(bare, slot))

    def name_of(self, weight: Any) -> str:
        return self._names.get(id(weight), "a function of parameters")

    def _pull_back(self, weight: Tensor, slot: Slot) -> None:
        """Carry the gradients of a function of parameters to the parameters, one unit at a time."""
        slot.spread()
        leaves = list(self._leaves.values())
        per_unit = [
            torch.autograd.grad(weight, leaves, row, retain_graph=True, allow_unused=True)
            for row in slot.rows(len(self.views))
        ]
        for name, gradients in zip(self._leaves, zip(*per_unit, strict=True), strict=True):
            if gradients[0] is not None:
                self.slots[name].put(torch.stack(gradients))

    def backward(self, loss: Tensor) -> None:
        """Run the rules' backward passes; nothing else may reach a parameter."""
        gradients = torch.autograd.grad(loss, list(self._leaves.values()), allow_unused=True)
        loose = [n for n, g in zip(self._leaves, gradients, strict=True) if g is not None]
        if loose:
            raise UnsafeLayer(
                f"{loose[0]}: it reaches the loss in a way that does not pass through the images, so its gradient can "
                "not be told apart by unit. Fix: freeze it, or compute it from the images."
            )


class Sink:
    """Takes the gradients of one weight, of all units at once."""

    def __init__(
        self, current: Pass, slot: Slot, finish: Callable[[], None] = lambda: None, *, number: int | None = None
    ) -> None:
        self.current, self.slot, self._finish = current, slot, finish
        self._number = number  # the place of this use of a weight in the pass; None where views cannot be contracted

    @property
    def waits(self) -> bool:
        """Whether what is contracted waits for the unit's other views."""
        return self.current.together is not None and self._number is not None

    def all_views(self, x: Tensor, dy: Tensor, y: Tensor, of_bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Inputs and output gradients of all views, unit by unit; None until the last view has passed."""
        found = self._keep(x, dy)
        return found and found[:2]

    def _keep(self, x: Tensor, dy: Tensor, scale: Tensor | None = None, note: Any = None) -> Kept | None:
        assert self.current.together is not None and self._number is not None
        return self.current.together.keep(self._number, x, dy, scale, note)

    def put(self, values: Tensor) -> None:
        """(units, *shape)"""
        self.slot.put(values)
        self._finish()

    def write(self, one: Callable[[int, Tensor, bool], None], order: tuple[int, ...] | None = None) -> None:
        """`one(e, row, add)` writes, or adds, the gradient of unit e; `order` is how it would like to lie in memory."""
        if order is not None:
            self.slot.prefer(order)
        self.slot.spread()
        self.slot.forget()
        for e, row in enumerate(self.slot.rows(len(self.current.views)).unbind(0)):
            one(e, row, self.slot.used)
            self.slot.note(e)
        self.slot.used = True
        self._finish()

    def may_keep_factors(self) -> bool:
        return self.current.factors and self.slot.factored and not self.slot.used


class _InPlace(Sink):
    """For a weight whose function brings its own pullback: rows become the first argument's gradient where they lie."""

    def __init__(
        self, current: Pass, names: list[str], func: Any, options: dict[str, Any], args: Any, number: int
    ) -> None:
        slots, together = [current.slots[name] for name in names], current.together
        over_views = together and hasattr(func, "of_views") and together.agree(number, func.of_views.possible, names)
        super().__init__(current, slots[0], self._carry, number=number if over_views else None)
        self._slots, self._func, self._options, self._args = slots, func, options, args
        self._over_views: list[Any] = []

    def all_views(self, x: Tensor, dy: Tensor, y: Tensor, of_bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Each view's gradient is pulled back at weights of its own: what is linear in it is done before the sum."""
        found = self._keep(x, dy, *self._func.of_views.before(dy, y, of_bias, *self._args, **self._options))
        if found is None:
            return None
        self._over_views = found[2]
        return found[:2]

    def put(self, values: Tensor) -> None:
        self._open()
        super().put(values)

    def write(self, one: Callable[[int, Tensor, bool], None], order: tuple[int, ...] | None = None) -> None:
        """Output channels first: the pullback works on one filter at a time."""
        self._open()
        super().write(one, order and (0, *(a for a in order if a)))

    def may_keep_factors(self) -> bool:
        return False

    def _open(self) -> None:
        """Rows that are gradients already must not be pulled back again: a second use gets a slot for itself."""
        first = self._slots[0]
        first.spread()
        self.slot = Slot("", self._args[0].detach(), len(self.current.views), 1.0) if first.used else first

    def _carry(self) -> None:
        rows = self.slot.rows(len(self.current.views))
        self.slot.forget()
        with torch.no_grad():
            if self._over_views:
                others = self._func.of_views.after(rows, self._over_views)
            else:
                others = self._func.pullback(rows, *(a.detach() for a in self._args), **self._options)
        if self.slot is not self._slots[0]:
            self._slots[0].put(rows)
        for slot, gradient in zip(self._slots[1:], others, strict=True):
            slot.put(gradient)
