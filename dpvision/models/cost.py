"""What a training run costs on a device, from counted operations: images per pass, and time on a described device.

Operations are counted on the host with blank images, so that they are a function of shapes alone. A prediction is an
estimate: each operation takes as long as its arithmetic at a usual share of the peak, or as its memory traffic,
whichever is longer. Kernels that are slower than that, and what the host adds, are not in it.
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
# The share of the peak that matrix products and convolutions usually reach; that of elementwise work is its bandwidth.
USUAL_SHARE = 0.5
# Bytes of memory traffic for each weight of a unit: its gradient is written in float32, read for its norm, and read
# once more for the sum, which is rounded and added up in float64.
ROW_TRAFFIC, ROW_BYTES = 32, 16
# The share of the memory that a pass may take, and how much more than its saved tensors a backward pass needs.
MEMORY_SHARE, BACKWARD = 0.5, 2.0
# A step has at least this many passes, so that the blank units of the last one cost little.
MIN_PASSES = 8


@dataclass(frozen=True)
class Cost:
    """What one image costs in forward and backward passes: (arithmetic operations, bytes moved) of each kernel."""

    kernels: tuple[tuple[float, float], ...]
    saved: int  # bytes that the forward pass keeps for the backward pass
    weights: int  # trained

    def pass_units(self, memory: int, *, views: int, batch: int) -> int:
        """Return the units in a pass, a power of two: what fits a share of the memory, and never a whole batch."""
        unit = views * BACKWARD * self.saved + ROW_BYTES * self.weights
        most = max(1, int(min(MEMORY_SHARE * memory / unit, batch / MIN_PASSES)))
        return 1 << (most.bit_length() - 1)

    def pass_bytes(self, units: int, *, views: int) -> float:
        """Return the memory of a pass of this many units."""
        return units * (views * BACKWARD * self.saved + ROW_BYTES * self.weights)


def count(learner: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]) -> Cost:
    """Count the operations of a training step of `learner` on images of a shape, per image."""
    learner = copy.deepcopy(learner).cpu()
    images, targets = torch.zeros(COUNTED, *shape), torch.zeros(COUNTED, dtype=torch.int64)
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
    kept = sum(size for place, size in saved.items() if place not in fixed)
    return Cost(
        tuple((flops / COUNTED, size / COUNTED) for flops, size in counting.kernels),
        max(1, kept // COUNTED),
        sum(p.numel() for p in trained),
    )


class _Counting(TorchDispatchMode):
    """Notes arithmetic operations and bytes of each kernel that runs."""

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
    """A device that is not here, by the figures of its data sheet."""

    # fmt: off
    name: str = setting("a device", group="Output", help="Name.")
    memory_gb: float = setting(16.0, group="Output", above=0, help="Memory, in 10^9 bytes.")
    bandwidth_gb_s: float = setting(500.0, group="Output", above=0, help="Memory bandwidth, in 10^9 bytes a second.")
    tflops_float32: float = setting(10.0, group="Output", above=0, help="Peak of float32, in 10^12 a second.")
    tflops_tf32: float | None = setting(None, group="Output", above=0, help="The same of TF32.")
    tflops_bf16: float | None = setting(None, group="Output", above=0, help="The same of bfloat16.")
    launch_us: float = setting(8.0, group="Output", above=0, help="Time to launch a kernel, in microseconds.")
    # fmt: on

    def __post_init__(self) -> None:
        check(self)

    @staticmethod
    def read(path: Path) -> Described:
        """Read the description of a device from a TOML file."""
        return Described(**check_values(Described, read_toml(path), source=str(path)))

    def peak(self, precision: str) -> float:
        """Return operations a second in a precision."""
        peak = getattr(self, f"tflops_{precision}")
        if peak is None:
            raise ConfigError(
                f"{self.name}: its peak in {precision} is not given. Fix: tflops_{precision} in its file."
            )
        return float(peak) * 1e12


@dataclass(frozen=True)
class Prediction:
    """An estimate for a training run on a described device."""

    units: int  # in a pass
    memory: float  # of a pass, in bytes
    step: float  # seconds
    images_per_second: float  # units, each with all its views


def predict(cost: Cost, device: Described, *, batch: int, views: int, precision: str) -> Prediction:
    """Predict a training step with this expected batch."""
    units = cost.pass_units(int(device.memory_gb * 1e9), views=views, batch=batch)
    peak, bandwidth = USUAL_SHARE * device.peak(precision), device.bandwidth_gb_s * 1e9
    view = sum(max(flops / peak, size / bandwidth) for flops, size in cost.kernels)
    row = ROW_TRAFFIC * cost.weights / bandwidth
    launches = len(cost.kernels) * device.launch_us * 1e-6
    step = batch * (views * view + row) + -(-batch // units) * launches
    return Prediction(units, cost.pass_bytes(units, views=views), step, batch / step)
