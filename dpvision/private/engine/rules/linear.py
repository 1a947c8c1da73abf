"""Linear layers and matrix products: y = x W' + b, and a unit's dW is D'X over all rows of its views.

A unit's rows have the same bits at any position and for any other rows. Libraries choose kernels by shape and treat the
remainder at an edge differently, so matrices are padded with zero columns (and rows) until no such kernel is chosen.
The required padding was found by tests over thousands of shapes on processors with AVX-512, which
tests/private/engine/test_place.py repeats; `certify` tests the actual model before each charge.

    float32, oneDNN      at least 2 rows
    float32, otherwise   at least 16 columns; a multiple of 16 if a unit's own matrix has few rows or columns
    float64              a multiple of 16 rows and columns, and the second factor is never transposed

oneDNN's products in float32 depend least on the shape and are the fastest: twice as fast as MKL's on AMD's processors,
where MKL does not use AVX-512.

Layers with many inputs and few outputs, such as heads on features, multiply PIECE rows at a time: with a row for each
record of a large data set, oneDNN gave a row different bits for different numbers of rows.

On an accelerator, passes of one size replace all this (pass_size.py), and the gradients of all units are one batched
product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.models.device import HAS_ONEDNN, has_fast_product, product
from dpvision.private.engine.exact import norms_of_blocks
from dpvision.private.engine.sinks import Sink
from dpvision.private.engine.trace import ALWAYS, Data, Pass, Spans, align, per_unit, plain, rule_for

# Products with fewer multiplications and numbers than these are computed for many units at once.
SMALL, SMALL_RESULT = 1 << 19, 1 << 16
# With at least this many rows, a product gives a row the same bits for any other rows.
MIN_ROWS, MIN_ROWS_ONEDNN = 32, 2
# The number of values that a kernel processes at once.
LANES = 16
# A layer with at least this many inputs and at most this many outputs multiplies this many rows at a time.
MANY_INPUTS, FEW_OUTPUTS, PIECE = 1024, 64, 256
ONEDNN = HAS_ONEDNN
# Devices that multiply bfloat16 numbers and accumulate in float32; others multiply the rounded numbers as float32.
MULTIPLIES_BF16 = ("cuda", "xpu")


def multiply(a: Tensor, b: Tensor, bf16: bool) -> Tensor:
    """Return (..., m, k) @ (..., k, n) on an accelerator; with `bf16`, for factors that are already rounded."""
    if not bf16 or a.dtype != torch.float32 or a.device.type not in MULTIPLIES_BF16:
        return a @ b
    front = a.shape[:-2]
    a, b = (t.bfloat16().reshape(-1, *t.shape[-2:]) for t in (a, b))
    return torch.bmm(a, b, out_dtype=torch.float32).unflatten(0, front or (1,))[... if front else 0]


def uses_onednn(x: Tensor) -> bool:
    """Whether products of this tensor are computed by oneDNN."""
    return ONEDNN and has_fast_product(x)


def matrix_product(
    x: Tensor, matrix: Tensor, bf16: bool = False, bias: Tensor | None = None, *, norms: list[Tensor] | None = None
) -> Tensor:
    """Return x @ matrix over the last axis (+ bias), each row with the same bits in any batch; never a view.

    Rows that are multiplied in pieces append the norms of their blocks to `norms`, while they are in the cache.
    """
    if uses_onednn(x) and x.numel() and matrix.numel():
        flat = x.reshape(-1, len(matrix))
        missing = max(0, MIN_ROWS_ONEDNN - len(flat))
        if len(matrix) >= MANY_INPUTS and matrix.shape[1] <= FEW_OUTPUTS:
            y = _product_in_pieces(flat, matrix, bias, norms)
        elif missing:
            y = product(F.pad(flat, (0, 0, 0, missing)), matrix.T, bias)[:-missing].clone()
        else:
            y = product(flat, matrix.T, bias)
        return torch.ops.aten._unsafe_view(y, [*x.shape[:-1], matrix.shape[1]])
    y = _padded_product(x, matrix, bf16)
    return y if bias is None else y + bias


def _padded_product(x: Tensor, matrix: Tensor, bf16: bool) -> Tensor:
    width, columns = matrix.shape
    if x.device.type != "cpu":
        y = multiply(x.reshape(-1, width), matrix, bf16)
        return torch.ops.aten._unsafe_view(y, [*x.shape[:-1], columns])
    wide = x.dtype == torch.float64
    flat = x.reshape(-1, width).contiguous()
    count = len(flat)
    more_rows = max(0, MIN_ROWS - count)
    more_rows += -(count + more_rows) % LANES if wide else 0
    more_columns = -columns % LANES if wide else max(0, LANES - columns)
    if more_rows:
        flat = F.pad(flat, (0, 0, 0, more_rows))
    if more_columns:
        matrix = F.pad(matrix, (0, more_columns))
    elif wide:
        matrix = matrix.contiguous()
    y = x.new_empty(*x.shape[:-1], columns)
    if more_rows or more_columns:
        y.view(-1, columns).copy_((flat @ matrix)[:count, :columns])
    else:
        torch.mm(flat, matrix, out=y.view(-1, columns))
    return y


def _product_in_pieces(rows: Tensor, matrix: Tensor, bias: Tensor | None, norms: list[Tensor] | None) -> Tensor:
    """Return rows @ matrix (+ bias) in products of one size, padded with zero rows and columns."""
    columns = matrix.shape[1]
    others = F.pad(matrix.T, (0, 0, 0, -columns % LANES)).contiguous()
    y = rows.new_empty(len(rows), columns)
    for piece, result in zip(rows.split(PIECE), y.split(PIECE), strict=True):
        full = F.pad(piece, (0, 0, 0, PIECE - len(piece))) if len(piece) < PIECE else piece
        result.copy_(product(full, others)[: len(piece), :columns])
        if norms is not None:
            norms.append(norms_of_blocks(piece))
    return y if bias is None else y.add_(bias)


def batched_product(a: Tensor, b: Tensor, bf16: bool = False) -> Tensor:
    """Return (..., m, k) @ (..., k, n), where each matrix belongs to one unit and has the same bits at any position."""
    rows, columns = a.shape[-2], b.shape[-1]
    if a.shape[-1] == 1:
        return a * b  # one multiplication, one rounding
    if a.device.type != "cpu":
        return multiply(a, b, bf16)
    if a.dtype == torch.float64:
        more_rows, more_columns, b = -rows % LANES, -columns % LANES, b.contiguous()
    else:
        more_rows, more_columns = 0, -columns % LANES if min(rows, columns) < LANES else 0
    if more_rows:
        a = F.pad(a, (0, 0, 0, more_rows))
    if more_columns:
        b = F.pad(b, (0, more_columns))
    y = a @ b
    return y[..., :rows, :columns].contiguous() if more_rows or more_columns else y


class _BatchedProduct(torch.autograd.Function):
    """`batched_product` for the result and both gradients; all axes but the last two must be equal."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, current: Pass) -> Tensor:
        a, b, ctx.current = current.rounded(a), current.rounded(b), current
        ctx.save_for_backward(a, b)
        return batched_product(a, b, current.bf16)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        (a, b), dy, bf16 = ctx.saved_tensors, ctx.current.rounded(dy), ctx.current.bf16
        of_a = batched_product(dy, b.mT, bf16) if ctx.needs_input_grad[0] else None
        of_b = batched_product(a.mT, dy, bf16) if ctx.needs_input_grad[1] else None
        return of_a, of_b, None


