"""Activation functions whose kernels round the last few numbers of a tensor otherwise: filled up to whole vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.mechanism.clip.rules.linear import otherwise
from dpvision.mechanism.clip.trace import ALWAYS, Data, Pass, plain, rule_for

# A multiple of what any processor treats at once.
VECTOR = 64

_FUNCTIONS: tuple[Any, ...] = (F.silu, F.softplus, F.mish, F.elu, F.selu, F.celu, F.gelu, F.logsigmoid, F.hardswish)
_FUNCTIONS += (torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.special.expit)
_FUNCTIONS += (torch.pow, Tensor.pow, Tensor.__pow__)
_IN_PLACE = {Tensor.sigmoid_: torch.sigmoid, torch.sigmoid_: torch.sigmoid, Tensor.pow_: torch.pow}
ALWAYS |= {*_FUNCTIONS, *_IN_PLACE}


@rule_for(*_FUNCTIONS)
def pointwise(current: Pass, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(input, Data) or any(isinstance(a, Tensor) for a in (*args, *kwargs.values())):
        return otherwise(current, func, input, *args, **kwargs)
    x, count = plain(input), input.numel()
    if kwargs.pop("inplace", False):
        return x.copy_(pointwise(current, func, input.clone(), *args, **kwargs))
    if count % VECTOR == 0:
        return func(x, *args, **kwargs)
    return func(F.pad(x.reshape(-1), (0, -count % VECTOR)), *args, **kwargs)[:count].view(x.shape)


@rule_for(*_IN_PLACE)
def in_place(current: Pass, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """By the rule of the same function that leaves its input alone, and then into the input."""
    return plain(input).copy_(pointwise(current, _IN_PLACE[func], input.clone(), *args, **kwargs))
