"""One layer of a vision transformer: attention and a two-layer perceptron, each after a layer norm and added."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.models.vit import Attention

Activation = Callable[[Tensor], Tensor]


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the approximation of the GELU that CLIP was trained with."""
    return x * torch.sigmoid(1.702 * x)


def tanh_gelu(x: Tensor) -> Tensor:
    """The approximation of the GELU by a hyperbolic tangent, which SigLIP was trained with."""
    return F.gelu(x, approximate="tanh")


class TransformerLayer(nn.Module):
    """x + attention(norm(x)), then the same with a perceptron of four times the width."""

    def __init__(self, width: int, heads: int, *, activation: Activation, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Perceptron(width, activation)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Perceptron(nn.Module):
    """Two linear layers with a hidden width of four times the width."""

    def __init__(self, width: int, activation: Activation) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


def initialise(module: nn.Module) -> None:
    """Initialise linear layers and convolutions like the other vision transformers here."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
