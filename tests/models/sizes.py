"""The number of weights of a model, without allocating them."""

from __future__ import annotations

import torch
from torch import nn

from dpvision.models import build


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def size_of(name: str, shape: tuple[int, int, int], classes: int = 10) -> int:
    with torch.device("meta"):
        return size(build(name, shape, classes=classes, seed=0))
