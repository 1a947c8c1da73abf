"""Fallback for operations without a rule: computed and differentiated once per unit, which is correct but slow.

By construction, a unit's result is a function of that unit alone: it has the same bits at any position in any batch.
Operations whose kernels round by position are computed this way even without parameters (`BY_UNIT`).
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.rules.elementwise import copies_of_expanded
from dpvision.private.engine.trace import ALWAYS, FALLBACK, RULES, Data, Pass, Weight, images_not_first, plain

# Products, and functions of two tensors, whose kernels round a number by its position in memory.
BY_UNIT: set[Any] = {torch.einsum, torch.tensordot, torch.cdist, F.bilinear}
BY_UNIT |= {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}
BY_UNIT |= {getattr(t, n) for n in ("addmm", "baddbmm", "mv", "addmv", "inner", "atan2") for t in (torch, Tensor)}
ALWAYS |= BY_UNIT

_warned: set[str] = set()


class _PerUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, sinks: Any, *tensors: Tensor) -> Any:
        """Compute all units; `tensors` are the data and the weights of `call`, passed again for autograd."""
        ctx.call, ctx.sinks = call, sinks
        return torch.cat([call.result(call.leaves_of(e)) for e in range(call.units)])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        call: _Call = ctx.call
        both = (*call.data, *call.weights)
        gradients: dict[int, list[Tensor]] = {i: [] for i in both}
        for e, span in enumerate(call.current.spans(dy, call.name)):
            leaves = call.leaves_of(e)
            for i in both:
                leaves[i] = leaves[i].detach().requires_grad_(leaves[i].is_floating_point())
            with torch.enable_grad():
                out = call.result(leaves)
            wanted = [i for i in both if leaves[i].requires_grad]
            of_unit = torch.autograd.grad(out, [leaves[i] for i in wanted], dy[span].clone(), allow_unused=True)
            for i, gradient in zip(wanted, of_unit, strict=True):
                gradients[i].append(torch.zeros_like(leaves[i]) if gradient is None else gradient)
        for i, sink in ctx.sinks.items():
            if sink is not None:
                sink.put(torch.stack(gradients[i]))
        of_data = {i: torch.cat(gradients[i]) if gradients[i] else None for i in call.data}
        return None, None, *(of_data.get(i) for i in both)


class _Call:
    """One call of a function, made separately for each unit; `rows` are the indices of arguments with image rows."""

    def __init__(self, current: Pass, func: Any, leaves: list[Any], spec: Any, rows: list[int], name: str) -> None:
        self.current, self.name, self.units = current, name, len(current.views)
        self._func, self._leaves, self._spec = func, [plain(leaf) for leaf in leaves], spec
        self.data = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Data)]
        self.weights = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Weight)]
        self._spans = {i: current.spans(self._leaves[i], name) for i in rows}

    def leaves_of(self, unit: int) -> list[Any]:
        """Return the arguments of one unit as copies, since libraries choose kernels by where a tensor starts."""
        leaves = list(self._leaves)
        for i, spans in self._spans.items():
            leaves[i] = leaves[i][spans[unit]].clone()
        return leaves

    def result(self, leaves: list[Any]) -> Tensor:
        """Call the function with the arguments of one unit."""
        args, kwargs = tree_unflatten(leaves, self._spec)
        try:
            out = self._func(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise UnsafeLayer(
                f"{self.name} has no rule, and cannot be computed separately for each unit: "
                f"{str(error).splitlines()[0]} Fix: keep images along the first axis of every tensor that has rows for "
                "them."
            ) from error
        assert isinstance(out, Tensor)
        return out


def compute_per_unit(current: Pass, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function once per unit, and differentiate each call with autograd."""
    leaves, spec = tree_flatten((args, kwargs))
    name = getattr(func, "__name__", str(func))
    in_place = name.endswith("_") and not name.endswith("__")
    trained = [leaf for leaf in leaves if isinstance(leaf, Weight)]
    if trained:
        names = f"{name} ({', '.join(current.name_of(leaf) for leaf in trained)})"
        if in_place:
            raise UnsafeLayer(f"{names} changes a tensor in place. Fix: use the function without the underscore.")
        if name not in _warned:
            _warned.add(name)
            warnings.warn(f"{names} has no rule: it is computed once per unit, which is slow.", stacklevel=2)
        name = names
    elif in_place or current.batched:  # on an accelerator, rounding cannot vary with the size, which is fixed
        return func(*plain(args), **plain(kwargs))
    if current.measures:
        return _measure(current, func, args, kwargs, leaves, name)
    *grows, out_grows = current.image_axes_of_call(name)
    data = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Data)]
    if not out_grows or not all(grows[i] for i in data):
        if trained:
            raise images_not_first(name)
        return func(*plain(args), **plain(kwargs))
    leaves = [
        copies_of_expanded(current, w) if isinstance(w, Weight) and g else w for w, g in zip(leaves, grows, strict=True)
    ]
    rows = [i for i, g in enumerate(grows) if g]
    sinks = {i: current.sink(leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, Weight)}
    call = _Call(current, func, leaves, spec, rows, name)
    return _PerUnit.apply(call, sinks, *(plain(leaves[i]) for i in (*call.data, *call.weights)))


def _measure(current: Pass, func: Any, args: Any, kwargs: Any, leaves: list[Any], name: str) -> Any:
    """Compute all blank images of a measuring pass at once, and note which axes grow with their number."""
    out = func(*plain(args), **plain(kwargs))
    if not isinstance(out, Tensor):
        raise UnsafeLayer(f"{name} with a parameter returns several results, which no rule covers.")
    if any(isinstance(leaf, Weight) for leaf in leaves):
        for leaf in leaves:
            if isinstance(leaf, Data):
                current.spans(leaf, name)
    current.note_call(name, [t.shape[0] if isinstance(t, Tensor) and t.dim() else 0 for t in (*leaves, out)])
    return out


RULES[FALLBACK] = compute_per_unit
