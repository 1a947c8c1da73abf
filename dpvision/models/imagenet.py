"""The input that networks trained on ImageNet expect, from images in [-1, 1]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImagenetInput(nn.Module):
    """Three channels, standardised by the public mean and deviation of ImageNet, resized bicubically to `size`."""

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        mean, std = (torch.tensor(values, device="cpu").view(1, 3, 1, 1) for values in (MEAN, STD))
        self.register_buffer("scale", 0.5 / std, persistent=False)
        self.register_buffer("shift", (0.5 - mean) / std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """((x + 1) / 2 - mean) / std, then Keys' kernel with a = -0.5 as image libraries have it.

        torch's own kernel for enlarging (a = -0.75) costs DINOv2 two points of accuracy on CIFAR-10 at 112 pixels.
        """
        if self.channels == 1:
            x = x.expand(-1, 3, -1, -1)
        x = x * self.scale + self.shift
        return x if tuple(x.shape[-2:]) == self.size else F.interpolate(x, self.size, mode="bicubic", antialias=True)
