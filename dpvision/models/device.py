"""The machine that computes: its devices by name, how they do arithmetic, and how the process keeps its memory.

Every computation runs on any device of torch that has float64: sums of private contributions are exact there. Noise,
sampling and the ledger stay on the host. What a device computes is named (`name_computation`) in all that names noise:
two computations that may round differently never share it.
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

from dpvision.errors import ConfigError
from dpvision.settings.training import PRECISIONS

CPU = torch.device("cpu")
# Parameters of glibc's mallopt (malloc.h).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def find_device(name: str = "auto", *, report: Callable[[str], None] = lambda _: None) -> torch.device:
    """The device with this name, after a trial on it; a ConfigError if it cannot be used.

    "auto" is the accelerator if there is one that passes the trial, and otherwise the CPU, with the reason given to
    `report`. Under torchrun an accelerator without a number is the one of this process's rank on its machine.
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            return torch.device("cpu")
        try:
            return find_device(accelerator.type)
        except ConfigError as exc:
            report(f"{exc} It computes on the CPU instead.")
            return torch.device("cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "meta") and device.index is None:
            device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))
        _try_device(device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as exc:
        # torch asserts that it was built for CUDA; a device without float64 raises a TypeError
        reason = str(exc).splitlines()[0].split(". ")[0]
        raise ConfigError(
            f"device {name!r}: cannot be used here ({reason}). Fix: --device cpu, or leave the option out."
        ) from exc
    return device


def _try_device(device: torch.device) -> None:
    """Require that a device holds values, and adds whole numbers in float64 without error."""
    if device.type == "meta":
        raise RuntimeError("it holds no values")
    numbers = torch.tensor([2.0**52 + 1, -(2.0**52), 3.0], dtype=torch.float64).to(device)
    if float(numbers.sum()) != 4.0:
        raise RuntimeError("its sums of whole numbers in float64 are not exact")
    if device.type != "cpu" and not _describe(device):
        raise RuntimeError("nothing describes how it rounds, so noise on it could not be named")


def name_computation(device: torch.device, precision: str = "float32") -> str:
    """Everything about a device that decides how it rounds, in one line; empty for float32 on the CPU.

    It is part of the name of a run's noise. (What decides on the CPU is in storage.home.)
    """
    parts = [] if precision == "float32" else [precision]
    if device.type != "cpu":
        parts += [device.type, *_describe(device)]
        parts += [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(_STEERING) and k not in _WHERE]
    return ", ".join(parts)


# Variables that choose kernels.
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

# Variables that choose a device by its index, or memory, but no kernel.
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
    describe = getattr(module, "describe", None)  # a backend may state what decides its rounding
    return [str(describe(device))] if describe is not None else []


def fix_arithmetic(device: torch.device, precision: str = "float32") -> None:
    """Set how this process computes on a device: deterministic kernels only, none chosen by timing.

    torch's own default for convolutions on CUDA is TF32; here it is what `precision` states. The CPU is left as it is.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}. Fix: one of {', '.join(PRECISIONS)}.")
    if device.type == "cpu":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # It would take a kernel for every new tensor, to find out who reads one before it is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    # After the flags, which do not overrule a precision for the whole process, torch.backends.fp32_precision.
    cudnn: Any = torch.backends.cudnn
    for place in (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul):
        place.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def send(values: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """The values on a device. To an accelerator they are copied from pinned memory, so that the host does not wait."""
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


# Pinned memory from which a copy may still be running, oldest first, and the events after the copies.
_sent: deque[tuple[torch.Event, torch.Tensor]] = deque()
_sending = Lock()


def total_memory(device: torch.device) -> int:
    """The bytes of memory that a device has in all, whatever is in use; 4 GiB where its backend does not say."""
    read = getattr(getattr(torch, device.type, None), "mem_get_info", None)
    return int(read(device)[1]) if read is not None else 4 << 30


@cache
def keep_freed_memory() -> bool:
    """Keep memory that is freed for the next allocation, in the whole process; False where the C library cannot.

    Requesting it from the system again costs up to a quarter of the time of a pass. No result changes.
    """
    try:
        library = ctypes.CDLL(None)
        settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1))
        return all(library.mallopt(*setting) for setting in settings)
    except (OSError, AttributeError):
        return False
