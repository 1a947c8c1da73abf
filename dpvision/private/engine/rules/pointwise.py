"""Activation functions whose kernels round the last few numbers of a tensor otherwise: filled up to whole vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.private.engine.rules.linear import otherwise
from dpvision.private.engine.trace import ALWAYS, Data, Pass, plain, rule_for

# A multiple of what any processor treats at once.
VECTOR = 64

_NAMES: tuple[str, ...] = ("sigmoid", "pow", "sinh", "cosh", "exp2", "logit", "asin", "arcsin", "acos", "arccos")
_NAMES += ("erfinv", "sinc", "tan", "asinh", "acosh", "atanh", "arcsinh", "arccosh", "arctanh", "digamma", "lgamma")
_FUNCTIONS: tuple[Any, ...] = (F.silu, F.softplus, F.mish, F.elu, F.selu, F.celu, F.gelu, F.logsigmoid, F.hardswish)
_FUNCTIONS += (F.sigmoid, torch.special.expit, torch.special.exp2, torch.special.logit, Tensor.__pow__, Tensor.__rpow__)
_FUNCTIONS += tuple(getattr(t, name) for name in _NAMES for t in (torch, Tensor))
_IN_PLACE = {getattr(Tensor, f"{name}_"): getattr(torch, name) for name in _NAMES if hasattr(Tensor, f"{name}_")}
_IN_PLACE |= {torch.sigmoid_: torch.sigmoid, torch.exp2_: torch.exp2, F.elu_: F.elu, F.selu_: F.selu, F.celu_: F.celu}
ALWAYS |= {*_FUNCTIONS, *_IN_PLACE}


@rule_for(*_FUNCTIONS)
def pointwise(current: Pass, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """In the order of memory, whole vectors at a time: so that in the backward pass, too, no number is left over."""
    if not isinstance(input, Data) or any(isinstance(a, Tensor) for a in (*args, *kwargs.values())):
        return otherwise(current, func, input, *args, **kwargs)
    if kwargs.pop("inplace", False):
        return plain(input).copy_(pointwise(current, func, input.clone(), *args, **kwargs))
    x, count = plain(input), input.numel()
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    ordered = x.permute(0, 2, 3, 1) if last else x
    flat = F.pad(ordered.reshape(-1), (0, -count % VECTOR)) if count % VECTOR else ordered.reshape(-1)
    y = func(flat, *args, **kwargs)[:count].view(ordered.shape)
    return y.permute(0, 3, 1, 2) if last else y


@rule_for(*_IN_PLACE)
def in_place(current: Pass, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """By the rule of the same function that leaves its input alone, and then into the input."""
    return plain(input).copy_(pointwise(current, _IN_PLACE[func], input.clone(), *args, **kwargs))
