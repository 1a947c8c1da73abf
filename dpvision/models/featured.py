"""Models in two parts: a frozen prefix that computes features of each image, and layers that are trained on them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from dpvision.errors import ConfigError

PIECE = 8
CLASS_SHARES = "class_shares"  # a parameter of a balanced training run that its model does not use (parts.ClassShares)
# Images per piece on an accelerator, most of which would be idle with fewer.
PIECE_ON_DEVICE = 256
Colours = tuple[float, float, float]
IMAGENET_MEAN: Colours = (0.485, 0.456, 0.406)
IMAGENET_STD: Colours = (0.229, 0.224, 0.225)


def split_head(model: nn.Module) -> Featured:
    """Split a model into a frozen prefix without the head, and the head as the rest. Both share the model's weights."""
    name = head_name(model)
    *path, last = name.split(".")
    prefix = _copy_shallow(model)
    prefix._parameters = {name: each for name, each in model._parameters.items() if name != CLASS_SHARES}
    inner = prefix
    for step in path:
        inner._modules[step] = _copy_shallow(inner.get_submodule(step))
        inner = inner.get_submodule(step)
    inner._modules[last] = nn.Identity()
    return Featured(prefix, model.get_submodule(name))


def require_head_last(model: nn.Module, parts: Featured, shape: tuple[int, ...]) -> None:
    """Refuse a model whose head is not its last layer: on random images, the two parts must compute the same outputs.

    The head gets random weights for this, because zeros would hide any layers after it.
    """
    rng = torch.Generator().manual_seed(0)
    images = (torch.rand(2, *shape, generator=rng) * 2 - 1).to(device_of(model))
    weight = model.get_submodule(head_name(model)).get_parameter("weight")
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
        raise ConfigError(f"{type(model).__name__}: the head is not the last layer, so it cannot be trained alone.")


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a network's weights and buffers, or the CPU if it has none."""
    tensors = (*model.parameters(), *model.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


def _copy_shallow(module: nn.Module) -> nn.Module:
    """Return a copy that shares all weights and has its own dictionary of children."""
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone


def head_name(model: nn.Module, *, name: str = "") -> str:
    """Return the name of the model's head, which is its last linear layer."""
    linears = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if isinstance(model, Featured):
        linears = [n for n in linears if n == "rest" or n.startswith("rest.")]
    if not linears:
        raise ConfigError(
            f"{name or type(model).__name__}: it has no linear layer and therefore no head to train. Fix: use "
            "--part all."
        )
    return linears[-1]


def apply_in_pieces(function: Callable[[Tensor], Tensor], x: Tensor, *, size: int) -> Tensor:
    """Return function(x), applied to `size` images at a time, each piece on one thread and the last padded with zeros.

    An image's result is bit-identical in any batch: kernels, and with them the last bits, are chosen by the batch size
    and the number of threads, which are always the same here. Running small operations in parallel is also faster than
    splitting each operation among threads. An exported graph has no pieces.
    """
    if torch.compiler.is_exporting():
        return function(x)
    threads, graph = torch.get_num_threads(), torch.is_grad_enabled()

    def run(piece: Tensor) -> Tensor:
        torch.set_num_threads(1)
        with torch.set_grad_enabled(graph):  # the mode is local to a thread
            padded = x.new_zeros(size, *x.shape[1:])  # with the same memory layout for any layout of x
            padded[: len(piece)] = piece
            return function(padded)[: len(piece)]

    pieces = x.split(size)
    try:
        if threads == 1 or len(pieces) == 1 or x.device.type != "cpu":
            outputs = [run(piece) for piece in pieces]
        else:
            with ThreadPoolExecutor(threads) as pool:
                outputs = list(pool.map(run, pieces))
    finally:
        torch.set_num_threads(threads)
    return torch.cat(outputs)


class Featured(nn.Module):
    """rest(features(x)). The prefix is frozen and processes each image separately, so features can be computed once.

    Features are computed for `piece` images at a time (more on an accelerator), so that their bits do not depend on the
    other images in the batch. If `piece` is None, the prefix itself ensures this. With `reduced_to`, images are reduced
    to this height and width first.
    """

    def __init__(self, prefix: nn.Module, rest: nn.Module, *, piece: int | None = PIECE) -> None:
        super().__init__()
        self.prefix = prefix.requires_grad_(False).eval()
        self.rest = rest
        self.piece = piece
        self.reduced_to: tuple[int, int] | None = None

    def features(self, x: Tensor) -> Tensor:
        """Return the frozen features of each image."""
        return _features(x, self)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.features(x))

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the trained layers; the prefix stays in evaluation mode."""
        super().train(mode)
        self.prefix.eval()
        return self


@torch.no_grad()
def _features(x: Tensor, model: Featured) -> Tensor:
    """Compute features as a single operation in torch's function protocol, opaque to a per-example engine."""
    if has_torch_function_unary(x):
        return handle_torch_function(_features, (x,), x, model)
    if model.reduced_to is not None:
        x = apply_in_pieces(partial(reduce, size=model.reduced_to), x, size=piece_on(x.device, PIECE))
    if model.piece is None:
        return model.prefix(x)
    return apply_in_pieces(model.prefix, x, size=piece_on(x.device, model.piece))


def reduce(x: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Return images of a smaller height and width: each pixel is the mean over its area of the original."""
    return F.interpolate(x, size, mode="area")


def shape_at(side: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the shape of images whose shorter side is reduced to `side` pixels; the aspect ratio is kept."""
    channels, height, width = shape
    shorter = min(height, width)
    if side >= shorter:
        raise ConfigError(
            f"@{side}: would not reduce images of {height}x{width} pixels. Fix: use the name without @{side}."
        )
    return channels, max(1, round(height * side / shorter)), max(1, round(width * side / shorter))


def piece_on(device: torch.device, size: int) -> int:
    """Return the number of images per piece on a device, if it is `size` on the CPU."""
    return size if device.type == "cpu" else max(size, PIECE_ON_DEVICE)


class Pixels(nn.Module):
    """Pixels as features: maps images (N, C, H, W) in [-1, 1] to rows (N, C H W) in [0, 1] by (x + 1) / 2."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * 0.5 + 0.5


class ImagenetInput(nn.Module):
    """The preprocessing of networks trained on ImageNet: three channels, standardised and resized to `size`.

    The mean and standard deviation are the public ones of ImageNet, or other fixed numbers used in pretraining.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, channels: int, size: tuple[int, int], *, mean: Colours = IMAGENET_MEAN, std: Colours = IMAGENET_STD
    ) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        middle, width = (torch.tensor(values, device="cpu").view(1, 3, 1, 1) for values in (mean, std))
        self.register_buffer("scale", 0.5 / width, persistent=False)
        self.register_buffer("shift", (0.5 - middle) / width, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ((x + 1) / 2 - mean) / std, resized bicubically with Keys' kernel (a = -0.5), as in image libraries.

        torch's own kernel for enlarging (a = -0.75) costs DINOv2 two points of accuracy on CIFAR-10 at 112 pixels.
        """
        if self.channels == 1:
            x = x.expand(-1, 3, -1, -1)
        x = x * self.scale + self.shift
        return x if tuple(x.shape[-2:]) == self.size else F.interpolate(x, self.size, mode="bicubic", antialias=True)
