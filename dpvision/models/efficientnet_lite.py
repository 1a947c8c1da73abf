"""EfficientNet-Lite0 in plain torch (Tan and Le 2019; Google 2020), for 1,280 frozen features of each image.

The batch normalisations of the trained network are fixed scales and shifts of channels, and are folded into the
preceding convolutions (docs/efficientnet-lite.md). None remains, so each image is processed separately.
"""

from __future__ import annotations

from math import ceil

import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.models.featured import ImagenetInput

SIDE, STEM, WIDTH = 224, 32, 1280
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3  # (255 x - 127) / 128, for x in [0, 1]
# For each stage: number of blocks, kernel, stride of the first block, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def efficientnet_lite0(shape: tuple[int, int, int], classes: int, *, side: int = SIDE) -> EfficientNetLite:
    """Build the network (3.4 million weights without the head) for images resized to a shorter side of `side`."""
    shorter = min(shape[1:])
    size = round(shape[1] * side / shorter), round(shape[2] * side / shorter)
    return EfficientNetLite(classes, prepare=ImagenetInput(shape[0], size, mean=MEAN, std=STD))


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite with a zero head."""

    def __init__(self, classes: int, *, prepare: nn.Module) -> None:
        super().__init__()
        self.prepare = prepare
        self.stem = Convolution(3, STEM, 3, stride=2)
        channels, blocks = STEM, []
        for count, kernel, stride, expansion, filters in STAGES:
            for number in range(count):
                blocks.append(Block(channels, filters, kernel, stride=1 if number else stride, expansion=expansion))
                channels = filters
        self.blocks = nn.Sequential(*blocks)
        self.last = Convolution(channels, WIDTH, 1)
        self.head = nn.Linear(WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Return the features (N, 1280), averaged over all positions."""
        return self.last(self.blocks(self.stem(self.prepare(x)))).mean((2, 3))


class Block(nn.Module):
    """project(depthwise(expand(x))), plus x if the shapes are the same."""

    def __init__(self, channels: int, filters: int, kernel: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = Convolution(channels, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = Convolution(inner, inner, kernel, stride=stride, groups=inner)
        self.project = nn.Conv2d(inner, filters, 1)
        self.residual = stride == 1 and channels == filters

    def forward(self, x: Tensor) -> Tensor:
        inner = self.project(self.depthwise(self.expand(x)))
        return x + inner if self.residual else inner


class Convolution(nn.Module):
    """A convolution with SAME padding, then ReLU6. If the padding is odd, the extra pixel is on the right and below."""

    def __init__(self, channels: int, filters: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.conv = nn.Conv2d(channels, filters, kernel, stride=stride, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        (top, bottom), (left, right) = (self._padding(length) for length in x.shape[2:])
        return F.relu6(self.conv(F.pad(x, (left, right, top, bottom)) if self.kernel > 1 else x))

    def _padding(self, length: int) -> tuple[int, int]:
        both = max(0, (ceil(length / self.stride) - 1) * self.stride + self.kernel - length)
        return both // 2, both - both // 2
