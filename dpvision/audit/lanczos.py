"""The largest eigenvalues of a symmetric matrix that is known by its products with vectors alone.

Block Lanczos with full reorthogonalisation (Golub and Underwood 1977) and thick restarts (Wu and Simon 2000). Vectors
are rows. A block of as many rows as eigenvalues are asked for finds repeated ones too, which a single row cannot: the
loss of a linear classifier with zero weights has each eigenvalue once less than there are classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError

Product = Callable[[Tensor], Tensor]  # (rows, size) -> (rows, size), each row v becomes H v; float64
Progress = Callable[[int, int], None]

BLOCKS = 10  # rows that are kept between restarts, in blocks
DEPENDENT = 1e-10  # a row that loses all but this share of its length was in the span of the others
NOISE = 1e-6  # of the largest eigenvalue: products in float32 are no better


@dataclass(frozen=True)
class Eigenvalues:
    """The largest ones, in falling order; within `errors[i]` of `values[i]` there is a true eigenvalue."""

    values: tuple[float, ...]
    errors: tuple[float, ...]
    lowest: float  # the smallest that was met: the most negative curvature
    lowest_error: float
    vectors: Tensor  # (top, size), orthonormal
    products: int
    converged: bool


def largest(
    product: Product,
    size: int,
    *,
    top: int = 5,
    tolerance: float = 1e-3,
    most: int = 500,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> Eigenvalues:
    """The `top` algebraically largest, each to `tolerance` of itself or as far as `most` products lead."""
    if not 1 <= top <= size:
        raise ConfigError(f"there are {size:,} weights, so 1 to {size:,} eigenvalues, not {top}. Fix: --top.")
    rng = torch.Generator().manual_seed(seed)
    room = min(size, BLOCKS * top)
    basis = torch.zeros(room, size, dtype=torch.float64, device=device)
    small = torch.zeros(room, room, dtype=torch.float64, device=device)  # basis H basis'
    block = _orthonormal(_drawn(top, size, rng, basis), basis[:0], rng)
    used = count = 0
    while True:
        before, count, used = count, count + len(block), used + len(block)
        basis[before:count] = block
        known = basis[:count]
        images = product(block)
        if not bool(torch.isfinite(images).all()):
            raise DataError("second derivatives of the loss are not finite at these weights. Fix: other weights.")
        across = images @ known.T
        across[:, before:] = (across[:, before:] + across[:, before:].T) / 2
        small[before:count, :count], small[:count, before:count] = across, across.T
        rest = images - across @ known
        values, inner = torch.linalg.eigh(small[:count, :count])
        # H y = theta y + (the part of y in the last block) rest, for each Ritz vector y.
        errors = (inner[before:].T @ rest).norm(dim=1)
        near = torch.maximum(tolerance * values.abs(), NOISE * values.abs().max())
        converged = bool((errors <= near)[-top:].all())
        progress(min(used, most), most)
        if converged or used >= most or count == size:
            break
        block = _orthonormal(rest[: size - count], known, rng)
        if count + len(block) > room:
            kept = [*range(2), *range(count - 2 * top, count)]
            basis[: len(kept)] = inner[:, kept].T @ known
            small.zero_()
            count = len(kept)
            small[:count, :count] = torch.diag(values[kept])
    progress(most, most)
    best = list(range(count - 1, count - top - 1, -1))
    return Eigenvalues(
        values=tuple(values[best].tolist()),
        errors=tuple(errors[best].tolist()),
        lowest=float(values[0]),
        lowest_error=float(errors[0]),
        vectors=inner[:, best].T @ known,
        products=used,
        converged=converged or count == size,
    )


def _orthonormal(rows: Tensor, basis: Tensor, rng: torch.Generator) -> Tensor:
    """Rows of length 1, at right angles to each other and to the basis; a dependent one gives way to a random one."""
    found = basis.new_zeros(len(rows), basis.shape[1])
    longest = float(rows.norm(dim=1).max())
    for place, row in enumerate(rows):
        against, limit = found[:place], DEPENDENT * longest
        while True:
            for _ in range(2):  # once is not enough: what is left may be small, and the errors in it are not
                row = row - (row @ basis.T) @ basis
                row = row - (row @ against.T) @ against
            if float(row.norm()) > limit:
                break
            row, limit = _drawn(1, basis.shape[1], rng, basis)[0], 0.0
        row = row / row.norm()
        row = row - (row @ basis.T) @ basis - (row @ against.T) @ against
        found[place] = row / row.norm()
    return found


def _drawn(rows: int, size: int, rng: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(rows, size, generator=rng, dtype=torch.float64).to(like.device)
