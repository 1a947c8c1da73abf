"""Images to try views on, and what it means that two tensors have the same bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpvision.views import UnitRandom, Views

SEED = 0x0123456789ABCDEF_FEDCBA9876543210
CLASSES = 5


def images_of(count: int, *, channels: int = 3, size: tuple[int, int] = (9, 11), seed: int = 0) -> Tensor:
    """Random float images in [-1, 1] that came from 8-bit numbers."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, channels, *size))
    return (torch.from_numpy(pixels).float() / 255.0 - 0.5) / 0.5


def labels_of(count: int) -> Tensor:
    return torch.arange(count) % CLASSES


def public_set(count: int = 7, *, channels: int = 3, size: tuple[int, int] = (9, 11)) -> tuple[Tensor, Tensor]:
    pixels = np.random.default_rng(99).integers(0, 256, (count, channels, *size), dtype=np.uint8)
    return torch.from_numpy(pixels), labels_of(count)


def rng_of(*units: int, seed: int = SEED) -> UnitRandom:
    return UnitRandom(seed, np.array(units, dtype=np.int64))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Shape, type and every bit, so that NaN equals itself."""
    return a.shape == b.shape and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


def by_image(views: Views, images: Tensor, labels: Tensor, rng: UnitRandom) -> tuple[Tensor, Tensor]:
    """Views and targets as (B, K, ...)."""
    out, targets = views(images, labels, rng)
    assert len(out) == len(targets) == len(images) * views.count
    return out.unflatten(0, (len(images), views.count)), targets.unflatten(0, (len(images), views.count))
