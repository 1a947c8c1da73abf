"""Max pooling on an accelerator, with a deterministic backward pass.

The libraries' backward kernels use atomic additions in arbitrary order. Here, the maximum is taken over windows that
are a view of the images, which autograd differentiates deterministically. On the CPU, the library's kernels are used.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.private.engine.trace import ALWAYS, Pass, plain, rule_for

ALWAYS |= {torch.max_pool2d, F.adaptive_max_pool2d}


def _largest(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    windows = x.unfold(-2, kernel[0], stride[0]).unfold(-2, kernel[1], stride[1])
    return windows.flatten(-2).max(-1).values


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[-1]))


@rule_for(torch.max_pool2d)
def max_pool2d(
    current: Pass,
    func: Any,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Compute the maximum of each window."""
    if not current.batched or ceil_mode or _pair(dilation) != (1, 1):
        return func(plain(input), kernel_size, stride, padding, dilation, ceil_mode)
    (kernel, sides), x = map(_pair, (kernel_size, padding)), plain(input)
    if any(sides):
        x = F.pad(x, (sides[1], sides[1], sides[0], sides[0]), value=-torch.inf)
    return _largest(x, kernel, _pair(stride) if stride else kernel)


@rule_for(F.adaptive_max_pool2d)
def adaptive_max_pool2d(current: Pass, func: Any, input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Compute the maximum of each part of an image, if all parts have the same size."""
    sides, parts = input.shape[-2:], [s or side for s, side in zip(_pair(output_size), input.shape[-2:], strict=True)]
    if not current.batched or return_indices or any(side % part for side, part in zip(sides, parts, strict=True)):
        return func(plain(input), output_size, return_indices)
    kernel = (sides[0] // parts[0], sides[1] // parts[1])
    return _largest(plain(input), kernel, kernel)
