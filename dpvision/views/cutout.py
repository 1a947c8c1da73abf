"""Cutout: a grey square at a random place of each view (DeVries and Taylor 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from dpvision.core.unit_random import UnitRandom

GREY = 0.0


def cutout(images: Tensor, rng: UnitRandom, views: int, *, side: int | None = None) -> Tensor:
    """(B, 1 or views, C, H, W) -> (B, views, C, H, W) with a grey square of `side` pixels, half the image's by default.

    Its centre is uniform over the pixels, so at the edge a part of it lies outside.
    """
    height, width = images.shape[-2:]
    side = min(height, width) // 2 if side is None else side
    rows = _covered(rng.integers(height, views), height, side)
    columns = _covered(rng.integers(width, views), width, side)
    hidden = rows[:, :, None, :, None] & columns[:, :, None, None, :]
    return torch.where(hidden, GREY, images)


def _covered(centre: Tensor, length: int, side: int) -> Tensor:
    """Which of `length` places are covered: `side` of them from centre - side // 2 on."""
    distance = torch.arange(length) - (centre.unsqueeze(-1) - side // 2)
    return (distance >= 0) & (distance < side)
