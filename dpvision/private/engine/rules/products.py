"""Matrix products in which a unit's rows have the same bits wherever they lie and whatever lies next to them.

The libraries choose kernels by shape, and treat what is left over at an edge differently from the rest. A kernel for
few columns rounds a row by its place in the matrix, or by where it starts in memory. So matrices get blank columns (and
rows) until no such kernel is chosen. How many that takes was found by trial over thousands of shapes on one processor
with AVX-512, and tests/private/engine/test_place.py repeats it; `certify` tries the very model before each charge.

    float32    at least 16 columns; a multiple of 16 where a matrix of its own has few rows or columns
    float64    a multiple of 16 rows and columns, the second factor never transposed
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Matrix products give a row the same bits whatever the other rows are, if there are at least this many.
LEAST_ROWS = 32
# Numbers that a kernel takes at once.
LANES = 16


def matrix_product(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix over the last axis, each row with the same bits whatever the batch is; never a view."""
    width, columns = matrix.shape
    wide = x.dtype == torch.float64
    flat = x.reshape(-1, width).contiguous()
    count = len(flat)
    more_rows = max(0, LEAST_ROWS - count)
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


def product(a: Tensor, b: Tensor) -> Tensor:
    """(..., m, k) @ (..., k, n), where each matrix belongs to one unit and has the same bits in any place."""
    rows, columns = a.shape[-2], b.shape[-1]
    if a.shape[-1] == 1:
        return a * b  # one multiplication, one rounding
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


class Product(torch.autograd.Function):
    """`product` with the same promise for both gradients; the axes in front of the last two must be the same."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        of_a = product(dy, b.mT) if ctx.needs_input_grad[0] else None
        of_b = product(a.mT, dy) if ctx.needs_input_grad[1] else None
        return of_a, of_b
