"""y = x W' + b for inputs with any number of axes: dW of a unit is D'X over all rows of its views."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.private.engine.aligned import aligned
from dpvision.private.engine.rules.products import Product, matrix_product, product
from dpvision.private.engine.trace import ALWAYS, RULES, Data, Pass, Sink, plain, rule_for

# Products of fewer multiplications than this are made for many units at once.
SMALL = 1 << 16


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
    """Each unit in the way that suits its own size, so that what else is in the batch does not matter."""
    inputs, outputs, places = x.shape[-1], dy.shape[-1], x.shape[1:-1].numel()
    if sink.may_keep_factors() and len(x) * places == len(spans):
        sink.slot.keep_factors(x.reshape(-1, inputs), dy.reshape(-1, outputs))
        return

    def one(e: int, row: Tensor, add: bool) -> None:
        d, a = (aligned(t[spans[e]].reshape(-1, t.shape[-1])) for t in (dy, x))
        torch.addmm(row, d.T, a, beta=1.0 if add else 0.0, out=row)

    def together(units: list[int], size: int) -> Tensor:
        d, a = (_stacked(t, spans, units, size * places) for t in (dy, x))
        return product(d.mT, a)

    groups = _by_size(spans)
    small = {size: units for size, units in groups.items() if size * places * inputs * outputs < SMALL}
    if not small:
        sink.write(one)
    elif len(groups) == 1:
        sink.put(together(*next((units, size) for size, units in small.items())))
    else:
        rows = x.new_empty(len(spans), outputs, inputs)
        for size, units in groups.items():
            if size in small:
                rows[units] = together(units, size)
            else:
                for e in units:
                    alone = torch.empty_like(rows[e])  # from the start of a block: a product rounds by where it goes
                    one(e, alone, add=False)
                    rows[e] = alone
        sink.put(rows)


def _by_size(spans: list[slice]) -> dict[int, list[int]]:
    """The units of each number of rows."""
    found: dict[int, list[int]] = {}
    for e, span in enumerate(spans):
        found.setdefault(span.stop - span.start, []).append(e)
    return found


def _stacked(values: Tensor, spans: list[slice], units: list[int], size: int) -> Tensor:
    """(rows, ..., p) -> (units, size, p), always in the same order of memory: sums round by it."""
    values = torch.cat([values[spans[e]] for e in units]) if len(units) < len(spans) else values.contiguous()
    return values.reshape(len(units), size, values.shape[-1])


def sums_by_unit(values: Tensor, spans: list[slice]) -> Tensor:
    """(rows, T, p) -> (units, p): the sum over each unit's rows and over T."""
    groups = _by_size(spans)
    parts = {s: _stacked(values, spans, units, s * values.shape[1]).sum(1) for s, units in groups.items()}
    if len(parts) == 1:
        return next(iter(parts.values()))
    sums = values.new_empty(len(spans), values.shape[-1])
    for size, units in groups.items():
        sums[units] = parts[size]
    return sums


ALWAYS |= {F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}


@rule_for(F.linear)
def linear(current: Pass, func: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    if not isinstance(input, Data) or isinstance(weight, Data) or isinstance(bias, Data) or weight.dim() != 2:
        return otherwise(current, func, input, weight, bias)
    current.spans(input, f"linear layer with {current.name_of(weight)}")
    sinks = (current.sink(weight), current.sink(bias))
    return _Linear.apply(plain(input), plain(weight), plain(bias), current, sinks)


def otherwise(current: Pass, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Unusual roles: by autograd for each unit."""
    return RULES["anything"](current, func, *args, **kwargs)


@rule_for(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
def matmul(current: Pass, func: Any, input: Any, other: Any) -> Any:
    if isinstance(input, Data) and not isinstance(other, Data) and other.dim() == 2 and input.dim() > 1:
        return linear(current, F.linear, input, other.T)
    if isinstance(input, Data) and isinstance(other, Data) and input.dim() == other.dim() > 2:
        front = input.shape[:-2]
        if front == other.shape[:-2] and input.shape[-1] == other.shape[-2]:
            return Product.apply(plain(input), plain(other))
    return otherwise(current, func, input, other)
