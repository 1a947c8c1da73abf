"""Colour jitter and random conversion to grey, for float images in [-1, 1].

A factor f changes an image x in [0, 1] to clamp(f x + (1 - f) r, 0, 1), where the reference r is black for brightness,
the image's mean grey level for contrast, and each pixel's own grey level for saturation. Hue is rotated on the colour
circle. Each view has its own factors and its own order of the four changes. Saturation and hue do not affect grey
images.

Pixels are rounded in the same way at any position in a batch, and the only sum is exact (`exact_mean`), so the last
bits of a view do not depend on the rest of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvision.core.unit_random import UnitRandom
from dpvision.errors import ConfigError
from dpvision.models.device import send

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601
MEAN_BITS = 20


def jitter(
    images: Tensor,
    rng: UnitRandom,
    views: int,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.4,
    probability: float = 1.0,
) -> Tensor:
    """Change all four in random order, with this probability: (B, 1 or views, C, H, W) -> (B, views, C, H, W).

    Factors are uniform on [max(0, 1 - s), 1 + s] for a strength s. Hue is rotated by a fraction of the circle that is
    uniform on [-hue, hue].
    """
    require_colours(images)
    order = rng.uniform(views, 4).argsort(dim=-1, stable=True).flatten(0, 1)
    drawn = rng.uniform(views, 4).flatten(0, 1)
    chosen = (rng.uniform(views) < probability).flatten()
    ranges = [(max(0.0, 1 - s), 1 + s) for s in (brightness, contrast, saturation)] + [(-hue, hue)]
    low, high = (torch.tensor(ends, dtype=torch.float64) for ends in zip(*ranges, strict=True))
    strength = send((low + drawn * (high - low)).to(images.dtype), images.device)
    out = images.expand(-1, views, -1, -1, -1).flatten(0, 1).clone()
    changed = send(torch.nonzero(chosen).squeeze(1), out.device)
    out[changed] = out[changed].add(1).mul(0.5)
    for turn in range(4):
        for number, change in enumerate((change_brightness, change_contrast, change_saturation, rotate_hue)):
            rows = send(torch.nonzero((order[:, turn] == number) & chosen).squeeze(1), out.device)
            out[rows] = change(out[rows], strength[rows, number].view(-1, 1, 1, 1))
    out[changed] = out[changed].mul(2).sub(1)
    return out.unflatten(0, (-1, views))


def grayscale(images: Tensor, rng: UnitRandom, views: int, *, probability: float = 0.2) -> Tensor:
    """Make each view grey with this probability: (B, 1 or views, C, H, W) -> (B, views, C, H, W)."""
    require_colours(images)
    chosen = send(rng.uniform(views) < probability, images.device)
    return torch.where(chosen[:, :, None, None, None], grey(images), images)


def grey(images: Tensor) -> Tensor:
    """Return 0.299 R + 0.587 G + 0.114 B: (..., C, H, W) -> (..., 1, H, W). A grey image is returned unchanged."""
    if images.shape[-3] == 1:
        return images
    red, green, blue = images.split(1, dim=-3)
    return red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]


def change_brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp(0, 1)


def change_contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _towards(images, exact_mean(grey(images)), factor)


def change_saturation(images: Tensor, factor: Tensor) -> Tensor:
    return images if images.shape[-3] == 1 else _towards(images, grey(images), factor)


def rotate_hue(images: Tensor, fraction: Tensor) -> Tensor:
    """Rotate the HSV hue by a fraction of the full circle."""
    if images.shape[-3] == 1:
        return images
    hue, saturation, value = hsv(images)
    sixths = (hue + fraction) * 6
    bands = []
    for start in (5.0, 3.0, 1.0):  # red, green, blue
        k = _modulo(sixths + start, 6.0)
        bands.append(value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.cat(bands, dim=-3)


def hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert (..., 3, H, W) in [0, 1] to hue, saturation and value, each (..., 1, H, W) in [0, 1]."""
    red, green, blue = images.split(1, dim=-3)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    safe = torch.where(chroma == 0, torch.ones_like(chroma), chroma)
    of_red, of_green, of_blue = (green - blue) / safe, (blue - red) / safe + 2, (red - green) / safe + 4
    sixths = torch.where(value == red, of_red, torch.where(value == green, of_green, of_blue))
    saturation = chroma / torch.where(value == 0, torch.ones_like(value), value)
    return _modulo(sixths / 6, 1.0), saturation, value


def exact_mean(images: Tensor) -> Tensor:
    """Return each image's mean (N, 1, 1, 1), with pixels (N, 1, H, W) in [0, 1] rounded to multiples of 2^-20.

    Sums of such numbers are exact in float64 in any order, so the result does not depend on the kernel.
    """
    steps = (images.double() * 2**MEAN_BITS).round().sum(dim=(1, 2, 3), keepdim=True)
    return (steps / (2**MEAN_BITS * images[0].numel())).to(images.dtype) if len(images) else steps.to(images.dtype)


def _towards(images: Tensor, reference: Tensor, factor: Tensor) -> Tensor:
    return (images * factor + reference * (1 - factor)).clamp(0, 1)


def _modulo(values: Tensor, period: float) -> Tensor:
    return values - (values / period).floor() * period


def require_colours(images: Tensor) -> None:
    if images.shape[-3] not in (1, 3):
        raise ConfigError(
            f"colour operations need images with 1 channel (grey) or 3 (red, green, blue), not "
            f"{images.shape[-3]}. Fix: leave out the operation."
        )
