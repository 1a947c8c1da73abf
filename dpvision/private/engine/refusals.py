"""Refusal of unsafe layers by their class, before any image is used."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dpvision.errors import ConfigError, UnsafeLayer

MIXES_IMAGES = (nn.modules.batchnorm._BatchNorm,)
DRAWS = (nn.modules.dropout._DropoutNd, nn.RReLU)
DRAWS_BY_NAME = {"DropPath", "StochasticDepth", "DropBlock2d"}
WRAPPERS: tuple[tuple[Callable[[nn.Module], bool], str, str], ...] = (
    (lambda m: type(m).__name__ == "OptimizedModule", "is compiled", "pass the model from before torch.compile"),
    (
        lambda m: isinstance(m, torch.jit.ScriptModule),
        "is a torch.jit script",
        "pass the nn.Module that it was made from",
    ),
    (
        lambda m: isinstance(m, nn.DataParallel | nn.parallel.DistributedDataParallel),
        "distributes a batch over devices by itself",
        "pass its .module, and use torchrun for several processes",
    ),
    (
        lambda m: any(isinstance(p, nn.parameter.UninitializedParameter) for p in m.parameters(recurse=False)),
        "has parameters without a shape",
        "first run the model once on an image",
    ),
)


def refuse_unsafe(model: nn.Module) -> None:
    """Refuse modules that mix the examples of a batch, keep statistics of them, or draw at random.

    These are recognised by their class; `certify` detects others by testing (core/certify.py).
    """
    for name, module in model.named_modules():
        what = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, MIXES_IMAGES) or getattr(module, "track_running_stats", False):
            raise UnsafeLayer(
                f"{what} mixes the examples of a batch or keeps statistics of them, so clipping one example does not "
                "bound its influence. Fix: use GroupNorm instead."
            )
        if _draws_at_random(module):
            raise UnsafeLayer(
                f"{what} draws from torch's global generator, so a resumed run would not give the same bits. "
                "Fix: remove it, or call .eval() on it."
            )
        for is_wrapper, reason, fix in WRAPPERS:
            if is_wrapper(module):
                raise ConfigError(f"{what} {reason}, so per-unit gradients cannot be computed. Fix: {fix}.")


def _draws_at_random(module: nn.Module) -> bool:
    if not module.training:
        return False
    if type(module).__name__ in DRAWS_BY_NAME:
        return bool(getattr(module, "drop_prob", None) or getattr(module, "p", None))
    return isinstance(module, DRAWS) and getattr(module, "p", 1.0) > 0
