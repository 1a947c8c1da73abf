"""A model in two parts: fixed features of each image, and what may be trained on them."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn


class Featured(nn.Module):
    """rest(prefix(x)). The prefix is frozen and works on each image alone, so features may be computed once."""

    def __init__(self, prefix: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.prefix = prefix.requires_grad_(False).eval()
        self.rest = rest

    def features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.prefix(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.features(x))

    def train(self, mode: bool = True) -> Self:
        """The prefix stays as it is used later."""
        super().train(mode)
        self.prefix.eval()
        return self
