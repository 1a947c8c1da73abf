"""Conversions between bytes and floats in [-1, 1], and Pillow's operations on batches of 8-bit images (N, C, H, W).

Images have 1 or 3 channels, and each image has its own operation strength. Every result matches Pillow's bit for bit:
the same integer arithmetic, the same float32 or float64 steps where Pillow uses floats, the same rounding towards zero.
All sums are over integers and therefore exact in any order. Geometric operations fill pixels from outside the image
with grey.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvision.models.device import send

GREY = 128


def to_bytes(images: Tensor) -> Tensor:
    """Map [-1, 1] to 0..255, rounding to nearest; out-of-range values are clamped, and NaN becomes grey."""
    return images.nan_to_num(nan=0.0).mul(0.5).add(0.5).mul(255).round().clamp(0, 255).to(torch.uint8)


def to_floats(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Map uint8 in 0..255, or floats in 0..1, to [-1, 1] by fixed constants, never by statistics of the data."""
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    return (images.to(dtype) / scale - 0.5) / 0.5


def affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Apply Image.transform(AFFINE) with nearest neighbours: pixel (x, y) comes from (a x + b y + c, d x + e y + f).

    `matrices` is (N, 6). Coordinates refer to pixel centres, in fixed point with 16 fractional bits. Pixels from
    outside the image are grey.
    """
    count, channels, height, width = images.shape
    a, b, c, d, e, f = matrices.double().unbind(1)
    starts = torch.stack([c + a * 0.5 + b * 0.5, f + d * 0.5 + e * 0.5], dim=1)
    a, b, d, e = (_to_fixed_point(value).view(-1, 1, 1) for value in (a, b, d, e))
    start_x, start_y = (_to_fixed_point(value).view(-1, 1, 1) for value in starts.unbind(1))
    x, y = torch.arange(width), torch.arange(height).unsqueeze(1)
    from_x, from_y = (start_x + a * x + b * y) >> 16, (start_y + d * x + e * y) >> 16
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    indices = (from_y.clamp(0, height - 1) * width + from_x.clamp(0, width - 1)).view(count, 1, -1)
    indices, inside = send(indices, images.device), send(inside.unsqueeze(1), images.device)
    moved = images.flatten(2).gather(2, indices.expand(-1, channels, -1)).view_as(images)
    return torch.where(inside, moved, torch.tensor(GREY, dtype=torch.uint8))


def invert(images: Tensor) -> Tensor:
    """Return 255 - image."""
    return 255 - images


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert pixels at or above the threshold."""
    return torch.where(images.int() < send(threshold.view(-1, 1, 1, 1), images.device), images, 255 - images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the `bits` most significant bits of every pixel."""
    mask = (256 - 2 ** (8 - bits)).to(torch.uint8).view(-1, 1, 1, 1)
    return images & send(mask, images.device)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel so that its darkest pixel becomes 0 and its brightest pixel 255."""
    flat = images.flatten(2)
    low, high = flat.amin(2, keepdim=True).double(), flat.amax(2, keepdim=True).double()
    levels = torch.arange(256, dtype=torch.float64, device=images.device)
    scale = levels[255] / torch.where(high > low, high - low, 255.0)  # torch computes 255.0 / x as 255.0 * (1 / x)
    stretched = (levels * scale + -low * scale).clamp(0, 255).floor()
    return _look_up(images, torch.where(high > low, stretched, levels))


def equalize(images: Tensor) -> Tensor:
    """Equalize each channel's histogram."""
    counts = histograms(images)
    levels = torch.arange(256, device=images.device)
    brightest = torch.where(counts > 0, levels, 0).amax(2, keepdim=True)
    step = (counts.sum(2, keepdim=True) - counts.gather(2, brightest)) // 255
    darker = counts.cumsum(2) - counts
    spread = ((step // 2 + darker) // step.clamp(min=1)).clamp(max=255)
    return _look_up(images, torch.where(step > 0, spread, levels))


def colour(images: Tensor, factor: Tensor) -> Tensor:
    """Apply ImageEnhance.Color: blend each pixel with its own grey level. Greyscale images do not change."""
    return images if images.shape[1] == 1 else blend(luma(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Apply ImageEnhance.Contrast: blend each pixel with the image's mean grey level."""
    greys = luma(images).flatten(1)
    mean = (greys.sum(1, dtype=torch.int64).double() / greys.shape[1] + 0.5).floor()
    return blend(mean.view(-1, 1, 1, 1), images, factor)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Apply ImageEnhance.Brightness: blend each pixel with black."""
    return blend(images.new_zeros(1), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Apply ImageEnhance.Sharpness: blend the interior with a copy smoothed by (1 1 1, 1 5 1, 1 1 1) / 13."""
    smooth = images.clone()
    if min(images.shape[2:]) >= 3:
        levels = images.to(torch.int16)
        rows = levels[:, :, :-2] + levels[:, :, 1:-1] + levels[:, :, 2:]
        sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * levels[:, :, 1:-1, 1:-1]
        smooth[:, :, 1:-1, 1:-1] = ((2 * sums + 13) // 26).to(torch.uint8)
    return blend(smooth, images, factor)


def blend(reference: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Return reference + factor * (image - reference) as Image.blend: in float32, clamped to 0..255, truncated."""
    low, factor = reference.float(), send(factor.float().view(-1, 1, 1, 1), images.device)
    return (low + factor * (images.float() - low)).clamp(0, 255).to(torch.uint8)


def luma(images: Tensor) -> Tensor:
    """Convert (N, C, H, W) to grey (N, 1, H, W), as Image.convert("L") does."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().split(1, dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8)


def histograms(images: Tensor) -> Tensor:
    """Count the pixels at each level of each channel: (N, C, H, W) -> (N, C, 256)."""
    count, channels = images.shape[:2]
    counts = torch.zeros(count * channels * 256, dtype=torch.int64, device=images.device)
    indices = _table_indices(images).flatten()
    return counts.index_add_(0, indices, torch.ones_like(indices)).view(count, channels, 256)


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace each pixel by the entry for its level in the (N, C, 256) table."""
    return table.to(torch.uint8).flatten().take(_table_indices(images)).view_as(images)


def _table_indices(images: Tensor) -> Tensor:
    """Return the index of each pixel's level in a flattened (N, C, 256) table."""
    count, channels = images.shape[:2]
    return images.flatten(2).long() + 256 * torch.arange(count * channels, device=images.device).view(
        count, channels, 1
    )


def _to_fixed_point(values: Tensor) -> Tensor:
    return (values * 65536 + 0.5).floor().long()
