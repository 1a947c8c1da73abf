"""Devices by name, their arithmetic, and the memory management of the process.

Every computation can run on any torch device with float64, in which sums of private contributions are exact. Noise,
sampling and the ledger stay on the host. The name of a run's noise includes everything that decides how the device
rounds (`name_computation`), so that two computations that may round differently never share noise.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import metadata
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.settings.training import PRECISIONS

CPU = torch.device("cpu")
# Parameters of glibc's mallopt (malloc.h).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def find_device(name: str = "auto", *, report: Callable[[str], None] = lambda _: None) -> torch.device:
    """Return the device with this name after testing it; raise ConfigError if it cannot be used.

    "auto" is the accelerator if there is one and it passes the test. Otherwise it is the CPU, and the reason is passed
    to `report`. Under torchrun, an accelerator without a number is the one with this process's local rank.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            return torch.device("cpu")
        try:
            return find_device(accelerator.type)
        except ConfigError as exc:
            report(f"{exc} Using the CPU instead.")
            return torch.device("cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "meta") and device.index is None:
            device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))
        _try_device(device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as exc:
        # torch asserts that it was built for CUDA; a device without float64 raises TypeError
        reason = str(exc).splitlines()[0].split(". ")[0]
        raise ConfigError(
            f"device {name!r}: cannot be used here ({reason}). Fix: use --device cpu, or leave out the option."
        ) from exc
    return device


def _try_device(device: torch.device) -> None:
    """Require that a device stores values, adds integers in float64 exactly, and has a description."""
    if device.type == "meta":
        raise RuntimeError("it stores no values")
    numbers = torch.tensor([2.0**52 + 1, -(2.0**52), 3.0], dtype=torch.float64).to(device)
    if float(numbers.sum()) != 4.0:
        raise RuntimeError("its sums of integers in float64 are not exact")
    if device.type != "cpu" and not _describe(device):
        raise RuntimeError("its rounding is not described, so noise on it cannot be named")


def name_computation(device: torch.device, precision: str = "float32") -> str:
    """Return everything about a device that decides how it rounds, in one line; empty for float32 on the CPU.

    It is part of the name of a run's noise. The corresponding properties of the CPU are in storage.home.
    """
    parts = [] if precision == "float32" else [precision]
    if device.type != "cpu":
        parts += [device.type, *_describe(device)]
        parts += [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(_STEERING) and k not in _WHERE]
    return ", ".join(parts)


# Prefixes of environment variables that affect the choice of kernels.
_STEERING: tuple[str, ...] = (
    "CUDA_",
    "CUBLAS_",
    "CUBLASLT_",
    "CUDNN_",
    "NVIDIA_",
    "DISABLE_ADDMM_CUDA_LT",
    "TORCH_",
    "PYTORCH_",
)
_STEERING += ("HSA_", "HIP_", "ROC", "MIOPEN_", "ZE_", "SYCL_")

# Exceptions, which select devices or memory but no kernels.
_WHERE = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}


def _describe(device: torch.device) -> list[str]:
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        libraries = f"CUDA {torch.version.cuda or torch.version.hip}, cuDNN {torch.backends.cudnn.version()}"
        read = getattr(torch._C, "_cuda_getDriverVersion", None)
        driver = [] if read is None else [f"driver {read()}"]
        blas = []
        for name in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
            with suppress(metadata.PackageNotFoundError):
                blas.append(f"{name} {metadata.version(name)}")
        place = [card.name, f"{card.major}.{card.minor}", f"{card.multi_processor_count} processors"]
        return [*place, libraries, *driver, *blas]
    if device.type == "xpu":
        properties = torch.xpu.get_device_properties(device)
        facts = ("name", "platform_name", "version", "driver_version", "max_compute_units", "gpu_eu_count")
        return [f"{fact} {getattr(properties, fact)}" for fact in facts if hasattr(properties, fact)]
    module = getattr(torch, device.type, None)
    describe = getattr(module, "describe", None)  # a backend may describe what decides its rounding
    return [str(describe(device))] if describe is not None else []


def fix_arithmetic(device: torch.device, precision: str = "float32") -> None:
    """Make this process use only deterministic kernels on a device, none of them chosen by timing, in `precision`.

    This overrides torch's default of TF32 for convolutions on CUDA. Settings of the CPU are not changed.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}. Fix: use one of {', '.join(PRECISIONS)}.")
    if device.type == "cpu":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # This debugging aid would launch a kernel for every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    # These must follow the flags above, which do not override the process-wide torch.backends.fp32_precision.
    cudnn: Any = torch.backends.cudnn
    for backend in (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul):
        backend.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def send(values: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return the values on a device. Copies to an accelerator use pinned memory, so that the host does not wait."""
    if device is None or device.type == "cpu" or values.device == device:
        return values.to(device)
    with _sending:
        while _sent and _sent[0][0].query():
            _sent.popleft()
    try:
        pinned, done = values.contiguous().pin_memory(), torch.Event(device)
    except RuntimeError:  # this host, or this backend, has no pinned memory or no events
        return values.to(device)
    far = pinned.to(device, non_blocking=True)
    with getattr(torch, device.type).device(device):
        done.record()
    with _sending:
        _sent.append((done, pinned))
    return far


# Events after copies that may still be running, oldest first, and the pinned memory of the copies.
_sent: deque[tuple[torch.Event, torch.Tensor]] = deque()
_sending = Lock()


def total_memory(device: torch.device) -> int:
    """Return the total memory of a device in bytes, used or free; 4 GiB if its backend does not report it."""
    read = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    return int(read(device)[1]) if read is not None else 4 << 30


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory in the process for later allocations; return False if the C library cannot do so.

    Requesting it from the system again takes up to a quarter of the time of a pass. Results do not change.
    """
    try:
        library = ctypes.CDLL(None)
        settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1))
        return all(library.mallopt(*setting) for setting in settings)
    except (OSError, AttributeError):
        return False


HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def has_fast_product(x: Tensor) -> bool:
    """Whether `product` uses oneDNN for this tensor: on the CPU, for float32 numbers without gradients."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not (x.requires_grad and torch.is_grad_enabled())
    return plain and HAS_ONEDNN and not torch.compiler.is_exporting()


def product(rows: Tensor, others: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows @ others.mT (+ bias), always as a new tensor.

    On the CPU, oneDNN multiplies two matrices, several times as fast as MKL if one is narrow, and twice as fast on
    processors of AMD. How a row is rounded may depend on the sizes of both matrices.
    """
    if rows.dim() == 2 == others.dim() and has_fast_product(rows) and has_fast_product(others):
        others = others if others.is_contiguous() or others.T.is_contiguous() else others.contiguous()
        return torch.ops.mkldnn._linear_pointwise.default(rows.contiguous(), others, bias, "none", [], "")
    result = rows @ others.mT
    return result if bias is None else result + bias
