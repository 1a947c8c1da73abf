"""Where to compute, by name."""

from __future__ import annotations

import torch

from dpvision.errors import ConfigError


def device_named(name: str) -> torch.device:
    """The device, on which a number was put to see that it works; or a ConfigError."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError, NotImplementedError) as exc:  # torch asserts that it was built for CUDA
        raise ConfigError(f"device {name!r}: cannot be used here ({str(exc).splitlines()[0]}). Fix: cpu.") from exc
    return device
