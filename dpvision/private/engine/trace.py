"""Tracing of a pass: which tensors depend on weights alone, which carry the batch, and where the two combine.

During a pass, every trainable parameter is a `Weight` and the images are `Data`. An operation on weights gives a weight
(weight standardisation, a reshaped scale), an operation on data gives data, and constants change nothing. Where a
weight is combined with data, the rule of that operation (rules/) takes over: it computes the operation's result, and in
the backward pass it puts the gradient of each unit into the parameter's slot. The gradient of a weight must not leave a
rule in any other way, which `Pass.backward` checks.

Two forward passes over blank images, one over two and one over four of them, determine which axes hold the images: such
an axis grows with the number of images, unlike one that merely has the same length. In the pass over four, the second
image is NaN, and its trace shows whether rows are in the order of the images. No private image is used: whether a run
is refused here depends only on the model and on shapes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.sinks import PulledBackSink, SeparateViews, Sink
from dpvision.private.engine.slots import Slot, Slots

# The rule of an operation on a weight and data: (pass, torch function, its arguments) -> untraced result.
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
FALLBACK = "fallback"  # the rule for functions without one of their own
# Memory from torch starts at multiples of this many bytes.
ALIGNMENT = 64
# Numbers of blank images in the two measuring passes; in the second pass, image MARKED is NaN.
FEW, MANY = 2, 4
MARKED = 1
_local = threading.local()


def rule_for(*functions: Any) -> Callable[[Rule], Rule]:
    """Register a rule for these torch functions."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


