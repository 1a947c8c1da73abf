"""Residual networks for private learning: wide ones, and ResNet-9.

The WRN-16-4 and WRN-40-4 of De et al. 2022 (arXiv 2204.13650) differ from the wide residual networks of 2016 in four
ways: GroupNorm with 16 groups instead of batch statistics, the normalisation after the activation, standardised filters
with gain and bias, and the skip of the first block of a stage having an activation and a normalisation of its own.

In the ResNet-9 of Klause et al. 2022 (arXiv 2203.00324), which others use on MedMNIST and CIFAR, each convolution is
followed by GroupNorm with 32 groups and Mish; the sum that ends a residual block is normalised once more ("ScaleNorm"),
which the authors found to help under differential privacy.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models.standardise import StandardisedConv2d

WIDE_GROUPS, RESNET9_GROUPS = 16, 32


def wide_resnet(
    shape: tuple[int, int, int],
    classes: int,
    *,
    depth: int = 16,
    width: int = 4,
    conv: type[nn.Conv2d] = StandardisedConv2d,
) -> nn.Module:
    """3x3 convolution to 16 channels, three stages of (depth - 4) / 6 blocks, mean over the pixels, linear."""
    blocks, odd = divmod(depth - 4, 6)
    if blocks < 1 or odd:
        raise ConfigError(f"a wide residual network has depth 6 n + 4, such as 16 or 40, not {depth}.")
    layers: list[nn.Module] = [conv(shape[0], 16, 3, padding=1)]
    channels = 16
    for filters, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
        for block in range(blocks):
            layers.append(Block(channels, filters, stride=1 if block else stride, skip=block == 0, conv=conv))
            channels = filters
    head = nn.Linear(channels, classes)
    model = nn.Sequential(*layers, ReluNorm(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    model.apply(_initialise_wide)
    return model


def _initialise_wide(module: nn.Module) -> None:
    """Variance 1 / fan_in, normal for the filters and cut at two deviations for the head; every bias zero."""
    if isinstance(module, nn.Conv2d):
        nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
    elif isinstance(module, nn.Linear):
        std = 1 / math.sqrt(module.in_features) / 0.87962566  # a normal cut at 2 has deviation 0.88
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)


class ReluNorm(nn.Module):
    """The activation, then the normalisation, in this order."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(WIDE_GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.relu(x))


class Block(nn.Module):
    """x' = skip(x) + conv2(norm2(conv1(norm1(x)))); the skip is the identity or a 1x1 convolution of its own norm."""

    def __init__(self, channels: int, filters: int, *, stride: int, skip: bool, conv: type[nn.Conv2d]) -> None:
        super().__init__()
        self.skip = (
            nn.Sequential(ReluNorm(channels), conv(channels, filters, 1, stride=stride)) if skip else nn.Identity()
        )
        self.norm1 = ReluNorm(channels)
        self.conv1 = conv(channels, filters, 3, stride=stride, padding=1 if stride == 1 else 0)
        self.norm2 = ReluNorm(filters)
        self.conv2 = conv(filters, filters, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(x)
        if self.conv1.stride[0] == 2:
            inner = _same(inner)
        return self.skip(x) + self.conv2(self.norm2(self.conv1(inner)))


def _same(x: Tensor) -> Tensor:
    """SAME padding of a 3x3 convolution with stride 2: one zero, after an even side; around an odd one, two."""
    return F.pad(x, (x.shape[-1] % 2, 1, x.shape[-2] % 2, 1))


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
    return nn.GroupNorm(min(RESNET9_GROUPS, channels // 2), channels)
