"""A linear classifier on features less their mean, and how the mean is learned: as any other weight, by a gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Centred(nn.Module):
    """Rows to rows of length 1 without what all of them share. Until `centre` is learned it is zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x - self.centre, dim=1)


class Agreement(nn.Module):
    """-<x, centre> for each row x. Its gradient is -x whatever the centre is: one step from zero, at the rate 1, over
    all rows takes the centre to their mean."""

    def __init__(self, centred: Centred) -> None:
        super().__init__()
        self.centred = centred

    def forward(self, x: Tensor) -> Tensor:
        return -(x * self.centred.centre).sum(1, keepdim=True)


def start_at_zero(model: nn.Module) -> None:
    """Weights to start from may bring a centre of their own."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Centred):
                module.centre.zero_()


def centred_linear(width: int, classes: int) -> nn.Sequential:
    """From zero weights; rows around zero need no bias."""
    head = nn.Linear(width, classes, bias=False)
    nn.init.zeros_(head.weight)
    return nn.Sequential(Centred(width), head)
