"""A network as its frozen features and its head, for a head that is trained alone."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dpvision.errors import ConfigError
from dpvision.models.featured import Featured
from dpvision.models.parts import head_of


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
    coins = torch.Generator().manual_seed(0)
    images = torch.rand(2, *shape, generator=coins) * 2 - 1
    weight = model.get_submodule(head_of(model)).get_parameter("weight")
    with torch.no_grad():
        before = weight.clone()
        weight.copy_(torch.randn(weight.shape, generator=coins) / weight.shape[1] ** 0.5)
        try:
            same = torch.allclose(parts(images), model(images), rtol=1e-4, atol=1e-5)
        except RuntimeError:
            same = False
        finally:
            weight.copy_(before)
    if not same:
        raise ConfigError(f"{type(model).__name__}: its head is not its last layer, so it can not be trained alone.")


def _shallow(module: nn.Module) -> nn.Module:
    """The same module with a list of children of its own."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
