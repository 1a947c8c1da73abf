"""Estimated memory and time of a training run on a device, from counted operations.

Operations are counted on the host with blank images, so that they are a function of shapes alone. In an estimate, each
operation takes as long as its arithmetic at a typical fraction of peak performance or as its memory traffic, whichever
is longer. Slower kernels and time on the host are not included.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from dpvision.errors import ConfigError
from dpvision.settings.setting import check, check_values, read_toml, setting

COUNTED = 4  # images in the pass whose operations are counted
# Fraction of peak performance that matrix products and convolutions usually reach. Elementwise operations are limited
# by memory bandwidth.
USUAL_SHARE = 0.5
# Memory traffic and memory, in bytes, for each weight of a unit: its gradient is written in float32, read for its norm,
# and read again for the sum, which is rounded and accumulated in float64.
ROW_TRAFFIC, ROW_BYTES = 32, 16
# Fraction of the memory that a pass may use, and memory of a backward pass relative to the saved tensors.
MEMORY_SHARE, BACKWARD = 0.5, 2.0
# Minimum number of passes in a step, so that the blank units in the last one cost little.
MIN_PASSES = 8


@dataclass(frozen=True)
class Cost:
    """The cost of one image in the forward and backward pass."""

    kernels: tuple[tuple[float, float], ...]  # (arithmetic operations, bytes moved) of each
    saved: int  # bytes that the forward pass saves for the backward pass
    weights: int  # number of trained weights

    def pass_units(self, memory: int, *, views: int, batch: int) -> int:
        """Return the number of units in a pass: a power of two that fits in memory, at most an eighth of the batch."""
        unit = views * BACKWARD * self.saved + ROW_BYTES * self.weights
        most = max(1, int(min(MEMORY_SHARE * memory / unit, batch / MIN_PASSES)))
        return 1 << (most.bit_length() - 1)

    def pass_bytes(self, units: int, *, views: int) -> float:
        """Return the memory, in bytes, of a pass of `units` units."""
        return units * (views * BACKWARD * self.saved + ROW_BYTES * self.weights)


def count(
    learner: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    shape: tuple[int, ...],
    targets_of: Callable[[int], Tensor] = lambda count: torch.zeros(count, dtype=torch.int64),
) -> Cost:
    """Count the operations per image in a training step of `learner` on images of this shape."""
    learner = copy.deepcopy(learner).cpu()
    images, targets = torch.zeros(COUNTED, *shape), targets_of(COUNTED)
    trained = [p for p in learner.parameters() if p.requires_grad]
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.enable_grad(), _Counting() as counting:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            losses = loss(learner(images), targets)
        torch.autograd.grad(losses.sum(), trained, allow_unused=True)
    fixed = {t.untyped_storage().data_ptr() for t in (*learner.parameters(), *learner.buffers())}
    total = sum(size for pointer, size in saved.items() if pointer not in fixed)
    return Cost(
        tuple((flops / COUNTED, size / COUNTED) for flops, size in counting.kernels),
        max(1, total // COUNTED),
        sum(p.numel() for p in trained),
    )


class _Counting(TorchDispatchMode):
    """Record the arithmetic operations and bytes of each kernel that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[float, float]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            formula = flop_registry.get(func.overloadpacket)
            flops = float(formula(*args, **(kwargs or {}), out_val=result)) if formula else 0.0
            tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
            self.kernels.append((flops, float(sum(t.numel() * t.element_size() for t in tensors))))
        return result


@dataclass(frozen=True)
class Described:
    """A device that is not available, described by its data sheet."""

    # fmt: off
    name: str = setting("a device", group="Output", help="Name.")
    memory_gb: float = setting(16.0, group="Output", above=0, help="Memory, in 10^9 bytes.")
    bandwidth_gb_s: float = setting(500.0, group="Output", above=0, help="Memory bandwidth, in 10^9 bytes per second.")
    tflops_float32: float = setting(10.0, group="Output", above=0, help="Peak float32 performance, in TFLOPS.")
    tflops_tf32: float | None = setting(None, group="Output", above=0, help="Peak TF32 performance, in TFLOPS.")
    tflops_bf16: float | None = setting(None, group="Output", above=0, help="Peak bfloat16 performance, in TFLOPS.")
    launch_us: float = setting(8.0, group="Output", above=0, help="Time to launch a kernel, in microseconds.")
    # fmt: on

    def __post_init__(self) -> None:
        check(self)

    @staticmethod
    def read(path: Path) -> Described:
        """Read the description of a device from a TOML file."""
        return Described(**check_values(Described, read_toml(path), source=str(path)))

    def peak(self, precision: str) -> float:
        """Return the peak performance in a precision, in operations per second."""
        peak = getattr(self, f"tflops_{precision}")
        if peak is None:
            raise ConfigError(
                f"{self.name}: its peak performance in {precision} is unknown. Fix: set tflops_{precision} in its file."
            )
        return float(peak) * 1e12


@dataclass(frozen=True)
class Prediction:
    """Estimated memory and time of a training step on a described device."""

    units: int  # in a pass
    memory: float  # of a pass, in bytes
    step: float  # seconds
    images_per_second: float  # units, each with all its views


def predict(cost: Cost, device: Described, *, batch: int, views: int, precision: str) -> Prediction:
    """Estimate memory and time of a training step with this expected batch size."""
    units = cost.pass_units(int(device.memory_gb * 1e9), views=views, batch=batch)
    peak, bandwidth = USUAL_SHARE * device.peak(precision), device.bandwidth_gb_s * 1e9
    view = sum(max(flops / peak, size / bandwidth) for flops, size in cost.kernels)
    row = ROW_TRAFFIC * cost.weights / bandwidth
    launches = len(cost.kernels) * device.launch_us * 1e-6
    step = batch * (views * view + row) + -(-batch // units) * launches
    return Prediction(units, cost.pass_bytes(units, views=views), step, batch / step)
