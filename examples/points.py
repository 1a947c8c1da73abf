"""Points instead of images, with a small network: to see in two dimensions what a diffusion model does."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvision.models import seeded
from dpvision.public.diffusion.methods import ema_decay
from dpvision.public.diffusion.unet import Embedding
from dpvision.public.optimisers import Adam
from dpvision.public.trainer import mix_seed

Loss = Callable[["MLP", Tensor], Tensor]


def fit_points(
    network: MLP, loss: Loss, *, count: int, steps: int, batch: int = 256, lr: float = 1e-3, seed: int = 0
) -> MLP:
    """The mean weights after `steps` steps on loss(network, chosen), where `chosen` indexes some of `count` points."""
    mean, adam = deepcopy(network).eval().requires_grad_(False), Adam(network)
    for step in range(1, steps + 1):
        with seeded(mix_seed(seed, step)):
            gradients = adam.gradients(loss(network, torch.randint(count, (batch,))))
        adam.update(gradients, step=step, rate=lr)
        decay = ema_decay(step * batch, batch)
        with torch.no_grad():
            for old, new in zip(mean.parameters(), adam.weights, strict=True):
                old.lerp_(new, 1 - decay)
    return mean


class MLP(nn.Module):
    """(B, D), (B,) noise, (B,) labels -> (B, out): linear residual blocks, conditioned on noise and class."""

    def __init__(
        self, dimension: int, *, classes: int, width: int = 64, blocks: int = 2, out: int | None = None
    ) -> None:
        super().__init__()
        self.embedding = Embedding(32, width, classes=classes)
        self.enter = nn.Linear(dimension, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.tell = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.leave = nn.Linear(width, dimension if out is None else out)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
        vector = self.embedding(noise, labels, augment)
        x = self.enter(x)
        for block, tell in zip(self.blocks, self.tell, strict=True):
            x = x + F.silu(block(x) + tell(vector))
        y: Tensor = self.leave(F.silu(x))
        return y
