"""EfficientNet-Lite0 in plain torch (Tan and Le 2019; Google 2020), for frozen features: 1,280 of each image.

Its batch normalisations are those of a finished training, so each is a fixed scale and shift of every channel. They are
folded into the convolution before them (docs/efficientnet-lite.md), and none is left: every image is treated alone.
"""

from __future__ import annotations

from math import ceil

import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.models.imagenet import ImagenetInput

SIDE, STEM, WIDTH = 224, 32, 1280
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3  # (255 x - 127) / 128, for x in [0, 1]
# How many blocks, and of them: kernel, stride of the first, expansion, channels.
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
    """Images are resized so that their shorter side is `side`. 4.6 million weights, most of the head's with 1,000
    classes."""
    shorter = min(shape[1:])
    size = round(shape[1] * side / shorter), round(shape[2] * side / shorter)
    return EfficientNetLite(classes, prepare=ImagenetInput(shape[0], size, mean=MEAN, std=STD))


class EfficientNetLite(nn.Module):
    """head(features(x)), the head from zero."""

    def __init__(self, classes: int, *, prepare: nn.Module) -> None:
        super().__init__()
        self.prepare = prepare
        self.stem = Convolution(3, STEM, 3, stride=2)
        channels, blocks = STEM, []
        for count, kernel, stride, expansion, wanted in STAGES:
            for number in range(count):
                blocks.append(Block(channels, wanted, kernel, stride=1 if number else stride, expansion=expansion))
                channels = wanted
        self.blocks = nn.Sequential(*blocks)
        self.last = Convolution(channels, WIDTH, 1)
        self.head = nn.Linear(WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """(N, 1280): the mean over all places."""
        return self.last(self.blocks(self.stem(self.prepare(x)))).mean((2, 3))


class Block(nn.Module):
    """project(depthwise(expand(x))), and x itself on top where the shapes are the same."""

    def __init__(self, channels: int, wanted: int, kernel: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = Convolution(channels, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = Convolution(inner, inner, kernel, stride=stride, groups=inner)
        self.project = nn.Conv2d(inner, wanted, 1)
        self.stays = stride == 1 and channels == wanted

    def forward(self, x: Tensor) -> Tensor:
        found = self.project(self.depthwise(self.expand(x)))
        return x + found if self.stays else found


class Convolution(nn.Module):
    """min(max(convolution, 0), 6) at every `stride`-th place; where padding is odd, one more right and below."""

    def __init__(self, channels: int, wanted: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.conv = nn.Conv2d(channels, wanted, kernel, stride=stride, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        (top, bottom), (left, right) = (self._padding(length) for length in x.shape[2:])
        return F.relu6(self.conv(F.pad(x, (left, right, top, bottom)) if self.kernel > 1 else x))

    def _padding(self, length: int) -> tuple[int, int]:
        both = max(0, (ceil(length / self.stride) - 1) * self.stride + self.kernel - length)
        return both // 2, both - both // 2
