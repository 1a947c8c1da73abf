"""How numbers and classes enter a network: as waves, and as one-hot codes of unit variance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

AUGMENT = 9  # numbers that say how an image was turned, see augment.py


def waves(values: Tensor, width: int) -> Tensor:
    """(B,) -> (B, width): cosines and sines with periods from 2 pi to 20,000 pi, as for positions in a text."""
    half = width // 2
    frequencies = (1 / 10_000) ** (torch.arange(half, dtype=torch.float32, device=values.device) / half)
    angles = values.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def class_code(labels: Tensor, classes: int) -> Tensor:
    """(B,) -> (B, C): one-hot times sqrt(C), so that a code has mean square 1 as every other input has."""
    return F.one_hot(labels, classes).float() * math.sqrt(classes)


class Embedding(nn.Module):
    """Noise level, class and augmentation of each image -> one vector that every block of a network sees."""

    def __init__(self, width: int, out: int, *, classes: int) -> None:
        super().__init__()
        self.width, self.classes = width, classes
        self.label = nn.Linear(classes, width)
        self.augment = nn.Linear(AUGMENT, width, bias=False)
        self.layers = nn.Sequential(nn.Linear(width, out), nn.SiLU(), nn.Linear(out, out), nn.SiLU())
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, noise: Tensor, labels: Tensor, augment: Tensor | None) -> Tensor:
        sum_ = waves(noise, self.width) + self.label(class_code(labels, self.classes))
        if augment is not None:
            sum_ = sum_ + self.augment(augment)
        vector: Tensor = self.layers(sum_)
        return vector
