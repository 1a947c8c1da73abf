"""A model in two parts: fixed features of each image, and what may be trained on them."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from dpvision.models.pieces import in_pieces

PIECE = 8


class Featured(nn.Module):
    """rest(features(x)). The prefix is frozen and works on each image alone, so features may be computed once.

    They are computed for `piece` images at a time, so that an image's features have the same bits whatever else is in
    the batch. None: the prefix sees to that itself.
    """

    def __init__(self, prefix: nn.Module, rest: nn.Module, *, piece: int | None = PIECE) -> None:
        super().__init__()
        self.prefix = prefix.requires_grad_(False).eval()
        self.rest = rest
        self.piece = piece

    def features(self, x: Tensor) -> Tensor:
        return _features(x, self)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.features(x))

    def train(self, mode: bool = True) -> Self:
        """The prefix stays as it is used later."""
        super().train(mode)
        self.prefix.eval()
        return self


@torch.no_grad()
def _features(x: Tensor, model: Featured) -> Tensor:
    """It answers to torch's function protocol: a per-example engine sees one operation on the images."""
    if has_torch_function_unary(x):
        return handle_torch_function(_features, (x,), x, model)
    if model.piece is None:
        return model.prefix(x)
    return in_pieces(model.prefix, x, size=model.piece)
