"""Augmentations by name, applied in order to a whole batch at once; crops, flips and cutout are defined here.

An operation is a function (images, rng, views) -> images. It takes (B, 1 or views, C, H, W), float in [-1, 1], and
returns (B, views, C, H, W): a single image gives `views` of them. Images may be on any device. Random numbers are drawn
on the host, and the values derived from them are sent to the device. View k of image i is a function of image i and of
the random numbers of image i alone. The number of random numbers drawn depends on the operations and on `views`, never
on a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from scipy import special
from torch import Tensor

from dpvision.core.unit_random import UnitRandom
from dpvision.errors import ConfigError, did_you_mean
from dpvision.models.device import send
from dpvision.views.autoaugment import autoaugment
from dpvision.views.colour import grayscale, jitter

PAD = 4
CROP_ATTEMPTS = 10
GREY = 0.0


class Augment:
    """Operations to apply in order. Without operations, the views are copies."""

    def __init__(self, names: Sequence[str]) -> None:
        self._operations = find_operations(names)
        self.names = tuple(names)

    def __call__(self, images: Tensor, rng: UnitRandom, views: int = 1) -> Tensor:
        """Augment images in [-1, 1]: (B, 1 or views, C, H, W) -> (B, views, C, H, W)."""
        for operate in self._operations:
            images = operate(images, rng, views)
        return images.expand(-1, views, -1, -1, -1)

    def __repr__(self) -> str:
        return f"Augment({', '.join(self.names)})"


def crop(images: Tensor, rng: UnitRandom, views: int, *, pad: int = PAD) -> Tensor:
    """Shift each view by up to `pad` pixels (De et al. 2022): (B, 1 or views, C, H, W) -> (B, views, C, H, W).

    The image is padded by symmetric mirroring, which repeats the edge pixel: (c b a | a b c d | d c b). A view is a
    window of the image's size at an offset uniform on {0, ..., 2 pad}^2.
    """
    return _windows(images, rng.integers(2 * pad + 1, views, 2), None, pad)


def flip(images: Tensor, rng: UnitRandom, views: int) -> Tensor:
    """Mirror each view left to right with probability 1/2: (B, 1 or views, C, H, W) -> (B, views, C, H, W)."""
    mirrored = send(rng.uniform(views) < 0.5, images.device)
    return torch.where(mirrored[:, :, None, None, None], images.flip(-1), images)


def crop_and_flip(images: Tensor, rng: UnitRandom, views: int, *, pad: int = PAD) -> Tensor:
    """Mirror each view with probability 1/2 and crop it, in one gather.

    Because the padding is symmetric, the result has the same distribution as a crop followed by a flip.
    """
    offsets = rng.integers(2 * pad + 1, views, 2)
    return _windows(images, offsets, rng.uniform(views) < 0.5, pad)


def pad_symmetric(images: Tensor, pad: int) -> Tensor:
    """Pad (..., H, W) to (..., H + 2 pad, W + 2 pad) by symmetric mirroring."""
    for axis in (-2, -1):
        images = images.index_select(axis, send(_mirrored_indices(images.shape[axis], pad), images.device))
    return images


@cache
def _mirrored_indices(length: int, pad: int) -> Tensor:
    """Return the index of the pixel that each pixel of a padded line repeats."""
    return torch.from_numpy(np.pad(np.arange(length), pad, mode="symmetric"))


def _windows(images: Tensor, offsets: Tensor, mirrored: Tensor | None, pad: int) -> Tensor:
    """Take each view's window, in one gather from all windows of the padded image and, if needed, its mirror image."""
    batch, given, channels, height, width = images.shape
    wide = pad_symmetric(images.flatten(0, 1), pad)
    source = torch.arange(batch * given).view(batch, given).expand(offsets.shape[:2])
    if mirrored is not None:
        wide = torch.cat([wide, wide.flip(-1)])
        source = source + mirrored * (batch * given)
    image, channel, row, _ = wide.stride()
    # A strided view without a copy, in which a window starts at every pixel. Only windows inside an image are taken.
    starts = wide.numel() - ((channels - 1) * channel + (height - 1) * row + width - 1)
    windows = wide.as_strided((max(0, starts), channels, height, width), (1, channel, row, 1))
    first = source * image + offsets[..., 0] * row + offsets[..., 1]
    return windows.index_select(0, send(first.flatten(), images.device)).unflatten(0, first.shape)


def cutout(images: Tensor, rng: UnitRandom, views: int, *, side: int | None = None) -> Tensor:
    """Hide a grey square in each view (DeVries and Taylor 2017): (B, 1 or views, C, H, W) -> (B, views, C, H, W).

    The square has `side` pixels per side, by default half of the image's shorter side. Its centre is uniform over the
    pixels, so it may extend beyond the edge.
    """
    height, width = images.shape[-2:]
    side = min(height, width) // 2 if side is None else side
    rows = _cover_mask(rng.integers(height, views), height, side)
    columns = _cover_mask(rng.integers(width, views), width, side)
    rows, columns = send(rows, images.device), send(columns, images.device)
    hidden = rows[:, :, None, :, None] & columns[:, :, None, None, :]
    return torch.where(hidden, GREY, images)


