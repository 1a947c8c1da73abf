"""A diffusion model as stored in a folder: its method, network, classes and weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.models import seeded
from dpvision.public.diffusion.methods import METHODS, Denoiser
from dpvision.public.diffusion.unet import UNet, unet_size
from dpvision.public.sheets import encode_png, tile
from dpvision.storage import safetensors

FORMAT = "dpvision-diffusion-1"
MAX_PIXELS, MAX_CLASSES = 1 << 20, 10_000


@dataclass(frozen=True)
class ModelSpec:
    """Everything that is needed to build a model, except its weights."""

    shape: tuple[int, int, int]  # channels, height, width
    classes: tuple[str, ...]
    method: str = "edm"
    size: str = "small"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"there is no method {self.method!r}. There are: {', '.join(METHODS)}.")
        unet_size(self.size)
        channels, height, width = self.shape
        if channels not in (1, 3) or min(height, width) < 4 or height * width > MAX_PIXELS:
            raise ConfigError(f"images of shape {self.shape} (channels, height, width) are not supported.")
        if not 1 <= len(self.classes) <= MAX_CLASSES:
            raise ConfigError(f"there are {len(self.classes):,} classes: a model has 1 to {MAX_CLASSES:,}.")

    def build(self, *, seed: int = 0) -> UNet:
        """Build a new network, whose initial weights are a function of the seed."""
        with seeded(seed):
            return UNet(unet_size(self.size), self.shape, classes=len(self.classes))

    def denoiser(self, network: UNet) -> Denoiser:
        """Turn a network into the method's denoiser."""
        return partial(METHODS[self.method].denoise, network)

    def header(self) -> dict[str, str]:
        """Return the spec as header entries."""
        facts = {"method": self.method, "size": self.size, "shape": self.shape, "classes": self.classes}
        return {"format": FORMAT, "model": json.dumps(facts)}


def parse_spec(header: dict[str, str], path: Path) -> ModelSpec:
    """Parse the spec in a file's header; raise DataError if there is none."""
    try:
        facts: dict[str, Any] = json.loads(header["model"]) if header.get("format") == FORMAT else {}
        channels, height, width = (int(n) for n in facts["shape"])
        classes = tuple(str(name) for name in facts["classes"])
        return ModelSpec((channels, height, width), classes, method=str(facts["method"]), size=str(facts["size"]))
    except (*safetensors.UNSOUND, ConfigError) as exc:
        raise DataError(
            f"{path}: its header is not that of a diffusion model ({exc}). Fix: run `dpvision synth fit`."
        ) from exc


def load_diffusion(folder: Path, *, device: str | torch.device = "cpu") -> tuple[ModelSpec, UNet, str]:
    """Load the spec, the network with its averaged weights, and their digest from a fitted model's folder."""
    path = folder / "weights.safetensors"
    if not path.exists():
        raise DataError(f"{folder}: has no weights.safetensors. Fix: give the folder of `dpvision synth fit`.")
    spec = parse_spec(safetensors.read(path).header, path)
    with torch.device("meta"):
        network = UNet(unet_size(spec.size), spec.shape, classes=len(spec.classes))
    tensors, header = safetensors.load(path, network.state_dict())
    network.load_state_dict(tensors, assign=True)
    network = network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return spec, network.eval().requires_grad_(False), header["digest"]


def to_bytes(x: Tensor) -> np.ndarray:
    """Convert (N, C, H, W) in [-1, 1] to (N, H, W, C) uint8; values outside are clipped."""
    pixels = ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return np.ascontiguousarray(pixels.movedim(1, 3).cpu().numpy())


def draw_sheet(images: np.ndarray, *, columns: int) -> bytes:
    """Draw (rows * columns, H, W, C) uint8 images in rows, as PNG, each at least 28 pixels per side."""
    scale = -(-28 // min(images.shape[1:3]))
    return encode_png(tile(images, columns=columns, gap=1).repeat(scale, axis=0).repeat(scale, axis=1))
