"""GroupNorm, LayerNorm and InstanceNorm: the library's own backward kernels, one unit at a time; few_channels.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.rules import few_channels
from dpvision.private.engine.rules.linear import sums_by_unit
from dpvision.private.engine.trace import RULES, Data, Pass, plain, rule_for


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, groups: int, eps: float, current: Pass, sinks: Any
    ) -> Tensor:
        ctx.layout = _layout(x)
        x = x.contiguous(memory_format=ctx.layout)
        count, channels = x.shape[:2]
        ctx.few = ctx.layout is torch.channels_last and few_channels.suits(x, weight, bias, groups)
        if ctx.few:
            y, mean, rstd = few_channels.normalised(x, weight, bias, groups, eps)
        else:
            y, mean, rstd = torch.native_group_norm(x, weight, bias, count, channels, x.shape[2:].numel(), groups, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.groups, ctx.current, ctx.sinks = groups, current, sinks
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        dy = dy.contiguous(memory_format=ctx.layout)
        spans = ctx.current.spans(dy, "GroupNorm")
        if ctx.few:
            dx, *both = few_channels.gradients(dy, x, mean, rstd, weight)
            for sink, each in zip(ctx.sinks, both, strict=True):
                if sink is not None:
                    sink.put(sums_by_unit(each.unsqueeze(1), spans))
            return dx if ctx.needs_input_grad[0] else None, None, None, None, None, None, None
        kernel = torch.ops.aten.native_group_norm_backward  # always with the data gradient: it crashes without
        sizes = (x.shape[1], x.shape[2:].numel(), ctx.groups)
        mask = [True, ctx.sinks[0] is not None, ctx.sinks[1] is not None]
        parts = [kernel(*each, weight, len(each[0]), *sizes, mask) for each in _by_unit(spans, dy, x, mean, rstd)]
        dx = _gather(parts, ctx.sinks)
        return dx if ctx.needs_input_grad[0] else None, None, None, None, None, None, None


def _layout(x: Tensor) -> torch.memory_format:
    """By the strides inside an image: that between images is open where there is only one, and must decide nothing."""
    last = x.dim() == 4 and x.stride()[1:] == (1, x.shape[3] * x.shape[1], x.shape[1])
    return torch.channels_last if last else torch.contiguous_format


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: list[int], weight: Any, bias: Any, eps: float, current: Pass, sinks: Any
    ) -> Tensor:
        y, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.shape, ctx.current, ctx.sinks = shape, current, sinks
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        dy = dy.contiguous()
        kernel = torch.ops.aten.native_layer_norm_backward
        mask = [True, ctx.sinks[0] is not None, ctx.sinks[1] is not None]
        spans = ctx.current.spans(dy, "LayerNorm")
        parts = [kernel(d, v, ctx.shape, m, r, weight, bias, mask) for d, v, m, r in _by_unit(spans, dy, x, mean, rstd)]
        dx = _gather(parts, ctx.sinks)
        return dx if ctx.needs_input_grad[0] else None, None, None, None, None, None, None


def _by_unit(spans: list[slice], *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of each unit, of all of the tensors."""
    sizes = [s.stop - s.start for s in spans]
    return zip(*(t.split(sizes) for t in tensors), strict=True)


def _gather(parts: list[Any], sinks: Any) -> Tensor:
    """The units' scale and shift gradients to their sinks; the data gradient in one piece."""
    for which, sink in enumerate(sinks, start=1):
        if sink is not None:
            sink.put(torch.stack([p[which] for p in parts]))
    return torch.cat([p[0] for p in parts])


@rule_for(F.group_norm)
def group_norm(
    current: Pass, func: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if not isinstance(input, Data) or isinstance(weight, Data) or isinstance(bias, Data):
        return RULES["anything"](current, func, input, num_groups, weight, bias, eps)
    current.spans(input, f"GroupNorm with {current.name_of(weight)}")
    sinks = (current.sink(weight), current.sink(bias))
    return _GroupNorm.apply(plain(input), plain(weight), plain(bias), num_groups, eps, current, sinks)


@rule_for(F.layer_norm)
def layer_norm(
    current: Pass, func: Any, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if not isinstance(input, Data) or isinstance(weight, Data) or isinstance(bias, Data):
        return RULES["anything"](current, func, input, normalized_shape, weight, bias, eps)
    if input.dim() <= len(normalized_shape):
        raise UnsafeLayer(
            f"LayerNorm with {current.name_of(weight)} normalises over the images of the batch. Fix: leave out axis 0."
        )
    current.spans(input, f"LayerNorm with {current.name_of(weight)}")
    sinks = (current.sink(weight), current.sink(bias))
    shape = list(normalized_shape)
    return _LayerNorm.apply(plain(input).contiguous(), shape, plain(weight), plain(bias), eps, current, sinks)


@rule_for(F.instance_norm)
def instance_norm(
    current: Pass,
    func: Any,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Each channel is a group of its own."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise UnsafeLayer("InstanceNorm keeps statistics of the data. Fix: track_running_stats=False.")
    return group_norm(current, F.group_norm, input, input.shape[1], weight, bias, eps)
