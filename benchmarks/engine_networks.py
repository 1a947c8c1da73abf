"""The networks on which the clipping engine is measured, with made-up images of the right shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

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


def timm_network(name: str) -> nn.Module:
    """A network of timm with GroupNorm in place of batch statistics, without dropout and operations in place."""
    import timm

    model = timm.create_model(name, num_classes=CLASSES, drop_path_rate=0.0)
    for module in list(model.modules()):
        for child_name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):  # timm's own kind includes the activation after it
                norm = nn.GroupNorm(math.gcd(8, child.num_features), child.num_features)
                setattr(module, child_name, nn.Sequential(norm, getattr(child, "act", nn.Identity())))
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


# Image sizes that a CPU can train; transformers with positions need theirs.
TIMM = {
    "vit_tiny_patch16_224": 224,
    "deit_tiny_patch16_224": 224,
    "swin_tiny_patch4_window7_224": 224,
    "crossvit_tiny_240": 240,
    "convnext_atto": 96,
    "efficientnet_b0": 96,
    "mobilenetv3_small_100": 96,
}


def linear_probe() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4096, CLASSES, bias=False))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "wrn-16-4": (lambda: wide_resnet(SMALL, CLASSES, conv=nn.Conv2d), SMALL),
    "wrn-16-4-ws": (lambda: wide_resnet(SMALL, CLASSES), SMALL),
    "tanh-cnn": (tanh_cnn, SMALL),
    "vit-s-16": (TransformerBlocks, (1, TOKENS, WIDTH)),
    "linear-probe": (linear_probe, (4096, 1, 1)),
    **{name: (partial(timm_network, name), (3, side, side)) for name, side in TIMM.items()},
}


def load(name: str, count: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The network, `count` images and their classes: the same in every process."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, block = build(), torch.randn(min(count, 1000), *shape)
    images = block.repeat(-(-count // len(block)), 1, 1, 1)[:count]
    return model, images, torch.randint(0, CLASSES, (count,))
