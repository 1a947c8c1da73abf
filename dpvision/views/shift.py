"""Random crops of the mirrored image and horizontal flips, both in a single gather (De et al. 2022).

The image is padded by symmetric mirroring, which repeats the edge pixel: (c b a | a b c d | d c b). A view is a window
of the image's size at an offset uniform on {0, ..., 2 pad}^2, mirrored left to right with probability 1/2.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from dpvision.core.unit_random import UnitRandom

PAD = 4


def crop(images: Tensor, rng: UnitRandom, views: int, *, pad: int = PAD) -> Tensor:
    """(B, 1 or views, C, H, W) -> (B, views, C, H, W), each view shifted by up to `pad` pixels."""
    return _windows(images, rng.integers(2 * pad + 1, views, 2), None, pad)


def flip(images: Tensor, rng: UnitRandom, views: int) -> Tensor:
    """(B, 1 or views, C, H, W) -> (B, views, C, H, W), each view mirrored left to right with probability 1/2."""
    mirrored = rng.uniform(views) < 0.5
    return torch.where(mirrored[:, :, None, None, None], images.flip(-1), images)


def crop_and_flip(images: Tensor, rng: UnitRandom, views: int, *, pad: int = PAD) -> Tensor:
    """Mirror with probability 1/2, then crop; as padding is symmetric, in law the same as crop, then mirror."""
    offsets = rng.integers(2 * pad + 1, views, 2)
    return _windows(images, offsets, rng.uniform(views) < 0.5, pad)


def padded(images: Tensor, pad: int) -> Tensor:
    """(..., H, W) -> (..., H + 2 pad, W + 2 pad) by symmetric mirroring."""
    for axis in (-2, -1):
        images = images.index_select(axis, _mirrored(images.shape[axis], pad))
    return images


@cache
def _mirrored(length: int, pad: int) -> Tensor:
    """Which pixel of a line each pixel of the padded line is."""
    return torch.from_numpy(np.pad(np.arange(length), pad, mode="symmetric"))


def _windows(images: Tensor, offsets: Tensor, mirrored: Tensor | None, pad: int) -> Tensor:
    """For each view its window: one gather from all windows of the padded image and, if asked for, of its mirror."""
    batch, given, channels, height, width = images.shape
    wide = padded(images.flatten(0, 1), pad)
    source = torch.arange(batch * given).view(batch, given).expand(offsets.shape[:2])
    if mirrored is not None:
        wide = torch.cat([wide, wide.flip(-1)])
        source = source + mirrored * (batch * given)
    image, channel, row, _ = wide.stride()
    # Every pixel is taken for the first one of a window, without a copy; of those, only real windows are asked for.
    starts = wide.numel() - ((channels - 1) * channel + (height - 1) * row + width - 1)
    windows = wide.as_strided((max(0, starts), channels, height, width), (1, channel, row, 1))
    first = source * image + offsets[..., 0] * row + offsets[..., 1]
    return windows.index_select(0, first.flatten()).unflatten(0, first.shape)
