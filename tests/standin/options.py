"""What can be switched on: numbers, 0 meaning off. native/options.h keeps the values, which are the process's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

OPTIONS = {
    "limit": "bytes of memory of each device, at most 8 GiB; more raises torch.OutOfMemoryError",
    "refuse_waits": "1: an error wherever the host waits for the device",
    "late": "1: overwriting pinned memory that a copy may still read is an error, and not only counted as a hazard",
    "bits": "float32 products round their inputs to this many explicit bits: 10 is TF32, 7 is bfloat16",
    "tf32": "1: they do so with 10 bits where torch's flags for CUDA allow TF32",
    "bits64": "float64 products and sums round their inputs to this many explicit bits",
    "no_float64": "1: a TypeError for every float64 tensor, as on Apple's GPUs",
    "jitter": "relative error of float32 products and sums, another one in every call",
    "chance": "a seed of jitter",
    "by_size": "relative error that depends on the sizes of the inputs, as if kernels were chosen by size",
    "by_place": "relative error that depends on the place in the batch",
}
# Those that decide how the device rounds.
ROUNDING = ("bits", "tf32", "bits64", "jitter", "chance", "by_size", "by_place")


@contextmanager
def asked(**options: float) -> Iterator[None]:
    """Switch on options (OPTIONS) for the time of the context; afterwards they are what they were."""
    before = set_options(options)
    try:
        yield
    finally:
        set_options(before)


def set_options(options: dict[str, float]) -> dict[str, float]:
    """Set options, and return what they were."""
    return {name: torch.ops.standin.set_option(name, float(value)) for name, value in options.items()}


def parse_options(text: str) -> dict[str, float]:
    """Return the options of a text such as "bits=10,late=1"; a ValueError if it has others."""
    options = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in OPTIONS:
            raise ValueError(f"there is no option {name!r}. Fix: use one of {', '.join(OPTIONS)}.")
        try:
            options[name] = float(value)
        except ValueError:
            raise ValueError(f"{part!r} has no number. Fix: for example {name}=1.") from None
    return options


def describe(device: Any = None) -> str:
    """Return what decides how a device rounds: whose kernels it runs, and the options of rounding that are on."""
    values = {name: torch.ops.standin.option(name) for name in ROUNDING}
    return ", ".join(["kernels of the host", *(f"{name}={value:g}" for name, value in values.items() if value)])
