"""ResNet-9 for private learning (Klause et al. 2022, arXiv 2203.00324), which others use on MedMNIST and CIFAR.

Each convolution is followed by GroupNorm with 32 groups and Mish; the sum that ends a residual block is normalised once
more ("ScaleNorm"), which the authors found to help under differential privacy.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError

GROUPS = 32


def resnet9(shape: tuple[int, int, int], classes: int, *, width: int = 64) -> nn.Module:
    """Channels w, 2w, block, 4w, 4w, block, halving the image before each doubling's end; maximum to 2x2; linear."""
    channels, height, columns = shape
    if min(height, columns) < 8:
        raise ConfigError(f"resnet-9 needs 8x8 pixels at least, not {height}x{columns}. Fix: --model small-cnn.")
    return nn.Sequential(
        Layer(channels, width),
        Layer(width, 2 * width, pool=True),
        Residual(2 * width),
        Layer(2 * width, 4 * width, pool=True),
        Layer(4 * width, 4 * width, pool=True),
        Residual(4 * width),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 4 * width, classes),
    )


class Layer(nn.Module):
    """pool(mish(norm(conv(x)))), the convolution 3x3 without bias."""

    def __init__(self, channels: int, filters: int, *, pool: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        self.norm = _norm(filters)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = F.mish(self.norm(self.conv(x)))
        return F.max_pool2d(x, 2) if self.pool else x


class Residual(nn.Module):
    """norm(x + layer(layer(x)))"""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(channels, channels), Layer(channels, channels))
        self.norm = _norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.layers(x))


def _norm(channels: int) -> nn.GroupNorm:
    """Two channels in a group at least, as at the full width."""
    return nn.GroupNorm(min(GROUPS, channels // 2), channels)