def per_unit(current: Pass, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function once per unit, differentiated with autograd, for arguments that its own rule does not cover."""
    return RULES[FALLBACK](current, func, *args, **kwargs)


def align(tensor: Tensor) -> Tensor:
    """Copy a tensor that does not start at an aligned address, since some kernels round differently there."""
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


class _Traced(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class Data(_Traced):
    """A tensor whose first axis holds the images of the pass, or a whole number of rows of each, in their order."""


class Weight(_Traced):
    """A function of parameters and constants only."""


# Types of arguments that need no search for nested tensors, which would cost more than many operations.
_FLAT = (Tensor, int, float, str, type(None), torch.dtype, torch.device, torch.memory_format)


def plain(value: Any) -> Any:
    """Return the same tensors without their roles."""
    if isinstance(value, _FLAT):
        return value.as_subclass(Tensor) if isinstance(value, _Traced) else value
    return tree_map_only(_Traced, lambda t: t.as_subclass(Tensor), value)


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = list(_traced((*args, *kwargs.values())))
    weights, data = (any(isinstance(t, kind) for t in tensors) for kind in (Weight, Data))
    current: Pass | None = getattr(_local, "current", None)
    if current is not None and data and (weights or func in ALWAYS):
        return _as(Data, RULES.get(func, RULES[FALLBACK])(current, func, *args, **kwargs))
    with torch._C.DisableTorchFunctionSubclass():
        out = _reshape(func, args, kwargs) if func is Tensor.view and data else func(*args, **kwargs)
    if current is not None and weights and (func in SPREADS or hasattr(func, "pullback")):
        out = out.as_subclass(Weight)
        current.derived[id(out)] = (out, func, args, kwargs)
        return out
    return _as(Weight if weights and not data else Data, out)


def _traced(values: Iterable[Any]) -> Iterator[_Traced]:
    """Yield all traced tensors in arguments, without the cost of a general search where there is nothing to search."""
    for value in values:
        if isinstance(value, _Traced):
            yield value
        elif isinstance(value, list | tuple):
            yield from _traced(value)
        elif not isinstance(value, _FLAT):
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, _Traced))


def _reshape(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a view if possible, otherwise a copy: a model need not know that channels are last in memory here."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        return Tensor.reshape(*args, **kwargs)


# Operations that may expand a parameter to every image (a class token), which shows when it is combined with data.
SPREADS = {Tensor.expand, Tensor.repeat, Tensor.broadcast_to, torch.broadcast_to}
# Operations whose rules also apply with frozen weights, so that an image has the same bits in any batch.
ALWAYS: set[Any] = set()


def _as(kind: type[_Traced], value: Any) -> Any:
    if isinstance(value, _FLAT):
        return value.as_subclass(kind) if isinstance(value, Tensor) and not isinstance(value, _Traced) else value
    return tree_map_only(Tensor, lambda t: t if isinstance(t, _Traced) else t.as_subclass(kind), value)


class ImageAxes:
    """Records of the two measuring passes, which show which first axes hold the images."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._rows: dict[int, list[tuple[str, int]]] = {FEW: [], MANY: []}
        self._calls: dict[int, list[tuple[str, list[int]]]] = {FEW: [], MANY: []}
        # For each use of a weight: a function that decides if its views can be contracted, and the parameters.
        self.pulled_back: dict[int, tuple[Callable[..., Tensor], list[str]]] = {}

    def note_rows(self, images: int, what: str, tensor: Tensor) -> None:
        """Record that a rule assumes the images along this tensor's first axis, each with the same number of rows."""
        self._rows[images].append((what, len(tensor)))
        if images == MANY and tensor.is_floating_point() and tensor.numel():
            marked = tensor.detach().reshape(images, -1).isnan().any(1).tolist()
            if any(m for image, m in enumerate(marked) if image != MARKED):
                raise UnsafeLayer(
                    f"{what}: its input for an image depends on other images in the batch, or does not have the rows "
                    "of each image consecutively along its first axis. Fix: let every layer before it process each "
                    "image independently, and keep the batch as the first axis."
                )

    def note_call(self, images: int, name: str, sizes: list[int]) -> None:
        """Record a call whose tensors have first axes of these lengths (0: not a tensor, or no axis)."""
        self._calls[images].append((name, sizes))

    def require_images_first(self) -> None:
        """Require, after both passes, that every axis that rules assumed to hold the images grew with their number."""
        for (what, few), (other, many) in zip(self._rows[FEW], self._rows[MANY], strict=False):
            if what == other and few * MANY != many * FEW:
                raise images_not_first(what)

    def of_call(self, number: int, name: str) -> list[bool]:
        """Return which first axes hold the images in the call with this number."""
        calls = [self._calls[images][number : number + 1] for images in (FEW, MANY)]
        if not all(calls) or any(call[0][0] != name for call in calls) or len({len(call[0][1]) for call in calls}) > 1:
            raise UnsafeLayer(
                f"{name}: the model does not call the same functions in every pass. Fix: use a forward pass that does "
                "not depend on the images or on their number."
            )
        return [few > 0 and few * MANY == many * FEW for few, many in zip(calls[0][0][1], calls[1][0][1], strict=True)]


# Nodes of autograd's graph that only move numbers, so that all units can be pulled back at once.
_MOVES = {f"{name}Backward0" for name in ("Alias", "View", "UnsafeView", "ReshapeAlias", "Unsqueeze", "T", "Permute")}
_MOVES |= {"TransposeBackward0", "SqueezeBackward1"}


def _only_reshapes(node: Any) -> bool:
    """Whether a node and all before it, up to one parameter, only move numbers."""
    while node is not None and node.name() in _MOVES:
        node = node.next_functions[0][0]
    return node is not None and "AccumulateGrad" in node.name()


def images_not_first(what: str) -> UnsafeLayer:
    """Return the error for an input without the images along its first axis."""
    return UnsafeLayer(
        f"{what}: its input does not have the images along its first axis, so gradients of single images cannot be "
        "separated. Fix: keep the batch as the first axis."
    )


def blank_images(images: int, like: Tensor) -> Tensor:
    """Return grey images in the shape of `like`, one of them NaN if there are MANY; integer inputs are zeros.

    Grey rather than black, so that `certify` detects a model that keeps state from its first batch.
    """
    blank = torch.zeros((images, *like.shape[1:]), dtype=like.dtype, device=like.device)
    if blank.is_floating_point():
        blank.fill_(0.5)
        if images == MANY:
            blank[MARKED] = torch.nan
    return blank


class Spans(Sequence[slice]):
    """Which rows of a tensor belong to each unit, as slices that are made when they are used."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Unit e has `sizes[e]` consecutive rows."""
        self.sizes = sizes
        self._ends = list(accumulate(sizes, initial=0))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, e: Any) -> Any:
        return slice(self._ends[e], self._ends[e + 1])

    @cached_property
    def by_size(self) -> dict[int, list[int]]:
        """The units with each number of rows."""
        units: dict[int, list[int]] = {}
        for e, size in enumerate(self.sizes):
            units.setdefault(size, []).append(e)
        return units


