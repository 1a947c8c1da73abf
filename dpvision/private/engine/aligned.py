"""Where a tensor starts in memory, which some kernels round by."""

from __future__ import annotations

from torch import Tensor

# Memory from torch starts at multiples of this many bytes.
ALIGNMENT = 64


def aligned(tensor: Tensor) -> Tensor:
    """The same numbers from the start of a block of memory: where a unit lies in its batch must decide nothing."""
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
