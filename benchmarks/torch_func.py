"""The clipped sum with torch.func, for comparing speed: one gradient per image, using vmap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpvision.core.clipping import Loss


class ReferenceSum:
    """sum_u clip_C(mean over views of the gradient), with `physical` images at a time."""

    def __init__(self, model: nn.Module, loss: Loss, *, clip: float, physical: int = 32) -> None:
        self._model, self._clip, self._physical = model, clip, physical
        self.size = sum(p.numel() for p in model.parameters() if p.requires_grad)

        def one_loss(weights: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
            return loss(functional_call(model, weights, (image.unsqueeze(0),)), target.unsqueeze(0)).squeeze(0)

        self._gradients = vmap(grad(one_loss), in_dims=(None, 0, 0))

    def __call__(self, images: Tensor, targets: Tensor, views: Sequence[int]) -> Tensor:
        weights = {n: p.detach() for n, p in self._model.named_parameters() if p.requires_grad}
        counts = torch.tensor(list(views))
        owner = torch.repeat_interleave(counts)
        total = torch.zeros(self.size, dtype=torch.float64)
        mean = torch.zeros(self.size)
        for start in range(0, len(images), self._physical):
            piece = slice(start, start + self._physical)
            parts = self._gradients(weights, images[piece], targets[piece])
            flat = torch.cat([g.flatten(1) for g in parts.values()], dim=1)
            for i, gradient in enumerate(flat, start=start):
                mean += gradient / counts[owner[i]]
                if i + 1 == len(images) or owner[i + 1] != owner[i]:
                    norm = float(mean.double().norm())
                    if torch.isfinite(torch.tensor(norm)):
                        total += mean.double() * min(1.0, self._clip / max(norm, 1e-300))
                    mean = torch.zeros(self.size)
        return total
