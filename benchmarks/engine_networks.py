"""The networks on which the clipping engine is measured, with made-up images of the right shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.models.resnets import wide_resnet

SMALL = (3, 32, 32)
TOKENS, WIDTH = 197, 384  # a 224x224 image in patches of 16, and the class token
CLASSES = 10


def tanh_cnn() -> nn.Module:
    """Six convolutions with tanh and no normalisation, half a million parameters (Papernot et al. 2021)."""
    layers: list[nn.Module] = []
    channels = 3
    for filters in (32, 64, 128):
        for source in (channels, filters):
            layers += [nn.Conv2d(source, filters, 3, padding=1), nn.Tanh()]
        layers.append(nn.MaxPool2d(2))
        channels = filters
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 128), nn.Tanh(), nn.Linear(128, CLASSES))


class TransformerBlock(nn.Module):
    def __init__(self, width: int = WIDTH, heads: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        x = x + self.join(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class TransformerBlocks(nn.Module):
    """The twelve blocks of a ViT-S/16 and its head, from tokens already embedded: (images, 1, tokens, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(x.flatten(1, 2)))[:, 0])


def linear_probe() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4096, CLASSES, bias=False))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "wrn-16-4": (lambda: wide_resnet(SMALL, CLASSES, conv=nn.Conv2d), SMALL),
    "wrn-16-4-ws": (lambda: wide_resnet(SMALL, CLASSES), SMALL),
    "tanh-cnn": (tanh_cnn, SMALL),
    "vit-s-16": (TransformerBlocks, (1, TOKENS, WIDTH)),
    "linear-probe": (linear_probe, (4096, 1, 1)),
}


def load(name: str, count: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The network, `count` images and their classes: the same in every process."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, block = build(), torch.randn(min(count, 1000), *shape)
    images = block.repeat(-(-count // len(block)), 1, 1, 1)[:count]
    return model, images, torch.randint(0, CLASSES, (count,))
