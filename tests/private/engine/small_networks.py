"""One small network of odd sizes for each rule, for tests of what a unit's bits depend on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.models.resnets import StandardisedConv2d

CLASSES = 10


class Tied(nn.Module):
    """One matrix, also transposed, and rows of it looked up."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.w, self.head, self.kind = nn.Parameter(torch.randn(7, 7) * 0.3), nn.Linear(7, CLASSES), kind

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(F.linear(x, self.w))
        if self.kind == "transposed":
            y = F.linear(y, self.w.t())
        elif self.kind == "embedding":
            y = y + F.embedding((x[:, :3] * 7).long().clamp(0, 6), self.w).sum(1)
        elif self.kind == "detached":
            y = F.linear(y, self.w.detach())
        elif self.kind == "scaled":
            y = F.linear(y, 0.5 * self.w)
        elif self.kind == "table":
            y = y + self.w[(x[:, 0] * 7).long().clamp(0, 6)]
        else:
            y = F.linear(y, self.w)
        return self.head(torch.tanh(y))


class Attends(nn.Module):
    """Attention over tokens of 5 numbers, written in several ways."""

    def __init__(self, kind: str, width: int = 5, tokens: int = 7) -> None:
        super().__init__()
        self.kind, self.width, self.tokens = kind, width, tokens
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, CLASSES)
        self.query = nn.Parameter(torch.randn(1, 1, width))
        self.layer = nn.MultiheadAttention(width, 1, batch_first=kind != "layer, tokens first")

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (self.tokens, self.width))
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.kind == "sdpa":
            y = F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)
        elif self.kind == "masked":
            mask = torch.ones(self.tokens, self.tokens, dtype=torch.bool).tril()
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        elif self.kind == "bmm":
            y = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)
        elif self.kind == "einsum":
            y = torch.einsum("nqk,nkd->nqd", torch.softmax(torch.einsum("nqd,nkd->nqk", q, k), -1), v)
        elif self.kind == "learned query":
            y = F.scaled_dot_product_attention(self.query.expand(len(x), -1, -1), k, v)
        elif self.kind == "layer, tokens first":
            z = x.transpose(0, 1)
            y = self.layer(z, z, z, need_weights=False)[0].transpose(0, 1)
        elif self.kind == "layer":
            y = self.layer(x, x, x)[0]
        else:
            y = (q @ k.mT).tanh() @ v
        return self.head(y.mean(1))


class Uses(nn.Module):
    """Two linear layers, and between them a function that may use a parameter of shape (9, 9)."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.p, self.head = nn.Linear(9, 9), nn.Parameter(torch.randn(9, 9) * 0.3), nn.Linear(9, CLASSES)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self.one(x), self.p))


class Cell(nn.Module):
    """A recurrent cell over 3 steps of 3 numbers; its first state is a constant with a row for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unflatten(1, (3, 3)).unbind(1):
            state = self.cell(step, state)
        return self.head(state)


def _conv(
    axes: int, channels: int, kernel: int | tuple[int, ...], side: int = 5, *, transposed: bool = False, **more: int
) -> nn.Module:
    kinds = (
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        if transposed
        else (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    )
    one, two = kinds[axes - 1](channels, 3 * channels, kernel, **more), kinds[axes - 1](3 * channels, 2, kernel)
    body = nn.Sequential(one, nn.Tanh(), two, nn.Flatten())
    width = body(torch.zeros(2, channels, *(side,) * axes)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, CLASSES))


def _linear(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def _norm(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(inplace=True), norm, nn.Flatten(), nn.Linear(54, CLASSES))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": partial(F.gelu, approximate="tanh"),
    "softplus": F.softplus,
    "elu": F.elu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "hardswish": F.hardswish,
    "sinh": lambda x: torch.sinh(torch.tanh(x)),
    "cosh": lambda x: torch.cosh(torch.tanh(x)),
    "exp2": lambda x: torch.exp2(torch.tanh(x)),
    "asin": lambda x: torch.asin(0.9 * torch.tanh(x)),
    "erfinv": lambda x: torch.erfinv(0.9 * torch.tanh(x)),
    "power": lambda x: (x.abs() + 0.1) ** 1.3,
    "two to the power": lambda x: 2.0 ** torch.tanh(x),
    "atan2": lambda x: torch.atan2(x, x + 1),
    "softmax": lambda x: x.softmax(-1),
    "norm": F.normalize,
    "silu of a part": lambda x: torch.cat([F.silu(x[:, :4]), x[:, 4:]], 1),
}  # fmt: skip

USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "einsum": lambda x, p: torch.einsum("ni,oi->no", x, p),
    "at": lambda x, p: torch.tanh(x @ p),
    "addmm": lambda x, p: torch.addmm(p[0], x, p),
    "bilinear": lambda x, p: torch.einsum("ni,ij,nj->n", x, p, x).unsqueeze(1) * x,
    "expanded": lambda x, p: torch.bmm(x.unsqueeze(1), p.unsqueeze(0).expand(len(x), -1, -1)).squeeze(1),
    "scale and shift": lambda x, p: x * p[0] + p[1],
    "scale of another shape": lambda x, p: (x.view(-1, 3, 3, 1) * p.view(1, 3, 3, 9)).mean(3).flatten(1),
    "outer": lambda x, p: torch.einsum("ni,nj->nij", x, x).flatten(1) @ p.repeat(9, 1),
}

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{f"linear {i} to {h}": (partial(_linear, i, h), (i,)) for i in (13, 16) for h in (1, 2, 3, 5, 7, 10, 11, 12)},
    "linear, one layer": (lambda: nn.Linear(13, CLASSES), (13,)),
    "linear, many to few": (partial(_linear, 785, 3), (785,)),
    "linear, large": (lambda: nn.Sequential(nn.Unflatten(1, (3, 5)), nn.Linear(5, 150), nn.Tanh(), nn.Linear(150, 130), nn.Flatten(), nn.Linear(390, CLASSES)), (15,)),
    "linear, by pieces": (lambda: nn.Linear(1101, CLASSES), (1101,)),
    "linear, by pieces, over tokens": (lambda: nn.Sequential(nn.Unflatten(1, (2, 1040)), nn.Linear(1040, 33), nn.Tanh(), nn.Flatten(), nn.Linear(66, CLASSES)), (2080,)),
    "linear, no bias, in place": (lambda: nn.Sequential(nn.Linear(13, 5, bias=False), nn.ReLU(inplace=True), nn.Linear(5, CLASSES)), (13,)),
    "linear over tokens": (lambda: nn.Sequential(nn.Unflatten(1, (3, 5)), nn.Linear(5, 7), nn.Tanh(), nn.Flatten(), nn.Linear(21, CLASSES)), (15,)),
    "conv1d": (partial(_conv, 1, 3, 3), (3, 5)),
    "conv1d, one channel": (partial(_conv, 1, 1, 2, 9), (1, 9)),
    "conv1d, points": (partial(_conv, 1, 3, 1), (3, 5)),
    "conv2d": (partial(_conv, 2, 3, 3), (3, 5, 5)),
    "conv2d, one channel": (partial(_conv, 2, 1, 2), (1, 5, 5)),
    "conv2d, points": (partial(_conv, 2, 3, 1), (3, 5, 5)),
    "conv2d, groups": (partial(_conv, 2, 3, 2, groups=3), (3, 5, 5)),
    "conv2d, stride": (partial(_conv, 2, 3, 2, stride=2), (3, 5, 5)),
    "conv2d, points, stride": (partial(_conv, 2, 3, 1, stride=2), (3, 5, 5)),
    "conv2d, one filter a channel": (lambda: nn.Sequential(nn.Conv2d(5, 5, 3, padding=1, groups=5), nn.Tanh(), nn.Conv2d(5, 5, 2, stride=2, groups=5), nn.Flatten(), nn.Linear(20, CLASSES)), (5, 5, 5)),
    "conv2d, many channels": (lambda: nn.Sequential(nn.Conv2d(3, 70, 3), nn.Tanh(), nn.Conv2d(70, 72, 3, padding=1), nn.Flatten(), nn.Linear(648, CLASSES)), (3, 5, 5)),
    "conv2d, standardised": (lambda: nn.Sequential(StandardisedConv2d(7, 33, 3), nn.ReLU(inplace=True), StandardisedConv2d(33, 17, 3, padding=1), nn.Flatten(), nn.Linear(153, CLASSES)), (7, 5, 5)),
    "conv3d": (partial(_conv, 3, 2, 2, 4), (2, 4, 4, 4)),
    "conv3d, lines": (partial(_conv, 3, 2, (2, 1, 1), 4), (2, 4, 4, 4)),
    "conv transposed 1d": (partial(_conv, 1, 3, 3, transposed=True), (3, 5)),
    "conv transposed 2d": (partial(_conv, 2, 3, 2, transposed=True), (3, 5, 5)),
    "group norm": (lambda: _norm(nn.GroupNorm(2, 6)), (1, 5, 5)),
    "group norm, wide": (lambda: nn.Sequential(nn.Conv2d(1, 18, 3), nn.GroupNorm(2, 18), nn.Flatten(), nn.Linear(162, CLASSES)), (1, 5, 5)),
    "group norm, no positions": (lambda: nn.Sequential(nn.Linear(9, 18), nn.GroupNorm(2, 18), nn.Linear(18, CLASSES)), (9,)),
    "instance norm": (lambda: _norm(nn.InstanceNorm2d(6, affine=True)), (1, 5, 5)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(9, 7), nn.LayerNorm(7), nn.Linear(7, CLASSES)), (9,)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(9, 7), nn.RMSNorm(7), nn.Linear(7, CLASSES)), (9,)),
    "cell": (Cell, (9,)),
    **{f"tied, {k}": (partial(Tied, k), (7,)) for k in ("twice", "transposed", "embedding", "detached", "scaled", "table")},
    **{
        f"attention, {k}": (partial(Attends, k), (35,))
        for k in ("sdpa", "masked", "bmm", "einsum", "learned query", "layer", "layer, tokens first", "at")
    },
    **{f"uses {k}": (partial(Uses, f), (9,)) for k, f in USES.items()},
    **{f"activation {k}": (partial(Uses, lambda x, _, f=f: f(x)), (9,)) for k, f in ACTIVATIONS.items()},
}  # fmt: skip
