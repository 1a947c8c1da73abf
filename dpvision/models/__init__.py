"""Networks by name. Each is built for a shape of images and a number of classes, and has no batch statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from dpvision.errors import ConfigError, did_you_mean
from dpvision.models.efficientnet_lite import efficientnet_lite0
from dpvision.models.featured import Featured, split_head
from dpvision.models.parts import PARTS, train_only
from dpvision.models.patches import PATCHES
from dpvision.models.pretrained import digest_file, load_public
from dpvision.models.resnets import resnet9, wide_resnet
from dpvision.models.scattering import scatter_cnn, scatter_linear
from dpvision.models.small import dpmix_cnn, linear, small_alexnet, small_cnn, tanh_cnn
from dpvision.models.timm_models import PREFIX, timm_model
from dpvision.models.vit import dinov2_vits14, vit_tiny

__all__ = ["MODELS", "PARTS", "Featured", "Shape", "build", "digest_file", "load_public", "split_head", "train_only"]

Shape = tuple[int, int, int]

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "dinov2-vits14": dinov2_vits14,
    "dinov2-vits14-112": partial(dinov2_vits14, side=112),
    "dinov2-vits14-224": partial(dinov2_vits14, side=224),
    "dpmix-cnn": dpmix_cnn,
    "efficientnet-lite0": efficientnet_lite0,
    "linear": linear,
    **PATCHES,
    "resnet-9": resnet9,
    "resnet-9-small": partial(resnet9, width=16),
    "scatter-cnn": scatter_cnn,
    "scatter-cnn-mirrored": partial(scatter_cnn, mirrored=True),
    "scatter-linear": scatter_linear,
    "scatter-linear-mirrored": partial(scatter_linear, mirrored=True),
    "small-alexnet": small_alexnet,
    "small-cnn": small_cnn,
    "tanh-cnn": tanh_cnn,
    "vit-tiny": vit_tiny,
    "wrn-10-1": partial(wide_resnet, depth=10, width=1),
    "wrn-16-4": partial(wide_resnet, depth=16, width=4),
    "wrn-40-4": partial(wide_resnet, depth=40, width=4),
}


def build(name: str, shape: Shape, *, classes: int, seed: int) -> nn.Module:
    """The named model with random weights from `seed`, for images (channels, height, width) scaled to [-1, 1].

    "timm:NAME" is the model NAME of the timm library.
    """
    if name not in MODELS and not name.startswith(PREFIX):
        raise ConfigError(f"there is no model named {name!r}. {did_you_mean(name, sorted(MODELS))}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name.startswith(PREFIX):
            return timm_model(name.removeprefix(PREFIX), shape, classes)
        return MODELS[name](shape, classes)
