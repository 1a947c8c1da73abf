"""CLIP's image tower (Radford et al. 2021), a vision transformer trained with captions; the text tower is not needed.

Differences from DINOv2's transformer: a layer norm before the first layer, no layer scale, patches without a bias, and
another approximation of the GELU. Features are the class token after the last norm, before the projection into the
space that images share with texts. Every image is treated separately.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpvision.models import published_names
from dpvision.models.featured import Colours, ImagenetInput
from dpvision.models.transformer_layer import TransformerLayer, initialise, quick_gelu

EPS = 1e-5
SIDE = 224
MEAN: Colours = (0.48145466, 0.4578275, 0.40821073)
STD: Colours = (0.26862954, 0.26130258, 0.27577711)


def clip_vit_b32(shape: tuple[int, int, int], classes: int) -> ClipTower:
    """ViT-B/32: 768 wide, 12 layers, 12 heads. Images are resized to 224x224 pixels, whatever their shape."""
    return _base(shape, classes, patch=32)


def clip_vit_b16(shape: tuple[int, int, int], classes: int) -> ClipTower:
    """ViT-B/16: as ViT-B/32, with four times as many patches."""
    return _base(shape, classes, patch=16)


def _base(shape: tuple[int, int, int], classes: int, *, patch: int) -> ClipTower:
    prepare = ImagenetInput(shape[0], (SIDE, SIDE), mean=MEAN, std=STD)
    return ClipTower(classes, patch=patch, grid=SIDE // patch, width=768, depth=12, heads=12, prepare=prepare)


class ClipTower(nn.Module):
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
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + grid * grid, width))
        self.patch_embed = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.norm_pre = nn.LayerNorm(width, eps=EPS)
        self.blocks = nn.ModuleList(
            TransformerLayer(width, heads, activation=quick_gelu, eps=EPS) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.head = nn.Linear(width, classes)
        self.apply(initialise)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """(N, width): the class token after the last norm."""
        patches = self.patch_embed(self.prepare(x)).flatten(2).transpose(1, 2)
        class_token = self.cls_token.expand(x.shape[0], -1, -1)  # len(x) would be a constant in an exported graph
        tokens = self.norm_pre(torch.cat([class_token, patches], dim=1) + self.pos_embed)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens[:, 0])

    def from_published(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return published tensors under the names of this model (`published_names`)."""
        return published_names.clip(tensors, depth=len(self.blocks))
