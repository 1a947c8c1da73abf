"""Random resized crops: a random part of the image, blown up to the image's size (Szegedy et al. 2015)."""

from __future__ import annotations

import math

import torch
from scipy import special
from torch import Tensor

from dpvision.core.unit_random import UnitRandom

ATTEMPTS = 10


def resized_crop(
    images: Tensor,
    rng: UnitRandom,
    views: int,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """(B, 1 or views, C, H, W) -> (B, views, C, H, W), each view a random part of its image at the full size, bilinear.

    The part's area is uniform on `scale` times the image's, its ratio of width to height log-uniform on `ratio`, its
    place uniform. Of ten such parts the first that fits is taken; if none does, the largest central part whose ratio
    is allowed.
    """
    top, left, height, width = boxes(rng, views, images.shape[-2:], scale=scale, ratio=ratio)
    whole = images.expand(-1, views, -1, -1, -1)
    return _stretched(_stretched(whole, top, height, -2), left, width, -1)


def boxes(
    rng: UnitRandom, views: int, size: tuple[int, ...], *, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of a random part for each view, each (B, views) and whole numbers."""
    full_height, full_width = size
    drawn = rng.uniform(views, ATTEMPTS, 2)
    place = rng.uniform(views, 2)
    area = (scale[0] + drawn[..., 0] * (scale[1] - scale[0])) * (full_height * full_width)
    log_low, log_high = math.log2(ratio[0]), math.log2(ratio[1])
    # scipy's exp2 goes number by number, so none depends on what lies beside it.
    shape = torch.from_numpy(special.exp2((log_low + drawn[..., 1] * (log_high - log_low)).numpy()))
    widths, heights = (area * shape).sqrt().round(), (area / shape).sqrt().round()
    fits = (widths >= 1) & (widths <= full_width) & (heights >= 1) & (heights <= full_height)
    first = fits.to(torch.int8).argmax(dim=-1, keepdim=True)
    limit = full_width / full_height
    central = (full_height, round(full_height * ratio[1])) if limit > ratio[1] else (full_height, full_width)
    central = (round(full_width / ratio[0]), full_width) if limit < ratio[0] else central
    some = fits.any(dim=-1)
    height = torch.where(some, heights.gather(-1, first).squeeze(-1), float(central[0]))
    width = torch.where(some, widths.gather(-1, first).squeeze(-1), float(central[1]))
    top = torch.where(some, (place[..., 0] * (full_height - height + 1)).floor(), ((full_height - height) / 2).floor())
    left = torch.where(some, (place[..., 1] * (full_width - width + 1)).floor(), ((full_width - width) / 2).floor())
    return top.long(), left.long(), height.long(), width.long()


def _stretched(images: Tensor, start: Tensor, length: Tensor, axis: int) -> Tensor:
    """`length` pixels from `start` on, blown up to the whole axis: linear between the centres of pixels."""
    full = images.shape[axis]
    centres = (torch.arange(full, dtype=torch.float64) + 0.5) / full
    where = (centres * length.unsqueeze(-1) - 0.5).clamp(min=0)
    where = torch.minimum(where, (length - 1).unsqueeze(-1).double())
    below = where.floor()
    above = torch.minimum(below + 1, (length - 1).unsqueeze(-1).double())
    share = _along((where - below).to(images.dtype), axis)
    low = torch.take_along_dim(images, _along(start.unsqueeze(-1) + below.long(), axis), dim=axis)
    high = torch.take_along_dim(images, _along(start.unsqueeze(-1) + above.long(), axis), dim=axis)
    return low * (1 - share) + high * share


def _along(values: Tensor, axis: int) -> Tensor:
    """(B, views, n) -> (B, views, 1, n, 1) or (B, views, 1, 1, n)."""
    return values[:, :, None, :, None] if axis == -2 else values[:, :, None, None, :]
