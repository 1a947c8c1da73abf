"""Parameters that are added to, multiplied with or put beside every image: scales, class tokens, position embeddings.

Such a parameter is given to each image as a copy of its own (a view, no memory); the copies' gradients, summed over a
unit's images, are the unit's gradient. The operation itself is then an ordinary one among data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.trace import SPREADS, Data, Pass, Weight, plain, rule_for


class _Copies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, count: int, current: Pass, sink: Any) -> Tensor:
        """`weight` has a first axis of length 1, which becomes the images."""
        ctx.current, ctx.sink, ctx.shape = current, sink, sink.slot.shape
        return weight.expand(count, *weight.shape[1:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        spans = ctx.current.spans(dy, "a parameter given to every image")
        ctx.sink.put(torch.stack([dy[s].sum(0).view(ctx.shape) for s in spans]))
        return None, None, None, None


def copies(current: Pass, weight: Any, axes: int, count: int) -> Tensor:
    """One copy of the weight for each of `count` rows, with `axes` axes in all, as broadcasting would give."""
    missing = axes - weight.dim()
    if missing == 0 and weight.shape[0] == count != 1:
        return given(current, weight)
    if missing < 0 or (missing == 0 and weight.shape[0] != 1):
        raise _not_given(current, weight)
    lifted = plain(weight).reshape((1,) * missing + tuple(weight.shape))
    return _Copies.apply(lifted, count, current, current.sink(weight))


def given(current: Pass, weight: Any) -> Tensor:
    """The copies of a parameter that was expanded or repeated to one for each image."""
    _, func, args, _ = current.made.get(id(weight), (None, None, (), {}))
    if func not in SPREADS or not isinstance(args[0], Weight):
        raise _not_given(current, weight)
    original, wanted = args[0], tuple(weight.shape)
    if original.dim() == len(wanted) and original.shape[0] != 1:
        raise _not_given(current, weight)
    each = copies(current, original, len(wanted), wanted[0])
    if func is Tensor.repeat:
        return each.repeat(1, *(w // s for w, s in zip(wanted[1:], each.shape[1:], strict=True))).as_subclass(Data)
    return each.expand(wanted).as_subclass(Data)


def _not_given(current: Pass, weight: Any) -> UnsafeLayer:
    return UnsafeLayer(
        f"{current.name_of(weight)} has values for single places of the batch, or was changed after it was expanded to "
        "the images. Fix: give it a first axis of length 1, and expand it last; a constant that it meets, such as a "
        "first state of zeros, must be made from the images, by x.new_zeros(...) and not by torch.zeros(...)."
    )


_JOINING = (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.where, torch.addcmul)
_METHODS: tuple[str, ...] = (
    "add",
    "sub",
    "mul",
    "div",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
)
_METHODS += ("__truediv__", "__rtruediv__", "rsub", "add_", "sub_", "mul_", "div_", "__iadd__", "__imul__", "__isub__")
_METHODS += ("maximum", "minimum", "where", "addcmul", "true_divide", "multiply", "subtract", "divide")


@rule_for(*_JOINING, *(getattr(Tensor, m) for m in _METHODS if hasattr(Tensor, m)))
def join(current: Pass, func: Any, *args: Any, **kwargs: Any) -> Any:
    data = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Data)]
    axes = max(t.dim() for t in data)
    first = next(t for t in data if t.dim() == axes)
    count = first.shape[0]
    current.spans(first, f"{func.__name__} with a parameter")
    args, kwargs = tree_map_only(Weight, lambda w: copies(current, w, axes, count), (args, kwargs))
    return func(*plain(args), **plain(kwargs))


@rule_for(torch.cat, torch.concat, torch.stack)
def beside(current: Pass, func: Any, tensors: Any, dim: int = 0, **kwargs: Any) -> Any:
    """Parameters that were expanded to one for each image, put beside the images' own values."""
    axes = next(t for t in tensors if isinstance(t, Data)).dim()
    if dim % (axes + (func is torch.stack)) == 0:
        raise UnsafeLayer("a parameter is put beside the images along the batch. Fix: another axis.")
    each = [given(current, t) if isinstance(t, Weight) else t for t in tensors]
    return func(plain(each), dim, **kwargs)
