"""SigLIP's image tower (Zhai et al. 2023), a vision transformer trained with captions and a sigmoid loss.

There is no class token: the tokens of an image are pooled by attention with one learned query. Features are the pooled
token. Every image is treated separately.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.models import published_names
from dpvision.models.featured import Colours, ImagenetInput
from dpvision.models.transformer_layer import Perceptron, TransformerLayer, initialise, tanh_gelu
from dpvision.models.vit import PatchEmbed

EPS = 1e-6
SIDE, PATCH = 224, 16
MEAN: Colours = (0.5, 0.5, 0.5)
STD: Colours = (0.5, 0.5, 0.5)


def siglip_b16(shape: tuple[int, int, int], classes: int) -> SiglipTower:
    """ViT-B/16: 768 wide, 12 layers, 12 heads. Images are resized to 224x224 pixels, whatever their shape."""
    prepare = ImagenetInput(shape[0], (SIDE, SIDE), mean=MEAN, std=STD)
    return SiglipTower(classes, patch=PATCH, grid=SIDE // PATCH, width=768, depth=12, heads=12, prepare=prepare)


class SiglipTower(nn.Module):
    """head(features(x)), with a head of zeros, for square images of `grid` by `grid` patches."""

    def __init__(
        self,
        classes: int,
        *,
        patch: int,
        grid: int,
        width: int,
        depth: int,
        heads: int,
        prepare: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.prepare = nn.Identity() if prepare is None else prepare
        self.pos_embed = nn.Parameter(torch.empty(1, grid * grid, width))
        self.patch_embed = PatchEmbed(3, width, patch)
        self.blocks = nn.ModuleList(TransformerLayer(width, heads, activation=tanh_gelu, eps=EPS) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.pool = AttentionPool(width, heads)
        self.head = nn.Linear(width, classes)
        self.apply(initialise)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """(N, width): the tokens of an image, pooled."""
        tokens = self.patch_embed(self.prepare(x)).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            tokens = block(tokens)
        return self.pool(self.norm(tokens))

    def from_published(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return published tensors under the names of this model (`published_names`)."""
        return published_names.siglip(tensors, depth=len(self.blocks))


class AttentionPool(nn.Module):
    """Tokens (N, tokens, width) to (N, width): attention with a learned query, then a perceptron, which is added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.empty(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.mlp = Perceptron(width, tanh_gelu)
        nn.init.trunc_normal_(self.query, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.zeros_like(x[:, :1]) + self.query  # a row for each image, which the engine has a rule for
        query = self.q(rows).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        parts = self.kv(x).unflatten(-1, (2, self.heads, -1))  # (N, tokens, 2, heads, d)
        k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = self.proj(F.scaled_dot_product_attention(query, k, v).transpose(1, 2).flatten(2))
        return (mixed + self.mlp(self.norm(mixed)))[:, 0]
