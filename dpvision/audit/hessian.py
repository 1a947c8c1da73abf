"""The largest eigenvalues of the Hessian of a mean loss at given weights, and its trace.

The Hessian H is never formed: H v is the gradient of <gradient, v>, by a second backward pass. The network computes in
float32; vectors and sums are float64.

Eigenvalues are computed by block Lanczos with full reorthogonalisation (Golub and Underwood 1977) and thick restarts
(Wu and Simon 2000). Vectors are rows. A block has one row for each requested eigenvalue, so it finds repeated
eigenvalues, which a single row cannot: the Hessian of a linear classifier with zero weights has each eigenvalue
(classes - 1) times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpvision.errors import ConfigError, DataError
from dpvision.private.engine import Loss

Product = Callable[[Tensor], Tensor]  # (rows, size) -> (rows, size), each row v becomes H v; float64
OnProgress = Callable[[int, int], None]

PHYSICAL = 64  # images in one pass
PROBES_AT_A_TIME = 8  # probes that share a forward pass
BLOCKS = 10  # size of the basis between restarts, in blocks
DEPENDENT = 1e-10  # a row is dependent on others if at most this share of its norm is orthogonal to them
NOISE = 1e-6  # accuracy of products in float32, relative to the largest eigenvalue


@dataclass(frozen=True)
class Eigenvalues:
    """The largest eigenvalues, descending; a true eigenvalue is within `errors[i]` of `values[i]`."""

    values: tuple[float, ...]
    errors: tuple[float, ...]
    lowest: float  # the smallest value of the last basis: the most negative curvature
    lowest_error: float
    vectors: Tensor  # (top, size), orthonormal
    products: int
    converged: bool


@dataclass(frozen=True)
class Trace:
    """An unbiased estimate of the trace, with its standard error."""

    value: float
    error: float
    probes: int


@dataclass(frozen=True)
class Curvature:
    """Eigenvalues and trace of one network on one data set (Table 4 of Park et al.)."""

    eigenvalues: Eigenvalues
    trace: Trace
    weights: int

    @property
    def ratio(self) -> float | None:
        """lambda_1 / lambda_top: large if a few directions are far steeper than all others; None unless positive."""
        values = self.eigenvalues.values
        return values[0] / values[-1] if values[-1] > 0 else None


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of a model; refuse a model without any."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError(
            "the model has no trainable parameter. Fix: call requires_grad_() on the parameters of interest."
        )
    return parameters


def hessian(model: nn.Module, loss: Loss, images: Tensor, targets: Tensor, *, physical: int = PHYSICAL) -> Product:
    """Return a function from rows v to rows H v, where H is the Hessian of the mean loss over all images."""
    parameters = trainable(model)
    sizes = [p.numel() for p in parameters]

    def product(rows: Tensor) -> Tensor:
        total = torch.zeros_like(rows)
        for start in range(0, len(images), physical):
            part = slice(start, start + physical)
            # Fused attention has no second derivative.
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                mean = loss(model(images[part]), targets[part]).sum() / len(images)
                firsts = torch.autograd.grad(mean, parameters, create_graph=True, materialize_grads=True)
                curved = [i for i, first in enumerate(firsts) if first.requires_grad]
                for row, out in zip(rows, total, strict=True):
                    direction = [v.view_as(p).to(p) for v, p in zip(row.split(sizes), parameters, strict=True)]
                    seconds = torch.autograd.grad(
                        [firsts[i] for i in curved],
                        parameters,
                        [direction[i] for i in curved],
                        retain_graph=True,
                        materialize_grads=True,
                    )
                    out += torch.cat([s.detach().flatten() for s in seconds]).double()
        return total

    return product


def largest_eigenvalues(
    product: Product,
    size: int,
    *,
    top: int = 5,
    tolerance: float = 1e-3,
    most: int = 500,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: OnProgress = lambda *_: None,
) -> Eigenvalues:
    """Compute the `top` algebraically largest eigenvalues to a relative `tolerance`, with at most `most` products."""
    if not 1 <= top <= size:
        raise ConfigError(f"--top {top}: the model has {size:,} weights, so it must be from 1 to {size:,}.")
    rng = torch.Generator().manual_seed(seed)
    capacity = min(size, BLOCKS * top)
    basis = torch.zeros(capacity, size, dtype=torch.float64, device=device)
    small = torch.zeros(capacity, capacity, dtype=torch.float64, device=device)  # basis H basis'
    block = _orthonormal(_normal_rows(top, size, rng, basis), basis[:0], rng)
    products = count = 0
    while True:
        before, count, products = count, count + len(block), products + len(block)
        basis[before:count] = block
        known = basis[:count]
        images = product(block)
        if not bool(torch.isfinite(images).all()):
            raise DataError("the Hessian of the loss is not finite at these weights. Fix: use other weights.")
        across = images @ known.T
        across[:, before:] = (across[:, before:] + across[:, before:].T) / 2
        small[before:count, :count], small[:count, before:count] = across, across.T
        rest = images - across @ known
        values, inner = torch.linalg.eigh(small[:count, :count])
        # H y = theta y + (the part of y in the last block) rest, for each Ritz vector y.
        errors = (inner[before:].T @ rest).norm(dim=1)
        near = torch.maximum(tolerance * values.abs(), NOISE * values.abs().max())
        converged = bool((errors <= near)[-top:].all())
        progress(min(products, most), most)
        if converged or products >= most or count == size:
            break
        block = _orthonormal(rest[: size - count], known, rng)
        if count + len(block) > capacity:
            restart = [*range(2), *range(count - 2 * top, count)]
            basis[: len(restart)] = inner[:, restart].T @ known
            small.zero_()
            count = len(restart)
            small[:count, :count] = torch.diag(values[restart])
    progress(most, most)
    best = list(range(count - 1, count - top - 1, -1))
    return Eigenvalues(
        values=tuple(values[best].tolist()),
        errors=tuple(errors[best].tolist()),
        lowest=float(values[0]),
        lowest_error=float(errors[0]),
        vectors=inner[:, best].T @ known,
        products=products,
        converged=converged or count == size,
    )


def _orthonormal(rows: Tensor, basis: Tensor, rng: torch.Generator) -> Tensor:
    """Make the rows orthonormal, and orthogonal to the basis; replace a dependent row by a random one."""
    result = basis.new_zeros(len(rows), basis.shape[1])
    longest = float(rows.norm(dim=1).max())
    for place, row in enumerate(rows):
        against, limit = result[:place], DEPENDENT * longest
        while True:
            for _ in range(2):  # twice, because the remainder may be small compared with its rounding errors
                row = row - (row @ basis.T) @ basis
                row = row - (row @ against.T) @ against
            if float(row.norm()) > limit:
                break
            row, limit = _normal_rows(1, basis.shape[1], rng, basis)[0], 0.0
        row = row / row.norm()
        row = row - (row @ basis.T) @ basis - (row @ against.T) @ against
        result[place] = row / row.norm()
    return result


def _normal_rows(rows: int, size: int, rng: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(rows, size, generator=rng, dtype=torch.float64).to(like.device)


def estimate_trace(
    product: Product,
    size: int,
    *,
    probes: int = 32,
    seed: int = 0,
    known: Eigenvalues | None = None,
    device: torch.device | str = "cpu",
    progress: OnProgress = lambda *_: None,
) -> Trace:
    """Estimate the trace by Hutchinson's estimator: E[z' H z] = Tr(H) for z of random signs.

    If eigenvectors V are known, the trace in their span is exact and only the remainder is estimated: Tr(H) =
    Tr(V H V') + E[z' P H P z] with P = 1 - V' V. This holds for every V that was fixed before z was drawn. If V has the
    largest eigenvalues, most of the variance is removed.
    """
    if probes < 2:
        raise ConfigError(f"--probes {probes}: a standard error needs at least 2 probes.")
    rng = torch.Generator().manual_seed(seed)
    samples = []
    for start in range(0, probes, PROBES_AT_A_TIME):
        count = min(PROBES_AT_A_TIME, probes - start)
        signs = torch.randint(0, 2, (count, size), generator=rng).mul_(2).sub_(1)
        z = signs.to(device, torch.float64)
        if known is not None:
            z -= (z @ known.vectors.T) @ known.vectors
        samples.append((z * product(z)).sum(1).cpu())
        progress(start + count, probes)
    values = torch.cat(samples)
    exact = math.fsum(known.values) if known is not None else 0.0
    return Trace(exact + float(values.mean()), float(values.std()) / math.sqrt(probes), probes)


def curvature(
    model: nn.Module,
    loss: Loss,
    images: Tensor,
    targets: Tensor,
    *,
    top: int = 5,
    probes: int = 32,
    most: int = 500,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Curvature:
    """Compute eigenvalues and trace of the Hessian of the mean loss over these images."""
    product = hessian(model, loss, images, targets)
    size, device = sum(p.numel() for p in trainable(model)), images.device

    def report(what: str) -> OnProgress:
        return lambda done, total: progress(what, done, total)

    eigenvalues = largest_eigenvalues(
        product, size, top=top, most=most, seed=seed, device=device, progress=report("eigenvalues")
    )
    trace = estimate_trace(
        product, size, probes=probes, seed=seed + 1, known=eigenvalues, device=device, progress=report("trace")
    )
    return Curvature(eigenvalues, trace, size)
