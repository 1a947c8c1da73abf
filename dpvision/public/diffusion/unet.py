"""A U-Net in several sizes, for any image size, after DDPM++ (Song et al. 2021) as used by Karras et al. 2022.

Noise levels are embedded as sines and cosines, and classes as scaled one-hot vectors with mean square 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvision.errors import ConfigError

AUGMENT = 9  # length of the vector that describes an image's augmentation; see fit.py
SKIP_SCALE = math.sqrt(0.5)  # preserves the variance when two branches are added


@dataclass(frozen=True)
class Size:
    """The size of a U-Net. The finest resolution is the slowest on a CPU, so it has the fewest channels."""

    channels: tuple[int, ...]  # at each resolution, finest first
    blocks: int = 1  # per resolution on the way down; one more on the way up
    attention: tuple[int, ...] = (1,)  # resolutions with attention; 0 is the finest
    dropout: float = 0.0
    patch: int = 2  # side of the pixel patches that are folded into channels


SIZES = {
    "tiny": Size((16, 40)),  # 0.3 million weights
    "small": Size((32, 80)),  # 1 million
    "medium": Size((64, 128, 192), patch=1, dropout=0.1),  # 7 million
    "paper": Size((256, 256, 256), blocks=4, dropout=0.13, patch=1),  # 56 million
}


def unet_size(name: str) -> Size:
    """Return the size with this name."""
    if name not in SIZES:
        raise ConfigError(f"there is no U-Net of size {name!r}. There are: {', '.join(SIZES)}.")
    return SIZES[name]


def normalisation(width: int) -> nn.GroupNorm:
    groups = next(g for g in (32, 24, 16, 12, 8, 6, 4, 3, 2, 1) if width % g == 0 and width >= 4 * g)
    return nn.GroupNorm(groups, width, eps=1e-6)


def convolution(cin: int, cout: int, *, kernel: int = 3, zero: bool = False) -> nn.Conv2d:
    """Build a convolution with Glorot uniform weights. With `zero` they are tiny, so that a branch starts near zero."""
    layer = nn.Conv2d(cin, cout, kernel, padding=kernel // 2)
    nn.init.xavier_uniform_(layer.weight, gain=1e-5 if zero else 1.0)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def linear(cin: int, cout: int) -> nn.Linear:
    layer = nn.Linear(cin, cout)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class UNet(nn.Module):
    """A U-Net: (B, C, H, W), (B,) noise, (B,) labels, (B, 9) augmentation or None -> (B, C, H, W).

    The resolution is halved until the list of channels ends or a side is odd, as in 28 -> 14 -> 7.
    """

    def __init__(self, size: Size, shape: tuple[int, int, int], *, classes: int) -> None:
        super().__init__()
        channels, *sides = shape
        if any(side % size.patch for side in sides):
            raise ConfigError(
                f"images of {sides[0]}x{sides[1]} cannot be cut into patches of {size.patch}x{size.patch}. "
                f"Fix: use --resize to a multiple of {size.patch}, or a --size without patches (medium, paper)."
            )
        self.patch = size.patch
        sides = [side // size.patch for side in sides]
        halvings = next((n for n in range(len(size.channels)) if any(side % 2 ** (n + 1) for side in sides)), None)
        widths = size.channels if halvings is None else size.channels[: halvings + 1]
        pixels, first = channels * size.patch**2, widths[0]
        base = max(first // 2, 32)
        self.embedding = Embedding(base, 4 * base, classes=classes)
        self.enter = convolution(pixels, first)

        def block(cin: int, cout: int, level: int, *, attends: bool, resample: int = 0) -> Block:
            attends = attends and level in size.attention
            return Block(cin, cout, 4 * base, resample=resample, attention=attends, dropout=size.dropout)

        down, skips, width = [], [first], first
        for level, out in enumerate(widths):
            if level:
                down.append(block(width, out, level, attends=False, resample=-1))
                skips.append(out)
            for number in range(size.blocks):
                cin = width if number == 0 and not level else out
                down.append(block(cin, out, level, attends=True))
                skips.append(out)
            width = out
        last = len(widths) - 1
        self.down = nn.ModuleList(down)
        self.middle = nn.ModuleList([block(width, width, last, attends=True), block(width, width, last, attends=False)])
        up = []
        for level, out in reversed(list(enumerate(widths))):
            if level < last:
                up.append(block(width, out, level, attends=False, resample=1))
            for number in range(size.blocks + 1):
                cin = out + skips.pop()
                up.append(block(cin, out, level, attends=number == size.blocks))
            width = out
        self.up = nn.ModuleList(up)
        self.norm, self.leave = normalisation(first), convolution(first, pixels, zero=True)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
        vector = self.embedding(noise, labels, augment)
        x = F.pixel_unshuffle(x, self.patch).contiguous(memory_format=torch.channels_last)
        x = self.enter(x)
        skips = [x]
        for block in self.down:
            x = block(x, vector)
            skips.append(x)
        for block in self.middle:
            x = block(x, vector)
        for block in self.up:
            if not block.resample:
                x = torch.cat([x, skips.pop()], dim=1)
            x = block(x, vector)
        x = self.leave(F.silu(self.norm(x)))
        return F.pixel_shuffle(x, self.patch)


class Block(nn.Module):
    """A residual block of two convolutions with conditioning on noise and class in between, then optional attention."""

    def __init__(self, cin: int, cout: int, condition: int, *, resample: int, attention: bool, dropout: float) -> None:
        super().__init__()
        self.resample, self.dropout = resample, dropout  # resample -1 halves the sides, 1 doubles them
        self.norm0, self.conv0 = normalisation(cin), convolution(cin, cout)
        self.tell = linear(condition, cout)
        self.norm1, self.conv1 = normalisation(cout), convolution(cout, cout, zero=True)
        self.skip = convolution(cin, cout, kernel=1) if cin != cout else None
        self.attention = Attention(cout) if attention else None

    def forward(self, x: Tensor, vector: Tensor) -> Tensor:
        y = self.conv0(self._resample(F.silu(self.norm0(x))))
        y = F.silu(self.norm1(y + self.tell(vector)[:, :, None, None]))
        y = self.conv1(F.dropout(y, self.dropout, self.training))
        # A 1x1 convolution commutes with resampling, so it is done at the lower resolution.
        x = self._resample(x) if self.resample < 0 else x
        x = x if self.skip is None else self.skip(x)
        x = self._resample(x) if self.resample > 0 else x
        x = (x + y) * SKIP_SCALE
        return x if self.attention is None else self.attention(x)

    def _resample(self, x: Tensor) -> Tensor:
        if self.resample < 0:
            return F.avg_pool2d(x, 2)
        return F.interpolate(x, scale_factor=2, mode="nearest") if self.resample > 0 else x


class Attention(nn.Module):
    """Self-attention over all positions, with one head and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = normalisation(width), convolution(width, 3 * width, kernel=1)
        self.project = convolution(width, width, kernel=1, zero=True)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.qkv(self.norm(x)).flatten(2).transpose(1, 2)  # (B, H W, 3 C)
        attended = F.scaled_dot_product_attention(*positions.chunk(3, dim=2))
        attended = attended.transpose(1, 2).reshape(x.shape).contiguous(memory_format=torch.channels_last)
        return (x + self.project(attended)) * SKIP_SCALE


