"""Group normalisation with few channels in a group and the channels last: sums over places, whole vectors at a time.

torch's kernel takes the channels of one group at a time. Where these do not fill a vector it is up to five times slower
than this, and it must be called for each unit alone, as it gives the gradients of scale and shift of all images in one.

    mean, 1/deviation      of each image and group, from the sums of x and x^2 over places
    y                      x a + c, with a = w / deviation and c = b - mean a for each image and channel
    dw, db                 sum of dy (x - mean) / deviation, and sum of dy, for each image and channel
    dx                     dy a + x q + p, for each image, with q and p for each group

Every number is rounded on its own (no fused operations), and sums over places have the same order in any batch: an
image has the same bits whatever else is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

FEW = 8  # channels in a group: from here on torch's kernel fills its vectors
IN_CACHE = 1 << 18  # numbers that are worked on at a time
# From so many places on, torch's forward pass goes by channels as well, in one go.
MANY_PLACES = 1024


def suits(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int) -> bool:
    """Of images with the channels last, by shapes alone."""
    return weight is not None and bias is not None and x.shape[1] // groups < FEW


def normalised(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y, and the mean and the inverse deviation of each image and group."""
    count, channels, places = len(x), x.shape[1], x.shape[2:].numel()
    if places >= MANY_PLACES:
        return torch.native_group_norm(x, weight, bias, count, channels, places, groups, eps)
    y, size = torch.empty_like(x), places * channels // groups
    mean, inverse = x.new_empty(count, groups, 1), x.new_empty(count, groups, 1)
    for some in _pieces(x):
        v = x[some]
        m, square = (_by_group(_over_places(t), groups).sum(2, keepdim=True) / size for t in (v, v * v))
        r = ((square - m * m).clamp(min=0) + eps).rsqrt()
        a = r * weight.view(groups, -1)
        c = bias.view(groups, -1) - m * a
        torch.mul(v, _by_channel(a), out=y[some])
        y[some] += _by_channel(c)
        mean[some], inverse[some] = m, r
    return y, mean.squeeze(2), inverse.squeeze(2)


def gradients(dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dx, and dw and db of each image: (images, channels)."""
    groups, w = mean.shape[1], weight.view(mean.shape[1], -1)
    dx, size = torch.empty_like(x), x.shape[2:].numel() * w.shape[1]
    dw, db = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    for some in _pieces(x):
        d, v, m, r = dy[some], x[some], mean[some].unsqueeze(2), inverse[some].unsqueeze(2)
        total, product = (_by_group(_over_places(t), groups) for t in (d, d * v))
        along = (product - total * m) * r
        dw[some], db[some] = along.flatten(1), total.flatten(1)
        q = r * r * ((along * w).sum(2, keepdim=True) / size)
        p = q * m - r * ((total * w).sum(2, keepdim=True) / size)
        torch.mul(d, _by_channel(r * w), out=dx[some])
        dx[some] -= v * _by_channel(q.expand_as(total))
        dx[some] += _by_channel(p.expand_as(total))
    return dx, dw, db


def _pieces(x: Tensor) -> Iterator[slice]:
    size = max(1, IN_CACHE // max(1, x[0].numel()))
    return (slice(start, start + size) for start in range(0, len(x), size))


def _over_places(t: Tensor) -> Tensor:
    """(images, channels)"""
    return t.sum((2, 3))


def _by_group(t: Tensor, groups: int) -> Tensor:
    return t.view(len(t), groups, -1)


def _by_channel(t: Tensor) -> Tensor:
    """(images, groups, channels of one) -> (images, channels, 1, 1)"""
    return t.reshape(len(t), -1, 1, 1)
