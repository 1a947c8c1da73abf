"""y = x W' + b for inputs with any number of axes: dW of a unit is D'X over all rows of its views."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.mechanism.clip.trace import ALWAYS, RULES, Data, Pass, Sink, Weight, plain, rule_for

# Matrix products give a row the same bits whatever the other rows are, if there are at least this many.
LEAST_ROWS = 32


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, current: Pass, sinks: Any) -> Tensor:
        ctx.save_for_backward(x if sinks[0] else None, weight)
        ctx.current, ctx.sinks = current, sinks
        y = matrix_product(x, weight.T)
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        of_weight, of_bias = ctx.sinks
        spans = ctx.current.spans(dy, "linear")
        if of_weight:
            _weight_gradients(of_weight, x, dy, spans)
        if of_bias:
            of_bias.put(sums_by_unit(dy.flatten(1, -2) if dy.dim() > 2 else dy.unsqueeze(1), spans))
        return (matrix_product(dy, weight) if ctx.needs_input_grad[0] else None), None, None, None, None


def _weight_gradients(sink: Sink, x: Tensor, dy: Tensor, spans: list[slice]) -> None:
    views = sink.current.equal_views
    rows = (views or 1) * (x.shape[:-1].numel() // max(1, sink.current.images))
    inputs, outputs = x.shape[-1], dy.shape[-1]
    if rows == 1 and sink.may_keep_factors():
        sink.slot.keep_factors(x.reshape(-1, inputs), dy.reshape(-1, outputs))
        return
    if views and rows * inputs * outputs < 1 << 16:  # many small products: all at once
        units = len(spans)
        sink.put(torch.bmm(dy.reshape(units, -1, outputs).transpose(1, 2), x.reshape(units, -1, inputs)))
        return

    def one(e: int, row: Tensor, add: bool) -> None:
        d, a = dy[spans[e]].reshape(-1, outputs), x[spans[e]].reshape(-1, inputs)
        torch.addmm(row, d.T, a, beta=1.0 if add else 0.0, out=row)

    sink.write(one)


def matrix_product(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix over the last axis, each row with the same bits whatever the batch is.

    A single column gets a blank second one: products with a vector round the last rows otherwise.
    """
    columns = matrix.shape[1]
    if columns == 1:
        matrix = F.pad(matrix, (0, 1))
    flat = x.reshape(-1, x.shape[-1])
    missing = LEAST_ROWS - len(flat)
    if missing > 0:
        flat = F.pad(flat, (0, 0, 0, missing))
    return (flat @ matrix)[: x.shape[:-1].numel(), :columns].reshape(*x.shape[:-1], columns)


def sums_by_unit(values: Tensor, spans: list[slice]) -> Tensor:
    """(rows, T, p) -> (units, p): the sum over each unit's rows and over T."""
    if len({s.stop - s.start for s in spans}) == 1:
        return values.reshape(len(spans), -1, values.shape[-1]).sum(1)
    return torch.stack([values[s].flatten(0, 1).sum(0) for s in spans])


ALWAYS |= {F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__}


@rule_for(F.linear)
def linear(current: Pass, func: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    if not isinstance(input, Data) or isinstance(weight, Data) or isinstance(bias, Data) or weight.dim() != 2:
        return otherwise(current, func, input, weight, bias)
    current.spans(input, f"linear layer with {current.name_of(weight)}")
    sinks = (current.sink(weight), current.sink(bias))
    return _Linear.apply(plain(input), plain(weight), plain(bias), current, sinks)


def otherwise(current: Pass, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Unusual roles: by autograd for each unit, or as it is where no weight is trained."""
    if any(isinstance(a, Weight) for a in (*args, *kwargs.values())):
        return RULES["anything"](current, func, *args, **kwargs)
    return func(*plain(args), **plain(kwargs))


@rule_for(torch.matmul, Tensor.matmul, Tensor.__matmul__)
def matmul(current: Pass, func: Any, input: Any, other: Any) -> Any:
    if isinstance(input, Data) and not isinstance(other, Data) and other.dim() == 2:
        return linear(current, F.linear, input, other.T)
    return otherwise(current, func, input, other)