class Embedding(nn.Module):
    """Embed each image's noise level, class and augmentation in one vector, which conditions every block."""

    def __init__(self, width: int, out: int, *, classes: int) -> None:
        super().__init__()
        self.width, self.classes = width, classes
        self.label = nn.Linear(classes, width)
        self.augment = nn.Linear(AUGMENT, width, bias=False)
        self.layers = nn.Sequential(nn.Linear(width, out), nn.SiLU(), nn.Linear(out, out), nn.SiLU())
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, noise: Tensor, labels: Tensor, augment: Tensor | None) -> Tensor:
        sum_ = sinusoidal_embedding(noise, self.width) + self.label(one_hot_code(labels, self.classes))
        if augment is not None:
            sum_ = sum_ + self.augment(augment)
        vector: Tensor = self.layers(sum_)
        return vector


def sinusoidal_embedding(values: Tensor, width: int) -> Tensor:
    """Map (B,) to (B, width) cosines and sines with periods from 2 pi to 20,000 pi, as in position embeddings."""
    half = width // 2
    frequencies = (1 / 10_000) ** (torch.arange(half, dtype=torch.float32, device=values.device) / half)
    angles = values.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def one_hot_code(labels: Tensor, classes: int) -> Tensor:
    """Map (B,) to (B, C) one-hot vectors times sqrt(C), which have mean square 1 like the other inputs."""
    return F.one_hot(labels, classes).float() * math.sqrt(classes)
