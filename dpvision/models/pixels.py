"""Pixels as features: nothing is computed of an image but its scale."""

from __future__ import annotations

from torch import Tensor, nn


class Pixels(nn.Module):
    """Images (N, C, H, W) in [-1, 1] to rows (N, C H W) in [0, 1], which is (x + 1) / 2."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * 0.5 + 0.5
