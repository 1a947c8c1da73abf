"""The input that networks trained on ImageNet expect, from images in [-1, 1]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Colours = tuple[float, float, float]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImagenetInput(nn.Module):
    """Three channels, standardised by the public mean and deviation of ImageNet, or by other fixed numbers that a
    network was trained with, and resized bicubically to `size`."""

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int, size: tuple[int, int], *, mean: Colours = MEAN, std: Colours = STD) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        middle, width = (torch.tensor(values, device="cpu").view(1, 3, 1, 1) for values in (mean, std))
        self.register_buffer("scale", 0.5 / width, persistent=False)
        self.register_buffer("shift", (0.5 - middle) / width, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """((x + 1) / 2 - mean) / std, then Keys' kernel with a = -0.5 as image libraries have it.

        torch's own kernel for enlarging (a = -0.75) costs DINOv2 two points of accuracy on CIFAR-10 at 112 pixels.
        """
        if self.channels == 1:
            x = x.expand(-1, 3, -1, -1)
        x = x * self.scale + self.shift
        return x if tuple(x.shape[-2:]) == self.size else F.interpolate(x, self.size, mode="bicubic", antialias=True)
