"""GroupNorm, LayerNorm and InstanceNorm: torch's own backward kernels, called once per unit if images are large.

GroupNorm with few channels per group and channels last in memory is instead computed here by vectorised sums over
positions. torch's kernel processes the channels of one group at a time: if they do not fill a vector register, it is up
to five times slower. It must also be called separately for each unit, because it returns the gradients of scale and
shift summed over all images.

    mean, 1/deviation      of each image and group, from the sums of x and x^2 over positions
    y                      x a + c, with a = w / deviation and c = b - mean a for each image and channel
    dw, db                 sum of dy (x - mean) / deviation, and sum of dy, for each image and channel
    dx                     dy a - x q + p, for each image, with q and p for each group

Every operation is rounded separately (none are fused), and sums over positions have the same order in any batch, so an
image's results are bitwise identical for any batch.

On an accelerator, every GroupNorm is computed by such formulas, with x - mean in place of x, in a few kernels for all
units; LayerNorm's dx comes from torch's kernel, and dw and db are sums over each unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.rules.linear import sums_by_unit
from dpvision.private.engine.trace import Data, Pass, Spans, per_unit, plain, rule_for

# For images of at most this many numbers, the gradients of scale and shift are computed here for all units at once,
# since a call per unit would take longer than its work.
SMALL_IMAGE = 1 << 16
FEW_CHANNELS = 8  # per group; with at least this many, torch's kernel fills its vector registers
IN_CACHE = 1 << 18  # numbers processed at a time
# With at least this many positions, torch's forward kernel also vectorises over channels, in a single call.
MANY_POSITIONS = 1024


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, groups: int, eps: float, current: Pass, sinks: Any
    ) -> Tensor:
        ctx.groups, ctx.current, ctx.sinks = groups, current, sinks
        if current.batched:
            y, *statistics = normalise_groups(x, weight, bias, groups, eps)
            ctx.save_for_backward(x, weight, *statistics)
            return y
        ctx.layout = _layout(x)
        x = x.contiguous(memory_format=ctx.layout)
        count, channels = x.shape[:2]
        ctx.few = ctx.layout is torch.channels_last and has_few_channels(x, weight, bias, groups)
        if ctx.few:
            y, mean, rstd = normalise_few_channels(x, weight, bias, groups, eps)
        else:
            y, mean, rstd = torch.native_group_norm(x, weight, bias, count, channels, x.shape[2:].numel(), groups, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        spans = ctx.current.spans(dy, "GroupNorm")
        if not ctx.current.batched:
            dy = dy.contiguous(memory_format=ctx.layout)
        if ctx.current.batched or ctx.few:
            compute = groups_gradients if ctx.current.batched else few_channels_gradients
            dx, *both = compute(dy, x, mean, rstd, weight)
            for sink, gradients in zip(ctx.sinks, both, strict=True):
                if sink is not None:
                    sink.put(sums_by_unit(gradients.unsqueeze(1), spans))
            return dx if ctx.needs_input_grad[0] else None, None, None, None, None, None, None
        kernel = torch.ops.aten.native_group_norm_backward  # always request the data gradient: it crashes otherwise
        sizes = (x.shape[1], x.shape[2:].numel(), ctx.groups)
        if x[0].numel() <= SMALL_IMAGE:
            dx = kernel(dy, x, mean, rstd, weight, len(x), *sizes, [True, False, False])[0]
            for sink, gradients in zip(ctx.sinks, scale_and_shift_gradients(dy, x, mean, rstd), strict=True):
                if sink is not None:
                    sink.put(sums_by_unit(gradients.unsqueeze(1), spans))
        else:
            mask = [True, ctx.sinks[0] is not None, ctx.sinks[1] is not None]
            parts = [kernel(*unit, weight, len(unit[0]), *sizes, mask) for unit in _by_unit(spans, dy, x, mean, rstd)]
            dx = _gather(parts, ctx.sinks)
        return dx if ctx.needs_input_grad[0] else None, None, None, None, None, None, None


def _layout(x: Tensor) -> torch.memory_format:
    """Return the layout implied by the strides within an image; a single image has an arbitrary first stride."""
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
        if ctx.current.batched or x[0].numel() <= SMALL_IMAGE:
            dx = kernel(dy, x, ctx.shape, mean, rstd, weight, bias, [True, False, False])[0]
            for sink, of_bias in zip(ctx.sinks, (False, True), strict=True):
                if sink is not None:
                    rows = dy if of_bias else (x - mean).mul_(rstd).mul_(dy)
                    sums = sums_by_unit(rows.reshape(len(dy), -1, math.prod(ctx.shape)), spans)
                    sink.put(sums.view(-1, *ctx.shape))
            return dx if ctx.needs_input_grad[0] else None, None, None, None, None, None, None
        parts = [kernel(d, v, ctx.shape, m, r, weight, bias, mask) for d, v, m, r in _by_unit(spans, dy, x, mean, rstd)]
        dx = _gather(parts, ctx.sinks)
        return dx if ctx.needs_input_grad[0] else None, None, None, None, None, None, None


def _by_unit(spans: Spans, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield each unit's rows of all the tensors."""
    return zip(*(t.split(spans.sizes) for t in tensors), strict=True)


