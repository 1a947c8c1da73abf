"""The two small networks of discriminator guidance: an extractor of features, and a discriminator on top of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvision.public.diffusion.embedding import Embedding
from dpvision.public.diffusion.unet import Block, convolution, linear, normalisation


class Extractor(nn.Module):
    """Noisy images and their noise -> features at a quarter of each side; it learns to name public images' classes."""

    def __init__(self, channels: int, *, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = Embedding(width, 4 * width, classes=1)  # of noise alone: the class is what it is asked for
        self.enter = nn.Conv2d(channels, width, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(
            [
                _block(width, width, 4 * width),
                _block(width, 2 * width, 4 * width, resample=-1),
                _block(2 * width, 2 * width, 4 * width),
            ]
        )
        self.norm, self.name = normalisation(2 * width), linear(2 * width, classes)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        vector = self.embedding(noise, torch.zeros_like(noise, dtype=torch.long), None)
        x = self.enter(x).contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x, vector)
        return x

    def named(self, x: Tensor, noise: Tensor) -> Tensor:
        """(B, classes) log-odds of the class."""
        odds: Tensor = self.name(F.silu(self.norm(self(x, noise))).mean((2, 3)))
        return odds


class Discriminator(nn.Module):
    """Features of an extractor that learns no more, noise and class -> (B, 1) log-odds of being real."""

    def __init__(self, extractor: Extractor, *, classes: int, width: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.embedding = Embedding(width, 4 * width, classes=classes)
        self.enter = convolution(2 * width, width, kernel=1)
        self.blocks = nn.ModuleList([_block(width, width, 4 * width) for _ in range(2)])
        self.norm, self.leave = normalisation(width), nn.Linear(width, 1)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
        vector = self.embedding(noise, labels, augment)
        x = self.enter(self.extractor(x, noise))
        for block in self.blocks:
            x = block(x, vector)
        odds: Tensor = self.leave(F.silu(self.norm(x)).mean((2, 3)))
        return odds


def _block(cin: int, cout: int, told: int, *, resample: int = 0) -> Block:
    return Block(cin, cout, told, resample=resample, attention=False, dropout=0.0)
