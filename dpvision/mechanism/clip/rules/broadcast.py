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
from dpvision.mechanism.clip.trace import SPREADS, Data, Pass, Weight, plain, rule_for


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
    """One copy of the weight for each of `count` rows, with `axes` axes in all."""
    missing = axes - weight.dim()
    if missing < 0 or (missing == 0 and weight.shape[0] != 1):
        raise UnsafeLayer(
            f"{current.name_of(weight)}, of shape {tuple(weight.shape)}, has values for single places of the batch. "
            "Fix: give it a first axis of length 1."
        )
    lifted = plain(weight).reshape((1,) * missing + tuple(weight.shape))
    return _Copies.apply(lifted, count, current, current.sink(weight))


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
    axes, count = max(t.dim() for t in data), data[0].shape[0]
    args, kwargs = tree_map_only(Weight, lambda w: copies(current, w, axes, count), (args, kwargs))
    return func(*plain(args), **plain(kwargs))


@rule_for(torch.cat, torch.concat, torch.stack)
def beside(current: Pass, func: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    raise UnsafeLayer(
        "a parameter is put beside the images by torch.cat without having been expanded to their number. "
        "Fix: parameter.expand(len(images), ...) first."
    )


def spread(current: Pass, func: Any, weight: Any, *sizes: Any) -> Any:
    """expand, repeat: only where the first axis becomes the images."""
    wanted = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    wanted = tuple(wanted.shape) if isinstance(wanted, Tensor) else tuple(wanted)
    lead = weight.shape[0] if weight.dim() == len(wanted) else 1
    if not wanted or lead != 1 or wanted[0] != current.images or not isinstance(weight, Weight):
        return None
    each = copies(current, weight, len(wanted), current.images)
    rest = tuple(wanted[1:])
    if func is Tensor.repeat:
        return each.repeat(1, *rest)
    return each.expand(current.images, *rest)


SPREADS.update(dict.fromkeys((Tensor.expand, Tensor.repeat, Tensor.broadcast_to, torch.broadcast_to), spread))
