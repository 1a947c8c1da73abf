"""How curved the mean loss is around some weights: the Hessian's largest eigenvalues and its trace.

The Hessian is never formed: H v is the gradient of <gradient, v>, by a second backward pass. The network computes in
its own float32; vectors and sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpvision.audit.lanczos import Eigenvalues, Product, Progress, largest
from dpvision.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs and targets -> one number per image

PHYSICAL = 64  # images in one pass
AT_A_TIME = 8  # probes that share a forward pass


@dataclass(frozen=True)
class Trace:
    """An unbiased estimate with its standard error."""

    value: float
    error: float
    probes: int


@dataclass(frozen=True)
class Curvature:
    """What Table 4 of Park et al. shows of one network on one data set."""

    eigenvalues: Eigenvalues
    trace: Trace
    weights: int

    @property
    def ratio(self) -> float | None:
        """lambda_1 / lambda_top, large where a few directions are far steeper than the rest; of positive ones only."""
        values = self.eigenvalues.values
        return values[0] / values[-1] if values[-1] > 0 else None


def trainable(model: nn.Module) -> list[nn.Parameter]:
    found = [p for p in model.parameters() if p.requires_grad]
    if not found:
        raise ConfigError("the model has no trainable parameter. Fix: requires_grad_() on what is to be looked at.")
    return found


def hessian(model: nn.Module, loss: Loss, images: Tensor, targets: Tensor, *, physical: int = PHYSICAL) -> Product:
    """Rows v -> rows H v, for H of the mean loss over all the images with respect to the trainable parameters."""
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
                    along = [v.view_as(p).to(p) for v, p in zip(row.split(sizes), parameters, strict=True)]
                    seconds = torch.autograd.grad(
                        [firsts[i] for i in curved],
                        parameters,
                        [along[i] for i in curved],
                        retain_graph=True,
                        materialize_grads=True,
                    )
                    out += torch.cat([s.detach().flatten() for s in seconds]).double()
        return total

    return product


def trace(
    product: Product,
    size: int,
    *,
    probes: int = 32,
    seed: int = 0,
    known: Eigenvalues | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> Trace:
    """Hutchinson: E[z' H z] = Tr(H) for z of fair signs.

    With known eigenvectors V the part of the trace in their span is taken as it is, and only the rest is estimated:
    Tr(H) = Tr(V H V') + E[z' P H P z] with P = 1 - V' V. That holds for every V that was fixed before z was drawn; with
    the largest eigenvalues in V, most of the variance is gone.
    """
    if probes < 2:
        raise ConfigError(f"an error bar needs 2 probes at least, not {probes}.")
    rng = torch.Generator().manual_seed(seed)
    found = []
    for start in range(0, probes, AT_A_TIME):
        count = min(AT_A_TIME, probes - start)
        signs = torch.randint(0, 2, (count, size), generator=rng).mul_(2).sub_(1)
        z = signs.to(device, torch.float64)
        if known is not None:
            z -= (z @ known.vectors.T) @ known.vectors
        found.append((z * product(z)).sum(1).cpu())
        progress(start + count, probes)
    each = torch.cat(found)
    exact = math.fsum(known.values) if known is not None else 0.0
    return Trace(exact + float(each.mean()), float(each.std()) / math.sqrt(probes), probes)


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
    """Eigenvalues and trace of the mean loss over these images."""
    product = hessian(model, loss, images, targets)
    size, device = sum(p.numel() for p in trainable(model)), images.device

    def told(what: str) -> Progress:
        return lambda done, of: progress(what, done, of)

    values = largest(product, size, top=top, most=most, seed=seed, device=device, progress=told("eigenvalues"))
    of_all = trace(product, size, probes=probes, seed=seed + 1, known=values, device=device, progress=told("trace"))
    return Curvature(values, of_all, size)