def _cover_mask(centre: Tensor, length: int, side: int) -> Tensor:
    """Return a mask of `length` positions that is true at the `side` positions from centre - side // 2 on."""
    distance = torch.arange(length) - (centre.unsqueeze(-1) - side // 2)
    return (distance >= 0) & (distance < side)


def resized_crop(
    images: Tensor,
    rng: UnitRandom,
    views: int,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Resize a random box of the image to each view: (B, 1 or views, C, H, W) -> (B, views, C, H, W).

    The box's area, as a fraction of the image's, is uniform on `scale`, its ratio of width to height is log-uniform on
    `ratio`, and its position is uniform (Szegedy et al. 2015). The first of ten such boxes that fits is used; if none
    fits, the largest central box with an allowed ratio. Resizing is bilinear.
    """
    top, left, height, width = draw_boxes(rng, views, images.shape[-2:], scale=scale, ratio=ratio)
    whole = images.expand(-1, views, -1, -1, -1)
    return _stretch(_stretch(whole, top, height, -2), left, width, -1)


def draw_boxes(
    rng: UnitRandom, views: int, size: tuple[int, ...], *, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a random box for each view; return top, left, height and width, each (B, views) int64."""
    full_height, full_width = size
    drawn = rng.uniform(views, CROP_ATTEMPTS, 2)
    place = rng.uniform(views, 2)
    area = (scale[0] + drawn[..., 0] * (scale[1] - scale[0])) * (full_height * full_width)
    log_low, log_high = math.log2(ratio[0]), math.log2(ratio[1])
    # scipy's exp2 works element by element, so no result depends on its neighbours.
    shape = torch.from_numpy(special.exp2((log_low + drawn[..., 1] * (log_high - log_low)).numpy()))
    widths, heights = (area * shape).sqrt().round(), (area / shape).sqrt().round()
    fits = (widths >= 1) & (widths <= full_width) & (heights >= 1) & (heights <= full_height)
    first = fits.to(torch.int8).argmax(dim=-1, keepdim=True)
    limit = full_width / full_height
    central = (full_height, round(full_height * ratio[1])) if limit > ratio[1] else (full_height, full_width)
    central = (round(full_width / ratio[0]), full_width) if limit < ratio[0] else central
    any_fits = fits.any(dim=-1)

    def choose(attempts: Tensor, fallback: int, start: Tensor, full: int) -> tuple[Tensor, Tensor]:
        length = torch.where(any_fits, attempts.gather(-1, first).squeeze(-1), float(fallback))
        begin = torch.where(any_fits, (start * (full - length + 1)).floor(), ((full - length) / 2).floor())
        return begin.long(), length.long()

    top, height = choose(heights, central[0], place[..., 0], full_height)
    left, width = choose(widths, central[1], place[..., 1], full_width)
    return top, left, height, width


def _stretch(images: Tensor, start: Tensor, length: Tensor, axis: int) -> Tensor:
    """Resize `length` pixels from `start` on to the full axis, with linear interpolation between pixel centres."""
    full = images.shape[axis]
    centres = (torch.arange(full, dtype=torch.float64) + 0.5) / full
    last = (length - 1).unsqueeze(-1).double()
    positions = torch.minimum((centres * length.unsqueeze(-1) - 0.5).clamp(min=0), last)
    below = positions.floor()
    above = torch.minimum(below + 1, last)
    first, second = start.unsqueeze(-1) + below.long(), start.unsqueeze(-1) + above.long()
    share, first, second = (
        send(_along(v, axis), images.device) for v in ((positions - below).to(images.dtype), first, second)
    )
    low = torch.take_along_dim(images, first, dim=axis)
    high = torch.take_along_dim(images, second, dim=axis)
    return low * (1 - share) + high * share


def _along(values: Tensor, axis: int) -> Tensor:
    """Reshape (B, views, n) to (B, views, 1, n, 1) or (B, views, 1, 1, n)."""
    return values[:, :, None, :, None] if axis == -2 else values[:, :, None, None, :]


Operation = Callable[[Tensor, UnitRandom, int], Tensor]

OPERATIONS: dict[str, Operation] = {
    "autoaugment": autoaugment,
    "crop": crop,
    "cutout": cutout,
    "flip": flip,
    "grayscale": grayscale,
    "jitter": jitter,
    "resized-crop": resized_crop,
}
# Consecutive operations that are applied in one pass.
FUSED: dict[tuple[str, str], Operation] = {("crop", "flip"): crop_and_flip, ("flip", "crop"): crop_and_flip}


def find_operations(names: Sequence[str]) -> list[Operation]:
    """Return the operations with these names. Consecutive ones are fused if that saves a pass."""
    if isinstance(names, str):
        raise ConfigError(f"augment is {names!r}: it must be a list of names. Fix: ({names!r},).")
    for name in names:
        if name not in OPERATIONS:
            raise ConfigError(f"there is no augmentation named {name!r}. {did_you_mean(name, sorted(OPERATIONS))}")
    operations, rest = [], list(names)
    while rest:
        fused = FUSED.get((rest[0], rest[1])) if len(rest) > 1 else None
        operations.append(fused or OPERATIONS[rest[0]])
        del rest[: 2 if fused else 1]
    return operations
