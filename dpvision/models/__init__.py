"""Networks by name. Each is built for an image shape and a number of classes, and uses no batch statistics."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import torch
from torch import nn

from dpvision.errors import ConfigError, did_you_mean
from dpvision.models.clip import clip_vit_b16, clip_vit_b32
from dpvision.models.efficientnet_lite import efficientnet_lite0
from dpvision.models.featured import Featured, shape_at, split_head
from dpvision.models.parts import PARTS, CentredRows, train_only
from dpvision.models.patches import PATCHES
from dpvision.models.pretrained import digest_file, load_public
from dpvision.models.resnets import resnet9, wide_resnet
from dpvision.models.scattering import scatter_cnn, scatter_linear
from dpvision.models.siglip import siglip_b16
from dpvision.models.small import dpmix_cnn, linear, small_alexnet, small_cnn, tanh_cnn
from dpvision.models.vit import dinov2_vitb14, dinov2_vits14, vit_tiny

__all__ = [
    "MODELS",
    "PARTS",
    "Featured",
    "Shape",
    "at_side",
    "build",
    "digest_file",
    "load_public",
    "split_head",
    "train_only",
]

Shape = tuple[int, int, int]
TIMM, CENTRED = "timm:", "-centred"

MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "clip-vit-b16": clip_vit_b16,
    "clip-vit-b32": clip_vit_b32,
    "dinov2-vitb14": dinov2_vitb14,
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
    "siglip-b16": siglip_b16,
    "small-alexnet": small_alexnet,
    "small-cnn": small_cnn,
    "tanh-cnn": tanh_cnn,
    "vit-tiny": vit_tiny,
    "wrn-10-1": partial(wide_resnet, depth=10, width=1),
    "wrn-16-4": partial(wide_resnet, depth=16, width=4),
    "wrn-40-4": partial(wide_resnet, depth=40, width=4),
}


def build(name: str, shape: Shape, *, classes: int, seed: int) -> nn.Module:
    """Build the named model with random weights from `seed`, for images (channels, height, width) scaled to [-1, 1].

    "timm:NAME" is the model NAME of the timm library. "NAME-centred" is a linear classifier on the features before the
    head of the model NAME, as rows of norm 1 minus their mean. "NAME@SIDE" is the model NAME on images whose shorter
    side is first reduced to SIDE pixels.
    """
    base, computed = at_side(name, shape)
    if base != name:
        return _build_reduced(base, computed, shape, classes, seed)
    if name not in MODELS and not name.startswith(TIMM):
        if name.removesuffix(CENTRED) in MODELS and name.endswith(CENTRED):
            return CentredRows(build(name.removesuffix(CENTRED), shape, classes=classes, seed=seed), classes)
        raise ConfigError(f"there is no model named {name!r}. {did_you_mean(name, sorted(MODELS))}")
    with seeded(seed):
        if name.startswith(TIMM):
            return _build_timm(name.removeprefix(TIMM), shape, classes)
        return MODELS[name](shape, classes)


def at_side(name: str, shape: Shape) -> tuple[str, Shape]:
    """Return the name of a model without "@SIDE", and the shape of the images that it computes with."""
    base, side = split_side(name)
    return base, shape if side is None else shape_at(side, shape)


def split_side(name: str) -> tuple[str, int | None]:
    """Return the parts of "NAME@SIDE", or the name and None."""
    base, at, side = name.rpartition("@")
    return (base, int(side)) if at and re.fullmatch(r"[1-9][0-9]{0,3}", side) else (name, None)


def _build_reduced(name: str, reduced: Shape, shape: Shape, classes: int, seed: int) -> Featured:
    model = build(name, reduced, classes=classes, seed=seed)
    if not isinstance(model, Featured):
        raise ConfigError(
            f"{name} learns from pixels, not from features that are computed once, so it does not reduce images of "
            f"{shape[1]}x{shape[2]}. Fix: a model with fixed features, such as patches-1024; or --size for image files."
        )
    model.reduced_to = reduced[1:]
    return model


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators of the CPU and of `device` within the context, and restore them afterwards.

    Generators of other devices are neither used nor changed.
    """
    accelerators = [] if device is None or device.type == "cpu" else [device]
    with torch.random.fork_rng(accelerators, device_type=accelerators[0].type if accelerators else "cpu"):
        torch.default_generator.manual_seed(seed)
        for accelerator in accelerators:
            module = torch.get_device_module(accelerator)
            with module.device(accelerator):
                module.manual_seed(seed)
        yield


def _build_timm(name: str, shape: Shape, classes: int) -> nn.Module:
    """Build a network with random weights and a zero head. Public weights come from a file and are never downloaded."""
    if not re.fullmatch(r"[A-Za-z0-9_.]+", name):  # with a colon or slash, timm would search the hub or folders
        raise ConfigError(f"timm has no model named {name!r}. Fix: see timm.list_models().")
    timm = _import_timm()
    channels, height, width = shape
    try:
        model = timm.create_model(name, pretrained=False, num_classes=classes, in_chans=channels)
        with torch.no_grad():
            model.eval()(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, TypeError, AssertionError) as exc:
        raise ConfigError(
            f"timm cannot build {name!r} for images of {height}x{width}x{channels} ({exc}). Fix: set --size to the "
            "number of pixels that the model needs, or use another model of timm.list_models()."
        ) from exc
    model.train()
    head = model.get_classifier()
    if not isinstance(head, nn.Linear):
        raise ConfigError(f"timm's {name!r} ends in {type(head).__name__}, not a linear layer. Fix: use another model.")
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)
    return model


def _import_timm() -> ModuleType:
    try:
        return importlib.import_module("timm")
    except Exception as exc:  # torchvision built for another torch fails in many ways
        raise ConfigError(
            f'models named "{TIMM}..." need timm and torchvision, which cannot be imported here ({exc}). '
            'Fix: pip install -c constraints.txt "dpvision[timm]", which does not change torch.'
        ) from exc
