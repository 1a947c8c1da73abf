"""Vision transformers in plain torch (Dosovitskiy et al. 2021), including DINOv2's ViT-S/14 (Oquab et al. 2023).

Parameters have the names of DINOv2's published weights, so that `pretrained.load_public` can load them. Each image is
processed separately; attention is over the tokens of one image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import published_names
from dpvision.models.featured import ImagenetInput

EPS = 1e-6
DINOV2_PATCH, DINOV2_GRID = 14, (37, 37)


def dinov2_vits14(shape: tuple[int, int, int], classes: int, *, side: int = 154) -> Vit:
    """Build ViT-S/14 with width 384, 12 blocks and 6 heads. Images are resized to a shorter side of `side`.

    Logistic regression on frozen features of 1,000 CIFAR-10 images has an accuracy of 83% at 112 pixels and 94% at 154.
    The weights are public, but their training images came from the web and may include images of a benchmark.
    """
    return _dinov2(shape, classes, side=side, width=384, heads=6, name="dinov2-vits14")


def dinov2_vitb14(shape: tuple[int, int, int], classes: int, *, side: int = 224) -> Vit:
    """ViT-B/14: 768 wide, 12 blocks, 12 heads. Images are resized so that their shorter side is `side`."""
    return _dinov2(shape, classes, side=side, width=768, heads=12, name="dinov2-vitb14")


def _dinov2(shape: tuple[int, int, int], classes: int, *, side: int, width: int, heads: int, name: str) -> Vit:
    if side % DINOV2_PATCH:
        raise ConfigError(f"{name} needs a side that is a multiple of {DINOV2_PATCH}, not {side}.")
    shorter = min(shape[1:])
    size = tuple(round(n * side / shorter / DINOV2_PATCH) * DINOV2_PATCH for n in shape[1:])
    prepare = ImagenetInput(shape[0], (size[0], size[1]))
    return Vit(3, classes, patch=DINOV2_PATCH, grid=DINOV2_GRID, width=width, depth=12, heads=heads, prepare=prepare)


def vit_tiny(shape: tuple[int, int, int], classes: int) -> Vit:
    """Build two blocks of width 64 on patches of 4x4, for small images and training from scratch."""
    channels, height, width = shape
    if height % 4 or width % 4:
        raise ConfigError(f"vit-tiny needs sides that are multiples of 4, not {height}x{width}. Fix: use --size 32.")
    return Vit(channels, classes, patch=4, grid=(height // 4, width // 4), width=64, depth=2, heads=4)


class Vit(nn.Module):
    """A vision transformer with a zero head. `grid` is the grid of patches for which positions are stored."""

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        patch: int,
        grid: tuple[int, int],
        width: int,
        depth: int,
        heads: int,
        prepare: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.prepare = nn.Identity() if prepare is None else prepare
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + grid[0] * grid[1], width))
        self.patch_embed = PatchEmbed(channels, width, patch)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.head = nn.Linear(width, classes)
        self.apply(_initialise)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Return the class token after the last norm, as (N, width)."""
        patches = self.patch_embed(self.prepare(x))
        rows, columns = patches.shape[2:]
        class_token = self.cls_token.expand(x.shape[0], -1, -1)  # len(x) would become constant in an exported graph
        tokens = torch.cat([class_token, patches.flatten(2).transpose(1, 2)], dim=1) + self.positions(rows, columns)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)[:, 0]

    def from_published(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return published tensors under the names of this model (`published_names`)."""
        return published_names.dinov2(tensors, depth=len(self.blocks))

    def positions(self, rows: int, columns: int) -> Tensor:
        """Return the stored positions, resized bicubically to a grid by (rows + 0.1) / stored rows, as in DINOv2."""
        if (rows, columns) == self.grid:
            return self.pos_embed
        image = self.pos_embed[:, 1:].unflatten(1, self.grid).permute(0, 3, 1, 2)
        scale = [(n + 0.1) / stored for n, stored in zip((rows, columns), self.grid, strict=True)]
        if image.device.type == "cpu":
            resized = F.interpolate(image, scale_factor=scale, mode="bicubic")
        else:  # use products, because the gradient of torch's kernel on accelerators is not deterministic
            down, across = (_bicubic(stored, factor).to(image) for stored, factor in zip(self.grid, scale, strict=True))
            resized = down.T @ image @ across
        return torch.cat([self.pos_embed[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)


def _bicubic(length: int, factor: float) -> Tensor:
    """Return the (length, new length) matrix that resizes along one axis."""
    return F.interpolate(torch.eye(length)[None, :, None], scale_factor=(1, factor), mode="bicubic")[0, :, 0]


class PatchEmbed(nn.Module):
    """A linear map from each patch of pixels to a token."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class Block(nn.Module):
    """A transformer block: x + gamma attention(norm(x)), then the same with a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPS)
        self.attn = Attention(width, heads)
        self.ls1 = LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=EPS)
        self.mlp = Mlp(width)
        self.ls2 = LayerScale(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class Attention(nn.Module):
    """Self-attention, softmax(q k' / sqrt(d)) v for each head, with one linear layer for q, k and v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (N, tokens, 3, heads, d)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two linear layers with the exact GELU in between, and a hidden width of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
