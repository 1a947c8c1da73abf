"""What has no rule of its own: the operation is differentiated once per unit, by autograd. Right, but slow."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpvision.errors import UnsafeLayer
from dpvision.mechanism.clip.trace import RULES, Data, Pass, Weight, plain

_warned: set[str] = set()


class _Anything(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, func: Any, leaves: list[Any], spec: Any, current: Pass, sinks: Any, *tensors: Tensor) -> Any:
        """`tensors` are the data and the weights among `leaves`, given once more so that autograd sees them."""
        ctx.func, ctx.leaves, ctx.spec, ctx.current, ctx.sinks = func, leaves, spec, current, sinks
        args, kwargs = tree_unflatten([plain(leaf) for leaf in leaves], spec)
        return func(*args, **kwargs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        data = [i for i, leaf in enumerate(ctx.leaves) if isinstance(leaf, Data)]
        weights = [i for i, leaf in enumerate(ctx.leaves) if isinstance(leaf, Weight)]
        spans = {i: ctx.current.spans(ctx.leaves[i], str(ctx.func)) for i in data}
        out_spans = ctx.current.spans(dy, str(ctx.func))
        of_data: dict[int, list[Tensor]] = {i: [] for i in data}
        of_weights: dict[int, list[Tensor]] = {i: [] for i in weights}
        for e, span in enumerate(out_spans):
            leaves = [plain(leaf) for leaf in ctx.leaves]
            for i in data:
                leaves[i] = leaves[i][spans[i][e]].detach()
                leaves[i].requires_grad_(leaves[i].is_floating_point())
            for i in weights:
                leaves[i] = leaves[i].detach().requires_grad_()
            with torch.enable_grad():
                args, kwargs = tree_unflatten(leaves, ctx.spec)
                out = ctx.func(*args, **kwargs)
            wanted = [i for i in (*data, *weights) if leaves[i].requires_grad]
            found = torch.autograd.grad(out, [leaves[i] for i in wanted], dy[span], allow_unused=True)
            for i, gradient in zip(wanted, found, strict=True):
                value = torch.zeros_like(leaves[i]) if gradient is None else gradient
                (of_data if i in of_data else of_weights)[i].append(value)
        for i in weights:
            ctx.sinks[i].put(torch.stack(of_weights[i]))
        joined = {i: torch.cat(parts) if parts else None for i, parts in of_data.items()}
        return (None,) * 5 + tuple(joined.get(i) for i in sorted((*data, *weights)))


def anything(current: Pass, func: Any, *args: Any, **kwargs: Any) -> Any:
    leaves, spec = tree_flatten((args, kwargs))
    name = getattr(func, "__name__", str(func))
    for leaf in leaves:
        if isinstance(leaf, Data):
            current.spans(leaf, f"{name} with a parameter")
    if name.endswith("_") and not name.endswith("__"):
        raise UnsafeLayer(f"{name} changes a tensor in place with a parameter. Fix: use the form without underscore.")
    sinks = {i: current.sink(leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, Weight)}
    tensors = [plain(leaf) for leaf in leaves if isinstance(leaf, Data | Weight)]
    if name not in _warned:
        _warned.add(name)
        names = ", ".join(current.name_of(leaf) for leaf in leaves if isinstance(leaf, Weight))
        warnings.warn(
            f"{name} ({names}) has no rule of its own: it is done once per unit, which is slow.", stacklevel=2
        )
    out = _Anything.apply(func, leaves, spec, current, sinks, *tensors)
    if not isinstance(out, Tensor):
        raise UnsafeLayer(f"{name} with a parameter gives several results, for which there is no rule.")
    return out


RULES["anything"] = anything