def product_of_data(current: Pass, a: Any, b: Any) -> Any:
    """Multiply matrices of data by the rule for batched products."""
    return _BatchedProduct.apply(plain(a), plain(b), current).as_subclass(Data)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, current: Pass, sinks: Any) -> Tensor:
        x, weight = current.rounded(x), current.rounded(weight)
        ctx.save_for_backward(x if sinks[0] else None, weight)
        ctx.current, ctx.sinks, ctx.norms = current, sinks, None
        if sinks[0] and sinks[0].may_keep_factors() and x.numel() == x.shape[-1] * len(current.views):
            ctx.norms = []
        return matrix_product(x, weight.T, current.bf16, bias, norms=ctx.norms)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        of_weight, of_bias = ctx.sinks
        spans, bf16 = ctx.current.spans(dy, "linear"), ctx.current.bf16
        if of_bias:
            of_bias.put(sums_by_unit(dy.flatten(1, -2) if dy.dim() > 2 else dy.unsqueeze(1), spans))
        dy = ctx.current.rounded(dy)
        if of_weight:
            weight_gradients(of_weight, x, dy, spans, norms=ctx.norms)
        return (matrix_product(dy, weight, bf16) if ctx.needs_input_grad[0] else None), None, None, None, None


def weight_gradients(
    sink: Sink,
    x: Tensor,
    dy: Tensor,
    spans: Spans,
    last: tuple[int, ...] = (),
    norms: list[Tensor] | None = None,
) -> None:
    """Compute each unit by a method chosen by its own size, so that the rest of the batch does not matter.

    The weight has shape (outputs, inputs, *last), where the axes `last` have length 1. `norms` has those of the blocks
    of x, if they were already computed.
    """
    inputs, outputs, places = x.shape[-1], dy.shape[-1], x.shape[1:-1].numel()
    if sink.may_keep_factors() and not last and len(x) * places == len(spans):
        sink.slot.keep_factors(x.reshape(-1, inputs), dy.reshape(-1, outputs), torch.cat(norms) if norms else None)
        return

    def one(e: int) -> Tensor:
        d, a = (t[spans[e]].reshape(-1, t.shape[-1]) for t in (dy, x))
        return product_of_unit(d, a).view(outputs, inputs, *last)

    def together(units: list[int], size: int) -> Tensor:
        d, a = (_stack(t, spans, units, size * places) for t in (dy, x))
        return batched_product(d.mT, a, sink.current.bf16).view(len(units), outputs, inputs, *last)

    if sink.current.batched:
        sink.put(together(list(range(len(spans))), len(x) // len(spans)))
        return
    groups = spans.by_size
    most = SMALL if inputs * outputs <= SMALL_RESULT else 0
    small = {size: units for size, units in groups.items() if size * places * inputs * outputs < most}
    if not small:
        sink.write(one)
    elif len(groups) == 1:
        sink.put(together(*next((units, size) for size, units in small.items())))
    else:
        rows = x.new_empty(len(spans), outputs, inputs, *last)
        for size, units in groups.items():
            if size in small:
                rows[units] = together(units, size)
            else:
                for e in units:
                    rows[e] = one(e)
        sink.put(rows)


def product_of_unit(d: Tensor, a: Tensor) -> Tensor:
    """Return D'A for the rows of one unit, as a new tensor, since rounding may depend on addresses."""
    return product(d.T, a.contiguous().T) if uses_onednn(d) and a.numel() and d.numel() else align(d).T @ align(a)


def _stack(values: Tensor, spans: Spans, units: list[int], size: int) -> Tensor:
    """Stack (rows, ..., p) as (units, size, p), always in the same memory order, on which rounding depends."""
    values = torch.cat([values[spans[e]] for e in units]) if len(units) < len(spans) else values.contiguous()
    return values.reshape(len(units), size, values.shape[-1])


def sums_by_unit(values: Tensor, spans: Spans) -> Tensor:
    """Sum (rows, T, p) over each unit's rows and over T, to (units, p)."""
    if values.device.type != "cpu":  # all units have the same number of rows there
        return values.reshape(len(spans), -1, values.shape[-1]).sum(1)
    groups = spans.by_size
    parts = {s: _stack(values, spans, units, s * values.shape[1]).sum(1) for s, units in groups.items()}
    if len(parts) == 1:
        return next(iter(parts.values()))
    sums = values.new_empty(len(spans), values.shape[-1])
    for size, units in groups.items():
        sums[units] = parts[size]
    return sums


ALWAYS |= {F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}


@rule_for(F.linear)
def linear(current: Pass, func: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """Apply a linear layer whose input is data and whose weight and bias are not."""
    if not isinstance(input, Data) or isinstance(weight, Data) or isinstance(bias, Data) or weight.dim() != 2:
        return per_unit(current, func, input, weight, bias)
    current.spans(input, f"linear layer with {current.name_of(weight)}")
    sinks = (current.sink(weight), current.sink(bias))
    return _Linear.apply(plain(input), plain(weight), plain(bias), current, sinks)


@rule_for(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
def matmul(current: Pass, func: Any, input: Any, other: Any) -> Any:
    """Multiply data by a matrix, like a linear layer, or data by data with the same leading axes."""
    if isinstance(input, Data) and not isinstance(other, Data) and other.dim() == 2 and input.dim() > 1:
        return linear(current, F.linear, input, other.T)
    if isinstance(input, Data) and isinstance(other, Data) and input.dim() == other.dim() > 2:
        front = input.shape[:-2]
        if front == other.shape[:-2] and input.shape[-1] == other.shape[-2]:
            return product_of_data(current, input, other)
    return per_unit(current, func, input, other)
