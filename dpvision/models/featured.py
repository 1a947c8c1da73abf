"""A model in two parts: fixed features of each image, and what may be trained on them."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

PIECE = 8


class Featured(nn.Module):
    """rest(features(x)). The prefix is frozen and works on each image alone, so features may be computed once.

    They are computed for `piece` images at a time, filled up with blank ones: kernels are chosen by a batch's size, and
    this way an image's features have the same bits whatever else is there. None: the prefix sees to that itself.
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
    found = []
    for part in x.split(model.piece):
        filled = x.new_zeros(model.piece, *x.shape[1:])
        filled[: len(part)] = part
        found.append(model.prefix(filled)[: len(part)])
    return torch.cat(found)
