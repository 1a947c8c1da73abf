"""A model in two parts: fixed features of each image, and the head or the rest that may be trained on them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from dpvision.errors import ConfigError

PIECE = 8


def head_alone(model: nn.Module) -> Featured:
    """features = the model with its head left out, rest = the head; both share the model's own weights."""
    name = head_of(model)
    *path, last = name.split(".")
    features = _shallow(model)
    inner = features
    for step in path:
        inner._modules[step] = _shallow(inner.get_submodule(step))
        inner = inner.get_submodule(step)
    inner._modules[last] = nn.Identity()
    head = model.get_submodule(name)
    return Featured(features, head)


def require_last(model: nn.Module, parts: Featured, shape: tuple[int, ...]) -> None:
    """By trial, with a random head, as one of zeros would hide what comes after it: features and head together are the
    model, so the head comes last."""
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(2, *shape, generator=rng) * 2 - 1
    weight = model.get_submodule(head_of(model)).get_parameter("weight")
    with torch.no_grad():
        before = weight.clone()
        weight.copy_(torch.randn(weight.shape, generator=rng) / weight.shape[1] ** 0.5)
        try:
            same = torch.allclose(parts(images), model(images), rtol=1e-4, atol=1e-5)
        except RuntimeError:
            same = False
        finally:
            weight.copy_(before)
    if not same:
        raise ConfigError(f"{type(model).__name__}: its head is not its last layer, so it cannot be trained alone.")


def _shallow(module: nn.Module) -> nn.Module:
    """The same module with a list of children of its own."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def head_of(model: nn.Module, *, name: str = "") -> str:
    """The name of the classifier inside the model: its last linear layer."""
    linears = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if isinstance(model, Featured):
        linears = [n for n in linears if n == "rest" or n.startswith("rest.")]
    if not linears:
        raise ConfigError(
            f"{name or type(model).__name__}: it has no linear layer, so part 'head' means nothing. Fix: train 'all'."
        )
    return linears[-1]


def in_pieces(function: Callable[[Tensor], Tensor], x: Tensor, *, size: int) -> Tensor:
    """function(x) for `size` images at a time, the last ones filled up with blanks, each piece on one thread.

    So an image has the same bits in any batch: kernels, and with them the last bits, are chosen by the size of a batch
    and the number of threads, which are always the same here. Small operations are also faster side by side than
    split. An exported graph has no pieces.
    """
    if torch.compiler.is_exporting():
        return function(x)
    threads, graph = torch.get_num_threads(), torch.is_grad_enabled()

    def one(piece: Tensor) -> Tensor:
        torch.set_num_threads(1)
        with torch.set_grad_enabled(graph):  # a thread has a mode of its own
            filled = x.new_zeros(size, *x.shape[1:])  # also laid out in memory in one way, whatever x is
            filled[: len(piece)] = piece
            return function(filled)[: len(piece)]

    pieces = x.split(size)
    try:
        if threads == 1 or len(pieces) == 1 or x.device.type != "cpu":
            found = [one(piece) for piece in pieces]
        else:
            with ThreadPoolExecutor(threads) as pool:
                found = list(pool.map(one, pieces))
    finally:
        torch.set_num_threads(threads)
    return torch.cat(found)


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


class Pixels(nn.Module):
    """Pixels as features: images (N, C, H, W) in [-1, 1] to rows (N, C H W) in [0, 1], which is (x + 1) / 2."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * 0.5 + 0.5