def _gather(parts: list[Any], sinks: Any) -> Tensor:
    """Put the units' scale and shift gradients into their sinks, and return the data gradient in one piece."""
    for which, sink in enumerate(sinks, start=1):
        if sink is not None:
            sink.put(torch.stack([p[which] for p in parts]))
    return torch.cat([p[0] for p in parts])


@rule_for(F.group_norm)
def group_norm(
    current: Pass, func: Any, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise groups of channels of each image."""
    if not isinstance(input, Data) or isinstance(weight, Data) or isinstance(bias, Data):
        return per_unit(current, func, input, num_groups, weight, bias, eps)
    current.spans(input, f"GroupNorm with {current.name_of(weight)}")
    sinks = (current.sink(weight), current.sink(bias))
    return _GroupNorm.apply(plain(input), plain(weight), plain(bias), num_groups, eps, current, sinks)


@rule_for(F.layer_norm)
def layer_norm(
    current: Pass, func: Any, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise the last axes of each image."""
    if not isinstance(input, Data) or isinstance(weight, Data) or isinstance(bias, Data):
        return per_unit(current, func, input, normalized_shape, weight, bias, eps)
    if input.dim() <= len(normalized_shape):
        raise UnsafeLayer(
            f"LayerNorm with {current.name_of(weight)} normalises over the images of the batch. Fix: exclude axis 0."
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
    """Normalise each channel of each image, as a GroupNorm with one channel per group."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise UnsafeLayer("InstanceNorm stores statistics of the data. Fix: set track_running_stats=False.")
    return group_norm(current, F.group_norm, input, input.shape[1], weight, bias, eps)


def has_few_channels(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int) -> bool:
    """Whether channels-last images are normalised by the functions here; decided by shapes alone."""
    return weight is not None and bias is not None and x.shape[1] // groups < FEW_CHANNELS


def normalise_few_channels(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, and the mean and the reciprocal standard deviation of each image and group."""
    count, channels, positions = len(x), x.shape[1], x.shape[2:].numel()
    if positions >= MANY_POSITIONS:
        return torch.native_group_norm(x, weight, bias, count, channels, positions, groups, eps)
    y, size = torch.empty_like(x), positions * channels // groups
    mean, inverse = x.new_empty(count, groups, 1), x.new_empty(count, groups, 1)
    for piece in _pieces(x):
        v = x[piece]
        m, square = (_by_group(_over_positions(t), groups).sum(2, keepdim=True) / size for t in (v, v * v))
        r = ((square - m * m).clamp(min=0) + eps).rsqrt()
        a = r * weight.view(groups, -1)
        c = bias.view(groups, -1) - m * a
        torch.mul(v, _by_channel(a), out=y[piece])
        y[piece] += _by_channel(c)
        mean[piece], inverse[piece] = m, r
    return y, mean.squeeze(2), inverse.squeeze(2)


def few_channels_gradients(
    dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx, and per-image dw and db: (images, channels)."""
    groups, w = mean.shape[1], weight.view(mean.shape[1], -1)
    dx, size = torch.empty_like(x), x.shape[2:].numel() * w.shape[1]
    dw, db = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    for piece in _pieces(x):
        d, v, m, r = dy[piece], x[piece], mean[piece].unsqueeze(2), inverse[piece].unsqueeze(2)
        total, product = (_by_group(_over_positions(t), groups) for t in (d, d * v))
        along = (product - total * m) * r
        dw[piece], db[piece] = along.flatten(1), total.flatten(1)
        q = r * r * ((along * w).sum(2, keepdim=True) / size)
        p = q * m - r * ((total * w).sum(2, keepdim=True) / size)
        torch.mul(d, _by_channel(r * w), out=dx[piece])
        dx[piece] -= v * _by_channel(q.expand_as(total))
        dx[piece] += _by_channel(p.expand_as(total))
    return dx, dw, db


def scale_and_shift_gradients(dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return per-image dw and db: (images, channels)."""
    groups = mean.shape[1]
    total, product = dy.new_empty(x.shape[:2]), dy.new_empty(x.shape[:2])
    for piece in _pieces(x):
        d = dy[piece]
        sums = (t.reshape(*t.shape[:2], -1).sum(2) for t in (d, d * x[piece]))
        total[piece], product[piece] = sums
    centred = _by_group(product, groups) - _by_group(total, groups) * mean.unsqueeze(2)
    return (centred * inverse.unsqueeze(2)).flatten(1), total


def normalise_groups(x: Tensor, weight: Any, bias: Any, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, and the mean and the reciprocal standard deviation of each image and group, on an accelerator."""
    v = _view_by_group(x, groups)
    variance, mean = torch.var_mean(v, dim=(2, 3), correction=0, keepdim=True)
    inverse = variance.add_(eps).rsqrt_()
    scale = inverse if weight is None else inverse * weight.view(1, groups, -1, 1)
    shift = mean * -scale if bias is None else torch.addcmul(bias.view(1, groups, -1, 1), mean, scale, value=-1)
    return torch.addcmul(shift, v, scale).reshape(x.shape), mean, inverse


def groups_gradients(
    dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dx, and per-image dw and db: (images, channels); with u = (x - mean) / deviation,

    dx = (w dy - mean(w dy) - mean(w dy u) u) / deviation, with means over each image and group.
    """
    groups = mean.shape[1]
    d, centred = _view_by_group(dy, groups), _view_by_group(x, groups) - mean
    total = d.sum(3, keepdim=True)
    along = (d * centred).sum(3, keepdim=True).mul_(inverse)
    w = 1.0 if weight is None else weight.view(1, groups, -1, 1)
    of_mean, of_product = (
        (t * w).sum(2, keepdim=True).mul_(inverse / (d.shape[2] * d.shape[3])) for t in (total, along)
    )
    dx = torch.addcmul(-of_mean, centred, of_product * inverse, value=-1)
    return dx.addcmul_(d, inverse * w).reshape(x.shape), along.flatten(1), total.flatten(1)


def _view_by_group(t: Tensor, groups: int) -> Tensor:
    """View (images, channels, ...) as (images, groups, channels of a group, positions), in any memory order."""
    last = t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    flat = t.permute(0, 2, 3, 1).flatten(1, 2).mT if last else t.reshape(*t.shape[:2], -1)
    return flat.unflatten(1, (groups, -1))


def _pieces(x: Tensor) -> Iterator[slice]:
    size = max(1, IN_CACHE // max(1, x[0].numel()))
    return (slice(start, start + size) for start in range(0, len(x), size))


def _over_positions(t: Tensor) -> Tensor:
    """Sum over positions, to (images, channels)."""
    return t.sum((2, 3))


def _by_group(t: Tensor, groups: int) -> Tensor:
    return t.view(len(t), groups, -1)


def _by_channel(t: Tensor) -> Tensor:
    """Reshape (images, groups, channels of a group) to (images, channels, 1, 1)."""
    return t.reshape(len(t), -1, 1, 1)
