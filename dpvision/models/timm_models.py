"""Networks of the timm library by name, such as "timm:vit_tiny_patch16_224". timm is imported only when needed."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import torch
from torch import nn

from dpvision.errors import ConfigError

PREFIX = "timm:"


def timm_model(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The network with random weights and a head of zeros; public weights come from a file, never a download."""
    if not re.fullmatch(r"[A-Za-z0-9_.]+", name):  # with a colon or a slash, timm looks on the hub or in folders
        raise ConfigError(f"timm has no model named {name!r}. Fix: see timm.list_models().")
    timm = _import_timm()
    channels, height, width = shape
    try:
        model = timm.create_model(name, pretrained=False, num_classes=classes, in_chans=channels)
        with torch.no_grad():
            model.eval()(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, TypeError, AssertionError) as exc:
        raise ConfigError(
            f"timm cannot build {name!r} for images of {height}x{width}x{channels} ({exc}). Fix: --size with the "
            "number of pixels that the model needs, or another of timm.list_models()."
        ) from exc
    model.train()
    head = model.get_classifier()
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"timm's {name!r} ends in {type(head).__name__}, not in a linear layer. Fix: use another model."
        )
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)
    return model


def _import_timm() -> ModuleType:
    try:
        return importlib.import_module("timm")
    except Exception as exc:  # torchvision for another build of torch fails in many ways
        raise ConfigError(
            f'models named "{PREFIX}..." need timm and torchvision, which cannot be imported here ({exc}). '
            'Fix: pip install -c constraints.txt "dpvision[timm]", so that torch stays as it is.'
        ) from exc
