"""The naive loop: one unit at a time, by ordinary autograd in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.core.certify import certify
from dpvision.core.clipping import Flat, Loss
from dpvision.private.engine import ClippedSum

each_loss = partial(F.cross_entropy, reduction="none")


def flat_gradient(model: nn.Module, images: Tensor, targets: Tensor, at: Tensor | None = None) -> Tensor:
    """The gradient of the mean loss, at weights moved by `at`."""
    model = copy.deepcopy(model).double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if at is not None:
        with torch.no_grad():
            for parameter, move in zip(parameters, at.double().split([p.numel() for p in parameters]), strict=True):
                parameter += move.view(parameter.shape)
    images = images.double() if images.is_floating_point() else images
    loss = each_loss(model(images), targets).mean()
    result = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, result, strict=True)]
    )


def unit_gradients(
    model: nn.Module, images: Tensor, targets: Tensor, views: Sequence[int], perturbations: Sequence[Tensor] = ()
) -> Tensor:
    """(units, weights)"""
    results, start = [], 0
    for count in views:
        part = slice(start, start + count)
        if perturbations:
            actual = [
                flat_gradient(model, images[i : i + 1], targets[i : i + 1], v)
                for i, v in zip(range(start, start + count), perturbations, strict=True)
            ]
            results.append(torch.stack(actual).mean(0))
        else:
            results.append(flat_gradient(model, images[part], targets[part]))
        start += count
    return torch.stack(results)


def clipped_sum(gradients: Tensor, bound: float) -> Tensor:
    """sum of g * min(1, C / |g|), leaving out what is not finite."""
    total = torch.zeros(gradients.shape[1], dtype=torch.float64)
    for gradient in gradients:
        if torch.isfinite(gradient).all():
            total += gradient * min(1.0, bound / max(float(gradient.norm()), 1e-300))
    return total


def verify(
    model: nn.Module,
    loss: Loss,
    shape: tuple[int, ...],
    classes: int,
    *,
    apart: bool = False,
    physical: int | None = None,
    **more: Any,
) -> None:
    """The certificate of an engine with this cut, for units of several images; `apart` with views at own weights."""
    if apart:
        more |= {"public": ("perturbations",), "views": (2,)}
    engine = partial(ClippedSum, physical=physical)
    certify(model, loss, shape, classes, engine=engine, style=Flat(1.0), **more)
