"""Networks by name. Each is a function of the image's shape and the number of classes, with no batch statistics."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from dpvision.errors import ConfigError
from dpvision.models.small import linear, small_cnn
from dpvision.models.wide_resnet import wide_resnet

Shape = tuple[int, int, int]

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": linear,
    "small-cnn": small_cnn,
    "wrn-16-4": partial(wide_resnet, depth=16, width=4),
    "wrn-40-4": partial(wide_resnet, depth=40, width=4),
}


def build(name: str, shape: Shape, *, classes: int, seed: int) -> nn.Module:
    """The model with weights drawn from `seed`, for images (channels, height, width) scaled to [-1, 1]."""
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(sorted(MODELS))}."
        raise ConfigError(f"there is no model named {name!r}.{hint}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, classes)