class Pass:
    """One forward and backward pass over images of `len(views)` units; unit e has `views[e]` consecutive images."""

    def __init__(
        self,
        slots: Slots,
        views: Sequence[int],
        image_axes: ImageAxes,
        *,
        factors: bool = False,
        separate_views: SeparateViews | None = None,
        measures: bool = False,
        bf16: bool = False,
    ) -> None:
        self.slots, self.views, self.separate_views = slots, list(views), separate_views
        self.batched = slots.batched  # all units in one call: on an accelerator, where units have equal sizes
        self.factors = factors  # whether a slot may store factors instead of rows
        self.bf16 = bf16  # whether products round their inputs to bfloat16 and accumulate in float32
        self.measures = measures  # whether this is a measuring pass over blank images, which fills `image_axes`
        self._image_axes = image_axes
        self._sinks = self._calls = 0
        self.derived: dict[int, tuple[Tensor, Any, tuple[Any, ...], dict[str, Any]]] = {}
        self._leaves: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._spans: dict[int, Spans] = {}

    @cached_property
    def images(self) -> int:
        """The number of images in the pass."""
        return sum(self.views)

    def weights(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the parameters as traced leaves, for use in the model."""
        traced: dict[str, Tensor] = {}
        for name, value in values.items():
            self._leaves[name] = value.detach().requires_grad_()
            traced[name] = self._leaves[name].as_subclass(Weight)
            self._names[id(traced[name])] = name
        return traced

    def __enter__(self) -> Pass:
        _local.current = self
        return self

    def __exit__(self, *_: object) -> None:
        _local.current = None

    def spans(self, tensor: Tensor, what: str) -> Spans:
        """Return which rows of a tensor belong to each unit."""
        per_image, rest = divmod(tensor.shape[0] if tensor.dim() else 0, self.images)
        if rest or not per_image:
            raise images_not_first(what)
        if self.measures:
            self._image_axes.note_rows(self.images, what, plain(tensor))
        if per_image not in self._spans:
            self._spans[per_image] = Spans([count * per_image for count in self.views])
        return self._spans[per_image]

    def rounded(self, tensor: Any) -> Any:
        """Round a factor of a product to the precision of products, and return it as float32."""
        wide = not self.bf16 or tensor is None or tensor.dtype != torch.float32
        return tensor if wide else tensor.bfloat16().float()

    def by_unit(self, tensor: Tensor) -> Tensor:
        """Reshape (rows, ...) to (units, rows of a unit, ...), for units with the same number of rows."""
        return tensor.unflatten(0, (len(self.views), -1))

    def note_call(self, name: str, sizes: list[int]) -> None:
        """Record the lengths of the first axes of the arguments and the result of a function without a rule."""
        self._image_axes.note_call(self.images, name, sizes)

    def image_axes_of_call(self, name: str) -> list[bool]:
        """Return which first axes hold the images, for the next call of a function without a rule."""
        self._calls += 1
        return self._image_axes.of_call(self._calls - 1, name)

    def sink(self, weight: Any) -> Sink | None:
        """Return the sink for the gradients of a weight; None for a weight that is not trained or is detached."""
        if not isinstance(weight, Weight) or not weight.requires_grad:
            return None
        self._sinks += 1
        name = self._names.get(id(weight))
        if name is not None:
            return Sink(self, self.slots[name], number=self._sinks)
        derived = self.derived.get(id(weight))
        if derived is not None and hasattr(derived[1], "pullback"):
            _, func, args, options = derived
            names = [str(self._names.get(id(a), "")) for a in args]
            if all(names) and self.slots[names[0]].shape == tuple(weight.shape):
                if self.measures and hasattr(func, "of_views"):
                    self._image_axes.pulled_back[self._sinks] = (func.of_views.possible, names)
                return PulledBackSink(self, names, func, options, plain(args), self._sinks)
        bare = plain(weight)
        slot = Slot("", bare.detach(), len(self.views), 1.0)
        return Sink(self, slot, lambda: self._pull_back(bare, slot))

    def name_of(self, weight: Any) -> str:
        """Return the name of a parameter, for error messages."""
        return self._names.get(id(weight), "a function of parameters")

    def _pull_back(self, weight: Tensor, slot: Slot) -> None:
        """Pull gradients of a function of parameters back to the parameters.

        On the CPU, this is done one unit at a time, unless the function only reshapes a parameter.
        """
        slot.expand_factors()
        rows, leaves = slot.rows(len(self.views)), list(self._leaves.values())
        options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
        per_leaf: tuple[Tensor | None, ...]
        if self.batched or _only_reshapes(weight.grad_fn):
            per_leaf = torch.autograd.grad(weight, leaves, rows, is_grads_batched=True, **options)
        else:
            per_unit = zip(*(torch.autograd.grad(weight, leaves, row, **options) for row in rows), strict=True)
            gradients_of = ([g for g in of_units if g is not None] for of_units in per_unit)
            per_leaf = tuple(torch.stack(of_units) if of_units else None for of_units in gradients_of)
        for name, gradients in zip(self._leaves, per_leaf, strict=True):
            if gradients is not None:
                self.slots[name].put(gradients)

    def backward(self, loss: Tensor) -> None:
        """Run the rules' backward passes; no other gradient may reach a parameter.

        They run in this thread on every device, so that recomputation for checkpointing finds its pass.
        """
        with torch.autograd.set_multithreading_enabled(False):
            gradients = torch.autograd.grad(loss, list(self._leaves.values()), allow_unused=True)
        outside = [n for n, g in zip(self._leaves, gradients, strict=True) if g is not None]
        if outside:
            raise UnsafeLayer(
                f"{outside[0]}: it affects the loss without being combined with the images, so its gradient cannot be "
                "separated by unit. Fix: freeze it, or combine it with the images."
            )
