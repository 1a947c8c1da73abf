"""torch.standin: what torch and programs ask of the module of a device type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from tests.standin import options

available = False  # whether torch.accelerator offers it


@dataclass(frozen=True)
class Properties:
    """What a program may ask about a device."""

    name: str
    total_memory: int


def _index(device: Any) -> int:
    if device is None:
        return int(torch.ops.standin.current_device())
    index = device if isinstance(device, int) else torch.device(device).index
    return int(torch.ops.standin.current_device()) if index is None else index


class StandIn(ModuleType):
    """The functions of torch.cuda that a device-independent program uses."""

    @staticmethod
    def is_available() -> bool:
        return available

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return int(torch.ops.standin.device_count())

    @staticmethod
    def current_device() -> int:
        return int(torch.ops.standin.current_device())

    @staticmethod
    def set_device(device: Any) -> None:
        torch.ops.standin.set_device(_index(device))

    @staticmethod
    @contextmanager
    def device(device: Any) -> Iterator[None]:
        before = _index(None)
        torch.ops.standin.set_device(_index(device))
        try:
            yield
        finally:
            torch.ops.standin.set_device(before)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.ops.standin.synchronize()

    @staticmethod
    def get_device_name(device: Any = None) -> str:
        return "stand-in accelerator"

    @staticmethod
    def get_device_properties(device: Any = None) -> Properties:
        return Properties(StandIn.get_device_name(device), int(torch.ops.standin.capacity()))

    @staticmethod
    def describe(device: Any = None) -> str:
        return options.describe(device)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    # Random numbers

    @staticmethod
    def manual_seed(seed: int) -> None:
        torch.ops.standin.seed(_index(None), _as_signed(seed))

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        for index in range(StandIn.device_count()):
            torch.ops.standin.seed(index, _as_signed(seed))

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        state: torch.Tensor = torch.ops.standin.generator_state(_index(device))
        return state

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        torch.ops.standin.set_generator_state(_index(device), state.contiguous())

    # Memory

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        return int(torch.ops.standin.allocated(_index(device)))

    @staticmethod
    def max_memory_allocated(device: Any = None) -> int:
        return int(torch.ops.standin.peak(_index(device)))

    @staticmethod
    def reset_peak_memory_stats(device: Any = None) -> None:
        torch.ops.standin.reset_peak(_index(device))

    @staticmethod
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        """Return the free and the total bytes of a device."""
        total = int(torch.ops.standin.capacity())
        return total - StandIn.memory_allocated(device), total

    @staticmethod
    def empty_cache() -> None:
        """Do nothing: freed memory is not kept."""


def _as_signed(seed: int) -> int:
    """Return the 64-bit integer with the bits of a seed."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
