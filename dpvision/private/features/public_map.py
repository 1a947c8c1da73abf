"""The public map before a release: rows are whitened by what the encoder makes of random images, which no camera took.

What is released has as much noise in every direction. So directions should count alike, and those that hardly differ
between images should not be there: covariances of dead leaves say which. The map is a function of its settings and the
encoder; private rows only pass through it (whitening.py). It is made once and kept; it is part of the release,
as others need it for features of their own images.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import numpy as np
import torch

from dpvision.core import files
from dpvision.errors import DataError
from dpvision.private.features import cache
from dpvision.private.features.encoders import Encoder
from dpvision.private.statistics import Whitening
from dpvision.public import dictionary
from dpvision.storage import safetensors
from dpvision.storage.home import home

FORMAT = "dpvision-map-1"  # to be raised with every change of what is drawn or computed
PROCESS, IMAGES, SEED, RIDGE = "dead-leaves-mixed", 4000, 1, 0.1
Progress = Callable[[int, int], None]


def whitening(encoder: Encoder, *, rank: int, progress: Progress = lambda *_: None) -> Whitening:
    """By features of random images of the encoder's shape; `rank` directions, or as many as there are."""
    rank = min(rank, encoder.width)
    said = {
        "format": FORMAT,
        "encoder": f"{encoder.name} {encoder.shape} {cache.digest(encoder)} {cache.made_by()}",
        "random_images": f"{PROCESS} {IMAGES} {SEED} {RIDGE} {rank}",
    }
    name = hashlib.blake2b(json.dumps(said).encode(), digest_size=12).hexdigest()
    folder = home() / "priors"
    path = folder / f"map-{name}.safetensors"
    files.make_folder(folder)
    with files.locked(folder / f"map-{name}.lock"):
        if not path.exists():
            made = Whitening.of(_features(encoder, progress), ridge=RIDGE, rank=rank)
            tensors = {"mean": made.mean, "matrix": made.matrix}
            files.write(path, safetensors.dump({k: torch.from_numpy(v.copy()) for k, v in tensors.items()}, said))
    like = {
        "mean": torch.empty(encoder.width, dtype=torch.float64, device="meta"),
        "matrix": torch.empty(encoder.width, rank, dtype=torch.float64, device="meta"),
    }
    try:
        found, header = safetensors.load(path, like)
    except DataError as exc:
        raise DataError(f"{exc} Fix: remove the file: it is of random images, and is made again.") from exc
    if any(header.get(key) != value for key, value in said.items()):
        raise DataError(f"{path}: is not the map of random images that it is named for. Fix: remove the file.")
    return Whitening(found["matrix"].numpy(), found["mean"].numpy(), RIDGE)


def _features(encoder: Encoder, progress: Progress) -> np.ndarray:
    settings = dictionary.DictionarySettings(encoder.name, encoder.shape, process=PROCESS, images=IMAGES, seed=SEED)
    out = np.empty((IMAGES, encoder.width), dtype=np.float32)
    for part, images in dictionary.draw_images(settings, range(IMAGES)):
        with torch.no_grad():
            out[part.start : part.stop] = encoder.features(images).float().numpy()
        progress(part.stop, IMAGES)
    return out
