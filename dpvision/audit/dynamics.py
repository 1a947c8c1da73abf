"""How loss, accuracy and gradient of several data sets change along a training (Park et al., Fig. 3, 6).

The data sets are those the paper follows: public, synthetic, private, test. A training on private images that were
warmed up on public ones shows it when the public loss rises while the private one falls. What is seen of private images
is for the operator's eyes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvision.audit.hessian import PHYSICAL, trainable
from dpvision.private.engine import ClippedSum, Loss

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Point:
    """One data set at one set of weights."""

    loss: float
    accuracy: float
    gradient: float  # norm of the mean gradient
    clipped: float  # norm of the mean of gradients that were clipped one by one, without noise


def at(model: nn.Module, loss: Loss, images: Tensor, targets: Tensor, *, clip: float = 1.0) -> Point:
    """The data set at the model's present weights; targets are classes."""
    parameters, n = trainable(model), len(images)
    total, right = 0.0, 0
    mean = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64, device=images.device)
    for start in range(0, n, PHYSICAL):
        part = slice(start, start + PHYSICAL)
        with torch.enable_grad():
            outputs = model(images[part])
            summed = loss(outputs, targets[part]).sum()
            gradients = torch.autograd.grad(summed, parameters, materialize_grads=True)
        mean += torch.cat([g.flatten() for g in gradients]).double() / n
        total += float(summed.detach())
        right += int((outputs.argmax(1) == targets[part]).sum())
    clipped = ClippedSum(model, loss, clip=clip)(images, targets, [1] * n) / n
    return Point(total / n, right / n, float(mean.norm()), float(clipped.norm()))


def along(
    model: nn.Module,
    loss: Loss,
    series: Iterable[Mapping[str, Tensor]],
    *,
    sets: Mapping[str, tuple[Tensor, Tensor]],
    clip: float = 1.0,
    progress: Progress = lambda _: None,
) -> dict[str, list[Point]]:
    """Each named data set at each of a series of weights (state dicts). The model gets its own weights back."""
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found: dict[str, list[Point]] = {name: [] for name in sets}
    try:
        for count, weights in enumerate(series, 1):
            model.load_state_dict(weights)
            for name, (images, targets) in sets.items():
                found[name].append(at(model, loss, images, targets, clip=clip))
            progress(count)
    finally:
        model.load_state_dict(own)
    return found
