"""A diffusion model as it is kept in a folder: which method, which network, which classes, and its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.public.diffusion import ddpm, edm
from dpvision.public.diffusion.edm import Denoiser
from dpvision.public.diffusion.sampler import Sampler, ancestral, falling_sigmas, heun
from dpvision.public.diffusion.unet import UNet, size_named
from dpvision.public.sheets import png, tiled
from dpvision.storage import safetensors

FORMAT = "dpvision-diffusion-1"
MOST_PIXELS, MOST_CLASSES = 1 << 20, 10_000


@dataclass(frozen=True)
class Method:
    """What a way of learning is made of: loss(network, y, labels, augment), and how samples are drawn by default."""

    loss: Callable[..., Tensor]
    denoise: Callable[..., Tensor]
    sampler: Sampler
    sigmas: Callable[[int], list[float]]
    steps: int


METHODS = {
    "edm": Method(edm.loss, edm.denoise, heun, falling_sigmas, 18),
    "ddpm": Method(ddpm.loss, ddpm.denoise, ancestral, ddpm.chain, ddpm.TIMES),
}


@dataclass(frozen=True)
class Kind:
    """What must be known to build a model: everything but its weights."""

    shape: tuple[int, int, int]  # channels, height, width
    classes: tuple[str, ...]
    method: str = "edm"
    size: str = "small"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"there is no method {self.method!r}. There are: {', '.join(METHODS)}.")
        size_named(self.size)
        channels, height, width = self.shape
        if channels not in (1, 3) or min(height, width) < 4 or height * width > MOST_PIXELS:
            raise ConfigError(f"images of shape {self.shape} (channels, height, width) cannot be learned.")
        if not 1 <= len(self.classes) <= MOST_CLASSES:
            raise ConfigError(f"there are {len(self.classes):,} classes: a model has 1 to {MOST_CLASSES:,}.")

    def network(self, *, seed: int = 0, device: str | torch.device = "cpu") -> UNet:
        """A new one; its first weights are a function of the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return UNet(size_named(self.size), self.shape, classes=len(self.classes)).to(device)

    def denoiser(self, network: UNet) -> Denoiser:
        return partial(METHODS[self.method].denoise, network)

    def header(self) -> dict[str, str]:
        facts = {"method": self.method, "size": self.size, "shape": self.shape, "classes": self.classes}
        return {"format": FORMAT, "model": json.dumps(facts)}


def kind_in(header: dict[str, str], path: Path) -> Kind:
    """The kind that a file's header tells, or a DataError."""
    try:
        facts: dict[str, Any] = json.loads(header["model"]) if header.get("format") == FORMAT else {}
        channels, height, width = (int(n) for n in facts["shape"])
        classes = tuple(str(name) for name in facts["classes"])
        return Kind((channels, height, width), classes, method=str(facts["method"]), size=str(facts["size"]))
    except (*safetensors.UNSOUND, ConfigError) as exc:
        raise DataError(
            f"{path}: its header is not that of a diffusion model ({exc}). Fix: `dpvision synth fit`."
        ) from exc


def load(folder: Path, *, device: str | torch.device = "cpu") -> tuple[Kind, UNet, str]:
    """Kind, network (with the mean weights) and digest of a fitted folder."""
    path = folder / "weights.safetensors"
    if not path.exists():
        raise DataError(f"{folder}: has no weights.safetensors. Fix: the folder of `dpvision synth fit`.")
    kind = kind_in(safetensors.read(path).header, path)
    with torch.device("meta"):
        network = UNet(size_named(kind.size), kind.shape, classes=len(kind.classes))
    tensors, header = safetensors.load(path, network.state_dict())
    network.load_state_dict(tensors, assign=True)
    network = network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return kind, network.eval().requires_grad_(False), header["digest"]


def to_bytes(x: Tensor) -> np.ndarray:
    """(N, C, H, W) in [-1, 1] or a little beyond -> (N, H, W, C) uint8, rounded."""
    pixels = ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return np.ascontiguousarray(pixels.movedim(1, 3).cpu().numpy())


def sheet(images: np.ndarray, *, columns: int) -> bytes:
    """PNG of (rows * columns, H, W, C) uint8 pictures, row after row, each at least 28 pixels a side."""
    scale = -(-28 // min(images.shape[1:3]))
    return png(tiled(images, columns=columns, gap=1).repeat(scale, axis=0).repeat(scale, axis=1))
