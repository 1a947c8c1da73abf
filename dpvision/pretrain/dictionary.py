"""A prior without training: whitening and patches of random images, in closed form, in seconds.

    C = sum over patches p of p p^T, less their means        what random images look like, to second order
    W = (E + floor * mean E)^(-1/2) V^T                      with C = V E V^T
    dictionary = some W p of more than median length, scaled to length 1

The result is a function of the settings alone. No private image is within reach: this package can not import what reads
them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision import __version__, atomic, checkpoint
from dpvision.errors import ConfigError
from dpvision.models import Featured, Shape, build
from dpvision.models.patches import PATCH, Patches, around_zero
from dpvision.models.pieces import in_pieces
from dpvision.randimages import draw

FORMAT = "dpvision-dictionary-1"
AT_A_TIME = 250


@dataclass(frozen=True)
class Settings:
    """Of one dictionary."""

    model: str
    shape: Shape  # channels, height, width of the images that it is for
    process: str = "dead-leaves-mixed"
    images: int = 4000  # for patches, and half as many others for the mean of the features
    patches: int = 40_000
    floor: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.images, self.patches) < 2 or not self.floor > 0 or not 0 <= self.seed < 1 << 63:
            raise ConfigError("a dictionary needs 2 images and 2 patches at least, a floor above 0, a seed below 2^63.")

    @property
    def name(self) -> str:
        return hashlib.blake2b(json.dumps([FORMAT, asdict(self)]).encode(), digest_size=12).hexdigest()


def learn(settings: Settings) -> Featured:
    """The model with its dictionary, whitening and mean."""
    model = build(settings.model, settings.shape, classes=2, seed=settings.seed)
    if not isinstance(model, Featured) or not isinstance(model.prefix, Patches):
        raise ConfigError(f"{settings.model}: only a model on patches has a dictionary. Fix: patches-2048.")
    patches, images = model.prefix, settings.images
    with torch.no_grad():
        with _one_thread():
            whitening, dictionary = _white(drawn(settings, range(images)), len(patches.dictionary), settings)
            patches.whitening.copy_(whitening)
            patches.dictionary.copy_(dictionary)
        others = drawn(settings, range(images, images + images // 2))
        seen = in_pieces(patches.seen, others, size=model.piece or AT_A_TIME)
        with _one_thread():
            patches.mean.copy_(seen.mean(0))
    return model


def _white(images: Tensor, count: int, settings: Settings) -> tuple[Tensor, Tensor]:
    """W, and `count` patches d as d^T W."""
    generator = torch.Generator().manual_seed(settings.seed)
    found = _some_patches(images, settings.patches, generator)
    variances, directions = torch.linalg.eigh(found.T @ found / len(found))
    whitening = (variances + settings.floor * variances.mean()).rsqrt().unsqueeze(1) * directions.T
    white = found @ whitening.T
    length = white.norm(dim=1)
    white = F.normalize(white[length > length.median()], dim=1)
    if len(white) < count:
        raise ConfigError(f"{count} patches were asked for, and there are {len(white)}.")
    chosen = white[torch.randperm(len(white), generator=generator)[:count]]
    return around_zero(whitening), around_zero(chosen @ whitening)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of sums, so the last bits, depend on the number of threads."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def save(settings: Settings, folder: Path) -> None:
    """weights.safetensors, for `dpvision train --pretrained`, and card.json, which says where they come from."""
    began = time.monotonic()
    model = learn(settings)
    header = {"format": FORMAT, "process": settings.process, "seed": str(settings.seed)}
    weights = {n: t for n, t in model.state_dict().items() if not n.startswith("rest.1.")}
    data = checkpoint.dump(weights, header)
    card = {"format": FORMAT, "dpvision": __version__, **asdict(settings)}
    card["images_seen"] = settings.images + settings.images // 2
    card["seconds"] = round(time.monotonic() - began, 1)
    card["digest"] = hashlib.blake2b(data, digest_size=32).hexdigest()  # as `train --pretrained` tells it
    atomic.make_folder(folder)
    atomic.write(folder / "card.json", json.dumps(card, indent=1) + "\n", mode=0o644)
    atomic.write(folder / "weights.safetensors", data, mode=0o644)


def kept(settings: Settings, folder: Path) -> Path:
    """The weights' file in `folder`, made there the first time."""
    mine = folder / settings.name
    atomic.make_folder(folder)
    with atomic.alone(folder / f"{settings.name}.lock"):
        if not (mine / "weights.safetensors").exists():
            save(settings, mine)
    return mine / "weights.safetensors"


def drawn(settings: Settings, indices: range) -> Tensor:
    """Random images as a network sees them, of the shape that is wanted."""
    channels, height, width = settings.shape
    side = max(height, width)
    parts = [indices[i : i + AT_A_TIME] for i in range(0, len(indices), AT_A_TIME)]
    pixels = np.concatenate([draw(settings.process, part, side=side, seed=settings.seed) for part in parts])
    images = torch.from_numpy(pixels[:, :height, :width]).permute(0, 3, 1, 2) / 127.5 - 1
    return images if channels == 3 else images.mean(1, keepdim=True).expand(-1, channels, -1, -1)


def _some_patches(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, C PATCH^2), each less its mean."""
    _, _, height, width = images.shape
    which = torch.randint(len(images), (count,), generator=generator).tolist()
    down = torch.randint(height + 1 - PATCH, (count,), generator=generator).tolist()
    right = torch.randint(width + 1 - PATCH, (count,), generator=generator).tolist()
    places = zip(which, down, right, strict=True)
    found = torch.stack([images[i, :, a : a + PATCH, b : b + PATCH].flatten() for i, a, b in places])
    return around_zero(found)
