"""Convolutions: the data gradient is computed for the whole pass at once, the weight gradient one unit at a time.

A unit's weight gradient is computed in one of two ways, chosen by shapes alone so that a run can be repeated: by the
library's kernel over the unit's images, or by a matrix product with the unfolded patches of a few images. The latter is
faster for a stride above 1, and for large filters and few positions, where the kernel takes longer to rearrange its
result than to compute it (measured in benchmarks/RESULTS.md).

On an accelerator, the weight gradients of all units are one batched product with all their patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import mul
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.private.engine.rules.linear import (
    MULTIPLIES_BF16,
    multiply,
    product_of_unit,
    sums_by_unit,
    weight_gradients,
)
from dpvision.private.engine.sinks import Sink
from dpvision.private.engine.trace import ALIGNMENT, ALWAYS, Data, Pass, Spans, align, per_unit, plain, rule_for

# Bytes of patches unfolded at a time: what fits in a core's cache.
PATCH_BYTES = 2 << 20
# The same on an accelerator, where the patches of many units are unfolded at a time.
PATCH_BYTES_BATCHED = 1 << 30
# With at most this many positions, filters of one channel each are computed by sums over positions for all units,
# this many numbers at a time.
FEW_POSITIONS, IN_CACHE = 256, 1 << 16
# With at least this many weights per position in a unit's images, products with patches are faster than the kernel.
MANY_WEIGHTS = 128
# A single image of at most this many numbers has a slow kernel.
SMALL_IMAGE = 20480
# Minimum number of images in a convolution: for filters of one position or one line, and for others.
MIN_BY_POINTS, MIN_IMAGES = 16, 2


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Any, options: Any, current: Pass, sinks: Any) -> Tensor:
        ctx.options, ctx.current, ctx.sinks = options, current, sinks
        stride, padding, dilation, groups = options
        arguments = (stride, padding, dilation, False, [0] * len(stride), groups)
        one_row = len(x) == current.images  # per image, so that a unit's views can be stored consecutively
        by_filter = bool(one_row and sinks[0] and weight.dim() == 4 and groups == 1)
        ctx.waits = by_filter and sinks[0].waits_for_views
        x, weight = current.rounded(x), current.rounded(weight)
        if current.bf16 and x.device.type in MULTIPLIES_BF16 and x.dtype == torch.float32:
            y = torch.ops.aten.convolution(x.bfloat16(), weight.bfloat16(), None, *arguments).float()
            y = y if bias is None else y.add_(bias.view(-1, *[1] * (y.dim() - 2)))
        else:
            y = _pad_batch(weight, lambda v: torch.ops.aten.convolution(v, weight, bias, *arguments), x)
        ctx.scales = by_filter and not ctx.waits and sinks[0].may_scale(y.shape[2:].numel())
        saved = y.clone() if ctx.waits or ctx.scales else None  # the model may change its output in place
        ctx.save_for_backward(x, weight, None if saved is None else bias, saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias, y = ctx.saved_tensors
        of_weight, of_bias = ctx.sinks
        spans = ctx.current.spans(dy, "convolution")
        if weight.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            dy = dy.contiguous(memory_format=torch.channels_last)
        sums = None
        if of_bias or bias is not None:
            sums = sums_by_unit(dy.flatten(2).transpose(1, 2), spans)
        full, dy = dy, ctx.current.rounded(dy)
        if of_weight and ctx.waits:
            views = of_weight.all_views(x, full, y, None if bias is None else bias * sums)
            if views is not None:
                count = ctx.current.separate_views.count
                of_all = Spans([size * count for size in spans.sizes])
                _weight_gradients(of_weight, views[0], ctx.current.rounded(views[1]), weight, of_all, ctx.options)
        elif of_weight and ctx.scales:

            def by_unit(along: Tensor) -> Tensor:
                along = sums_by_unit(along.unsqueeze(1), spans)
                return along if bias is None else along - bias * sums

            scaled = ctx.current.rounded(of_weight.scale(full, y, by_unit))
            _weight_gradients(of_weight, x, scaled, weight, spans, ctx.options)
        elif of_weight:
            _weight_gradients(of_weight, x, dy, weight, spans, ctx.options)
        if of_bias:
            of_bias.put(sums)
        dx = None
        if ctx.needs_input_grad[0]:
            if ctx.current.bf16 and x.device.type in MULTIPLIES_BF16 and x.dtype == torch.float32:
                dy, x, weight = (t.bfloat16() for t in (dy, x, weight))
                dx = _backward(dy, x, weight, ctx.options, of_input=True).float()
            else:
                dx = _pad_batch(weight, lambda d, v: _backward(d, v, weight, ctx.options, of_input=True), dy, x)
        return dx, None, None, None, None, None


def _weight_gradients(sink: Sink, x: Tensor, dy: Tensor, weight: Tensor, spans: Spans, options: Any) -> None:
    """Compute each unit by a method chosen by its own size, so that the rest of the batch does not matter."""

    def whole(e: int) -> Tensor:
        return _backward(align(dy[spans[e]]), align(x[spans[e]]), weight, options, of_input=False)

    if sink.current.batched:
        sink.put_in_order(_batched(sink.current, x, dy, weight, len(spans), options), (0, *range(2, weight.dim()), 1))
        return
    stride, padding, _, groups = options
    if weight.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        sink.write(whole)
        return
    if groups == x.shape[1] == weight.shape[0] and dy.shape[2:].numel() <= FEW_POSITIONS:
        sink.put(
            sums_by_unit(_by_channel(x, dy, weight, options).flatten(1).unsqueeze(1), spans).unflatten(1, weight.shape)
        )
        return
    if groups != 1:
        sink.write(whole)
        return
    if weight.shape[2:].numel() == 1 and not any(padding):  # a linear layer over positions
        points = x[:, :, :: stride[0], :: stride[1]].permute(0, 2, 3, 1)
        weight_gradients(sink, points, dy.permute(0, 2, 3, 1), spans, (1, 1))
        return
    by_patches = _by_patches(sink.current, x, dy, weight, spans, options)
    always = max(stride) > 1 or weight.shape[2:].numel() == 1
    positions, small = dy.shape[2:].numel(), x[0].numel() <= SMALL_IMAGE

    def one(e: int) -> Tensor:
        images = spans.sizes[e]
        few = weight.numel() >= MANY_WEIGHTS * positions * images or (small and images == 1)
        return (by_patches if always or few else whole)(e)

    sink.write(one, (0, 2, 3, 1))


def _by_channel(x: Tensor, dy: Tensor, weight: Tensor, options: Any) -> Tensor:
    """Compute dW of each image for filters of one channel each, by sums over positions: (images, *shape of dW)."""
    stride, padding, dilation, _ = options
    height, width = weight.shape[2:]
    x, dy = F.pad(x.permute(0, 2, 3, 1), [0, 0, padding[1], padding[1], padding[0], padding[0]]), dy.permute(0, 2, 3, 1)
    rows = x.new_empty(len(x), height, width, x.shape[-1])
    size = max(1, IN_CACHE // dy[0].numel())
    for start in range(0, len(x), size):
        d, v = dy[start : start + size], x[start : start + size]
        for i in range(height):
            for j in range(width):
                top, left = i * dilation[0], j * dilation[1]
                bottom, right = top + stride[0] * (d.shape[1] - 1) + 1, left + stride[1] * (d.shape[2] - 1) + 1
                window = v[:, top : bottom : stride[0], left : right : stride[1]]
                torch.sum(d * window, (1, 2), out=rows[start : start + size, i, j])
    return rows.permute(0, 3, 1, 2).unsqueeze(2)


def _batched(current: Pass, x: Tensor, dy: Tensor, weight: Tensor, units: int, options: Any) -> Tensor:
    """Compute dW = D'U for all units, with U the patches under each output position, a part of them at a time.

    One kernel copies patches from a view that contains them all, whereas F.unfold uses one kernel per image.
    """
    stride, padding, dilation, groups = options
    filters, channels, *kernel = weight.shape
    x, dy = x.movedim(1, -1), dy.movedim(1, -1).contiguous().unflatten(0, (units, -1))
    sides = [side for p in (0, *reversed(padding)) for side in (p, p)]
    x = (F.pad(x, sides) if any(padding) else x).contiguous()
    image, *steps, _ = x.stride()
    size, positions = dy.shape[1], dy.shape[2:-1]
    patch = math.prod(kernel) * channels
    windows = x.as_strided(
        (units, groups, size, *positions, *kernel, channels),
        (size * image, channels, image, *map(mul, steps, stride), *map(mul, steps, dilation), 1),
    )
    of_image = groups * math.prod(positions) * patch * x.element_size()
    views = max(1, min(size, PATCH_BYTES_BATCHED // max(1, of_image)))
    # A divisor of the number of units, so that all products have the same size, by which libraries choose kernels.
    limit = max(1, min(units, PATCH_BYTES_BATCHED // max(1, of_image * views)))
    together = next(number for number in range(limit, 0, -1) if units % number == 0)

    def product(unit: int, view: int) -> Tensor:
        part = slice(unit, unit + together), slice(view, view + views)
        d = dy[part].flatten(1, -2).unflatten(2, (groups, -1)).permute(0, 2, 3, 1)
        u = windows[part[0], :, part[1]].reshape(*d.shape[:2], -1, patch)
        return multiply(d, u, current.bf16)

    starts = range(0, size, views)
    rows = [reduce(Tensor.add_, (product(unit, view) for view in starts)) for unit in range(0, units, together)]
    gradients = torch.cat(rows) if len(rows) > 1 else rows[0]
    return gradients.reshape(units, filters, *kernel, channels).movedim(-1, 2)


def _by_patches(
    current: Pass, x: Tensor, dy: Tensor, weight: Tensor, spans: Spans, options: Any
) -> Callable[[int], Tensor]:
    """Return a function that computes dW = D'U, with U the patches of outputs, for a few images at a time."""
    stride, padding, dilation, _ = options
    filters, channels, *kernel = weight.shape
    height, width = dy.shape[2:]
    inputs, outputs = x.permute(0, 2, 3, 1), dy.permute(0, 2, 3, 1)

    patch_bytes = height * width * kernel[0] * kernel[1] * channels * x.element_size()
    step = max(1, min(PATCH_BYTES // max(1, patch_bytes), max(spans.sizes)))
    size = (step, x.shape[2] + 2 * padding[0], x.shape[3] + 2 * padding[1], channels)
    padded = current.slots.scratch(("padded", *padding), size, x)  # the border stays zero: only `inside` is written
    inside = padded[:, padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]]
    image, row_, column, channel = padded.stride()
    windows = padded.as_strided(
        (step, height, width, *kernel, channels),
        (image, row_ * stride[0], column * stride[1], row_ * dilation[0], column * dilation[1], channel),
    )
    patches = current.slots.scratch(("patches",), tuple(windows.shape), x)

    def one(e: int) -> Tensor:
        total: Tensor | None = None
        for start in range(spans[e].start, spans[e].stop, step):
            stop = min(start + step, spans[e].stop)
            inside[: stop - start].copy_(inputs[start:stop])
            patches[: stop - start].copy_(windows[: stop - start])
            u = patches[: stop - start].reshape(-1, math.prod(kernel) * channels)
            product = product_of_unit(outputs[start:stop].reshape(-1, filters), u)
            total = product if total is None else total.add_(product)
        assert total is not None
        return total.view(filters, *kernel, channels).permute(0, 3, 1, 2)

    return one


def _backward(dy: Tensor, x: Tensor, weight: Tensor, options: Any, *, of_input: bool) -> Tensor:
    stride, padding, dilation, groups = options
    mask = [of_input, not of_input, False]
    zeros = [0] * len(stride)
    out = torch.ops.aten.convolution_backward(
        dy, x, weight, None, stride, padding, dilation, False, zeros, groups, mask
    )
    return out[0] if of_input else out[1]


def _pad_batch(weight: Tensor, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call the function on a batch that is padded with blank images if it is small.

    The kernels give an image the same bits in any batch except small ones: one image, or fewer than 16 for filters
    whose axes all have length 1, except possibly one. Padding preserves the memory layout, which kernels also depend
    on. The result is never a view, so that the model may change it in place.
    """
    if tensors[0].device.type != "cpu":  # every pass has the same size there
        return function(*tensors)
    if tensors[0].dtype == torch.float64:
        return _in_float64(function, *tensors)
    count = len(tensors[0])
    kernel = list(weight.shape[2:])
    minimum = MIN_BY_POINTS if kernel.count(1) >= max(1, len(kernel) - 1) else MIN_IMAGES
    if count >= minimum:
        return function(*tensors)
    return function(*(_padded(t, minimum) for t in tensors))[:count].clone()


def _in_float64(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call the function image by image unless all images start at aligned addresses, which affect float64 rounding."""
    y = function(*tensors)
    if all(t[0].numel() * t.element_size() % ALIGNMENT == 0 for t in (*tensors, y)):
        return y
    return torch.cat([function(*(t[i : i + 1].clone() for t in tensors)) for i in range(len(y))])


def _padded(images: Tensor, count: int) -> Tensor:
    if images.stride(0) != images[0].numel():
        images = images.clone()  # dense, with the same memory order
    padded = images.new_empty_strided((count, *images.shape[1:]), images.stride()).zero_()
    padded[: len(images)] = images
    return padded


def _per_axis(value: Any, axes: int) -> list[int]:
    return [int(value)] * axes if isinstance(value, int) else [int(v) for v in value] * (axes // len(value))


ALWAYS |= {F.conv1d, F.conv2d, F.conv3d}


@rule_for(F.conv1d, F.conv2d, F.conv3d)
def conv(
    current: Pass,
    func: Any,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Apply a convolution whose input is data and whose weight and bias are not."""
    axes = weight.dim() - 2
    if not isinstance(input, Data) or isinstance(weight, Data) or isinstance(bias, Data) or input.dim() != axes + 2:
        return per_unit(current, func, input, weight, bias, stride, padding, dilation, groups)
    current.spans(input, f"convolution with {current.name_of(weight)}")
    stride, dilation = _per_axis(stride, axes), _per_axis(dilation, axes)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        input = F.pad(input, [side for t in reversed(total) for side in (t // 2, t - t // 2)])
        padding = 0
    options = (stride, _per_axis(padding, axes), dilation, groups)
    sinks = (current.sink(weight), current.sink(bias))
    return _Conv.apply(plain(input), plain(weight), plain(bias), options, current, sinks)
