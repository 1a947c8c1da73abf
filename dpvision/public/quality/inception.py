"""Inception-v3 in plain torch, as used in the definition of FID (Szegedy et al. 2016; Heusel et al. 2017).

This is TensorFlow's network of December 2015. It differs from that of most libraries: 3x3 average pooling excludes the
padding, the last block uses maximum pooling instead, and images are enlarged with their first pixels aligned. Batch
normalisation has fixed statistics and is folded into the preceding convolution, so images do not affect each other.
`python -m benchmarks.inception_weights` writes the weight file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE, WIDTH, CLASSES = 299, 2048, 1008
Kernel = int | tuple[int, int]


class Inception(nn.Module):
    """A classifier for images (N, 1 or 3, H, W) in [-1, 1], with 2,048 features before its head.

    The head has no bias, as in the Inception score. It stays zero if the weight file, made only for FID, has no head.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.prepare = InceptionInput((shape[1], shape[2]))
        self.stem = nn.Sequential(
            Convolution(3, 32, 3, stride=2),
            Convolution(32, 32, 3),
            Convolution(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            Convolution(64, 80, 1),
            Convolution(80, 192, 3),
            nn.MaxPool2d(3, 2),
        )
        self.blocks = nn.Sequential(
            fine(192, 32),
            fine(256, 64),
            fine(288, 64),
            to_middle(288),
            middle(768, 128),
            middle(768, 160),
            middle(768, 160),
            middle(768, 192),
            to_coarse(768),
            Coarse(1280, _average_pool()),
            Coarse(WIDTH, nn.MaxPool2d(3, 1, 1)),
        )
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Return the features (N, 2048), averaged over all positions."""
        return self.blocks(self.stem(self.prepare(x))).mean((2, 3))


class InceptionInput(nn.Module):
    """Map x in [0, 1] to (255 x - 128) / 128, in three channels, resized to 299x299 by linear interpolation."""

    rows: Tensor
    columns: Tensor

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        for name, length in zip(("rows", "columns"), size, strict=True):
            self.register_buffer(name, linear_interpolation(length, SIDE), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        resized = self.rows @ ((x + 1) * 127.5) @ self.columns.T
        colours = ((resized - 128) / 128).expand(-1, 3, -1, -1)
        return colours.contiguous(memory_format=torch.channels_last)  # faster, here and on accelerators


def linear_interpolation(length: int, size: int) -> Tensor:
    """Return the (size, length) matrix that samples pixel i of the result at i * length / size, as in TensorFlow 1."""
    positions = torch.arange(size, dtype=torch.float64) * length / size
    before = positions.floor().long()
    after, share = (before + 1).clamp(max=length - 1), positions - before
    matrix = torch.zeros(size, length, dtype=torch.float64)
    rows = torch.arange(size)
    matrix.index_put_((rows, before), 1 - share, accumulate=True)
    matrix.index_put_((rows, after), share, accumulate=True)
    return matrix.float()


class Convolution(nn.Module):
    """A convolution followed by ReLU."""

    def __init__(
        self, channels: int, out: int, kernel: Kernel, *, stride: int = 1, padding: int | tuple[int, int] = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Branches(nn.Module):
    """Several branches whose outputs are concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def fine(channels: int, pooled: int) -> Branches:
    """Build a block at 35x35 positions: 1x1; 5x5; two of 3x3; average pooling."""
    return Branches(
        Convolution(channels, 64, 1),
        nn.Sequential(Convolution(channels, 48, 1), Convolution(48, 64, 5, padding=2)),
        nn.Sequential(
            Convolution(channels, 64, 1), Convolution(64, 96, 3, padding=1), Convolution(96, 96, 3, padding=1)
        ),
        nn.Sequential(_average_pool(), Convolution(channels, pooled, 1)),
    )


def to_middle(channels: int) -> Branches:
    """Build the block that reduces 35x35 positions to 17x17."""
    return Branches(
        Convolution(channels, 384, 3, stride=2),
        nn.Sequential(
            Convolution(channels, 64, 1), Convolution(64, 96, 3, padding=1), Convolution(96, 96, 3, stride=2)
        ),
        nn.MaxPool2d(3, 2),
    )


def middle(channels: int, inner: int) -> Branches:
    """Build a block at 17x17 positions: 1x1; 7x7 as a row and a column; the same twice; average pooling."""
    return Branches(
        Convolution(channels, 192, 1),
        nn.Sequential(Convolution(channels, inner, 1), _row(inner, inner, 7), _column(inner, 192, 7)),
        nn.Sequential(
            Convolution(channels, inner, 1),
            _column(inner, inner, 7),
            _row(inner, inner, 7),
            _column(inner, inner, 7),
            _row(inner, 192, 7),
        ),
        nn.Sequential(_average_pool(), Convolution(channels, 192, 1)),
    )


def to_coarse(channels: int) -> Branches:
    """Build the block that reduces 17x17 positions to 8x8."""
    return Branches(
        nn.Sequential(Convolution(channels, 192, 1), Convolution(192, 320, 3, stride=2)),
        nn.Sequential(
            Convolution(channels, 192, 1), _row(192, 192, 7), _column(192, 192, 7), Convolution(192, 192, 3, stride=2)
        ),
        nn.MaxPool2d(3, 2),
    )


class Coarse(Branches):
    """A block at 8x8 positions: 1x1; 1x1, then a row and a column; 1x1 and 3x3, then the same; pooling and 1x1."""

    def __init__(self, channels: int, pool: nn.Module) -> None:
        super().__init__(
            Convolution(channels, 320, 1),
            nn.Sequential(Convolution(channels, 384, 1), _row_and_column()),
            nn.Sequential(Convolution(channels, 448, 1), Convolution(448, 384, 3, padding=1), _row_and_column()),
            nn.Sequential(pool, Convolution(channels, 192, 1)),
        )


def _row_and_column() -> Branches:
    return Branches(_row(384, 384, 3), _column(384, 384, 3))


def _row(channels: int, out: int, length: int) -> Convolution:
    return Convolution(channels, out, (1, length), padding=(0, length // 2))


def _column(channels: int, out: int, length: int) -> Convolution:
    return Convolution(channels, out, (length, 1), padding=(length // 2, 0))


def _average_pool() -> nn.AvgPool2d:
    return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
