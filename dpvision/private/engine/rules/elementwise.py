"""Elementwise operations: parameters that are broadcast to every image, and activation functions.

A parameter that is added to, multiplied by or concatenated with every image (a scale, a class token, a position
embedding) is expanded to one copy per image, as a view without its own memory. The gradients of the copies, summed over
a unit's images, are the unit's gradient, and the operation becomes an ordinary operation on data.

The kernels of some activation functions round the last few numbers of a tensor differently, so tensors are padded to
whole vectors.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.trace import ALWAYS, SPREADS, Data, Pass, Weight, per_unit, plain, rule_for

# Tensors are padded to a multiple of this many numbers, more than any processor handles per instruction.
VECTOR = 64


class _Copies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, count: int, current: Pass, sink: Any) -> Tensor:
        """Expand the first axis of the weight, of length 1, to the rows of the images."""
        ctx.current, ctx.sink, ctx.shape = current, sink, sink.slot.shape
        return weight.expand(count, *weight.shape[1:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        spans = ctx.current.spans(dy, "a parameter that is broadcast to every image")
        if ctx.current.batched:
            ctx.sink.put(ctx.current.by_unit(dy).sum(1).view(-1, *ctx.shape))
        else:
            ctx.sink.put(torch.stack([dy[s].sum(0).view(ctx.shape) for s in spans]))
        return None, None, None, None


def copy_per_row(current: Pass, weight: Any, axes: int, count: int) -> Tensor:
    """Return one copy of the weight for each of `count` rows, with `axes` axes in total, as in broadcasting."""
    missing = axes - weight.dim()
    if missing == 0 and weight.shape[0] == count != 1:
        return copies_of_expanded(current, weight)
    if missing < 0 or (missing == 0 and weight.shape[0] != 1):
        raise _not_broadcast(current, weight)
    lifted = plain(weight).reshape((1,) * missing + tuple(weight.shape))
    return _Copies.apply(lifted, count, current, current.sink(weight))


def copies_of_expanded(current: Pass, weight: Any) -> Tensor:
    """Return the copies of a parameter that the model itself expanded or repeated to one per image."""
    _, func, args, _ = current.derived.get(id(weight), (None, None, (), {}))
    if func not in SPREADS or not isinstance(args[0], Weight):
        raise _not_broadcast(current, weight)
    original, wanted = args[0], tuple(weight.shape)
    if original.dim() == len(wanted) and original.shape[0] != 1:
        raise _not_broadcast(current, weight)
    rows = copy_per_row(current, original, len(wanted), wanted[0])
    if func is Tensor.repeat:
        return rows.repeat(1, *(w // s for w, s in zip(wanted[1:], rows.shape[1:], strict=True))).as_subclass(Data)
    return rows.expand(wanted).as_subclass(Data)


def _not_broadcast(current: Pass, weight: Any) -> UnsafeLayer:
    return UnsafeLayer(
        f"{current.name_of(weight)} has separate values for positions in the batch, or was changed after it was "
        "expanded to the images. Fix: give it a first axis of length 1, and expand it last. Create constants that are "
        "combined with it, such as an initial state, from the images: x.new_zeros(...), not torch.zeros(...)."
    )


_BROADCASTING = (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.where, torch.addcmul)
_METHODS: tuple[str, ...] = ("add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__rsub__")
_METHODS += ("__mul__", "__rmul__")
_METHODS += ("__truediv__", "__rtruediv__", "rsub", "add_", "sub_", "mul_", "div_", "__iadd__", "__imul__", "__isub__")
_METHODS += ("maximum", "minimum", "where", "addcmul", "true_divide", "multiply", "subtract", "divide")


@rule_for(*_BROADCASTING, *(getattr(Tensor, m) for m in _METHODS if hasattr(Tensor, m)))
def broadcast(current: Pass, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply an elementwise function of data and weights, with one copy of each weight per row of the data."""
    data = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Data)]
    axes = max(t.dim() for t in data)
    first = next(t for t in data if t.dim() == axes)
    count = first.shape[0]
    current.spans(first, f"{func.__name__} with a parameter")
    args, kwargs = tree_map_only(Weight, lambda w: copy_per_row(current, w, axes, count), (args, kwargs))
    return func(*plain(args), **plain(kwargs))


@rule_for(torch.cat, torch.concat, torch.stack)
def concatenate(current: Pass, func: Any, tensors: Any, dim: int = 0, **kwargs: Any) -> Any:
    """Concatenate data with parameters that were expanded to one copy per image."""
    axes = next(t for t in tensors if isinstance(t, Data)).dim()
    if dim % (axes + (func is torch.stack)) == 0:
        raise UnsafeLayer("a parameter is concatenated with the images along the batch axis. Fix: use another axis.")
    parts = [copies_of_expanded(current, t) if isinstance(t, Weight) else t for t in tensors]
    return func(plain(parts), dim, **kwargs)


_NAMES: tuple[str, ...] = ("sigmoid", "pow", "sinh", "cosh", "exp2", "logit", "asin", "arcsin", "acos", "arccos")
_NAMES += ("erfinv", "sinc", "tan", "asinh", "acosh", "atanh", "arcsinh", "arccosh", "arctanh", "digamma", "lgamma")
_FUNCTIONS: tuple[Any, ...] = (F.silu, F.softplus, F.mish, F.elu, F.selu, F.celu, F.gelu, F.logsigmoid, F.hardswish)
_FUNCTIONS += (F.sigmoid, torch.special.expit, torch.special.exp2, torch.special.logit, Tensor.__pow__, Tensor.__rpow__)
_FUNCTIONS += tuple(getattr(t, name) for name in _NAMES for t in (torch, Tensor))
_IN_PLACE = {getattr(Tensor, f"{name}_"): getattr(torch, name) for name in _NAMES if hasattr(Tensor, f"{name}_")}
_IN_PLACE |= {torch.sigmoid_: torch.sigmoid, torch.exp2_: torch.exp2, F.elu_: F.elu, F.selu_: F.selu, F.celu_: F.celu}
ALWAYS |= {*_FUNCTIONS, *_IN_PLACE}


@rule_for(*_FUNCTIONS)
def pointwise(current: Pass, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply an activation function in memory order to whole vectors, in the backward pass too."""
    if not isinstance(input, Data) or any(isinstance(a, Tensor) for a in (*args, *kwargs.values())):
        return per_unit(current, func, input, *args, **kwargs)
    if kwargs.pop("inplace", False):
        return plain(input).copy_(pointwise(current, func, input.clone(), *args, **kwargs))
    x, count = plain(input), input.numel()
    if current.batched:
        return func(x, *args, **kwargs)
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    ordered = x.permute(0, 2, 3, 1) if last else x
    flat = F.pad(ordered.reshape(-1), (0, -count % VECTOR)) if count % VECTOR else ordered.reshape(-1)
    y = func(flat, *args, **kwargs)[:count].view(ordered.shape)
    return y.permute(0, 3, 1, 2) if last else y


@rule_for(*_IN_PLACE)
def in_place(current: Pass, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the rule of the out-of-place function, and copy the result into the input."""
    return plain(input).copy_(pointwise(current, _IN_PLACE[func], input.clone(), *args, **kwargs))
