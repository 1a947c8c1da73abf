"""Embedding: a unit's gradient sums its output gradients in the rows that its own indices select."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.trace import ALWAYS, Data, Pass, per_unit, plain, rule_for


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor, padding: int, current: Pass, sink: Any) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows, ctx.padding, ctx.current, ctx.sink = weight.shape[0], padding, current, sink
        return F.embedding(indices, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        spans = ctx.current.spans(dy, "Embedding")

        def one(e: int) -> Tensor:
            where = indices[spans[e]]
            return torch.ops.aten.embedding_dense_backward(dy[spans[e]], where, ctx.rows, ctx.padding, False)

        if ctx.sink is not None and ctx.current.batched:
            ctx.sink.put(_all_units(dy, ctx.current.by_unit(indices), ctx.rows, ctx.padding))
        elif ctx.sink is not None:
            ctx.sink.write(one)
        return None, None, None, None, None


def _all_units(dy: Tensor, indices: Tensor, rows: int, padding: int) -> Tensor:
    """Compute the gradients of all units as those of one table in which each unit has its own rows."""
    units = len(indices)
    first = torch.arange(0, units * rows, rows, device=indices.device).view(-1, *[1] * (indices.dim() - 1))
    places = (indices + first).flatten(0, 1)
    gradients = torch.ops.aten.embedding_dense_backward(dy, places, units * rows, -1, False).view(units, rows, -1)
    if padding >= 0:
        gradients[:, padding] = 0.0
    return gradients


ALWAYS |= {F.embedding}


@rule_for(F.embedding)
def embedding(
    current: Pass,
    func: Any,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Look up rows by indices that are data."""
    if max_norm is not None or scale_grad_by_freq:
        raise UnsafeLayer(
            f"Embedding with {current.name_of(weight)}: max_norm and scale_grad_by_freq make the weights depend on the "
            "batch as a whole. Fix: remove them."
        )
    if not isinstance(input, Data) or isinstance(weight, Data):
        return per_unit(current, func, input, weight, padding_idx)
    current.spans(input, f"Embedding with {current.name_of(weight)}")
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return _Embedding.apply(plain(input), plain(weight), padding, current, current.sink(weight))
