"""Public images as batches of views: a function of (seed, step), so that a training can go on anywhere.

Augmentations are those of private training, with each image's own coins. Beside them stands cutmix across images, which
private training cannot have: it would put one image into the gradients of others. Here all images are public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.views import Augment, UnitRandom
from dpvision.views.eight_bit import to_floats
from dpvision.views.views import cutmix

CUTMIX = "cutmix"
# Yun et al. 2019, for CIFAR: every second image is mixed, with a share uniform on [0, 1].
MIXED, ALPHA = 0.5, 1.0


@dataclass(frozen=True, eq=False)
class Source:
    """Images that everybody may look at."""

    name: str
    images: NDArray[Any]  # (N, H, W, C): uint8, or float32 in [0, 1]
    labels: NDArray[np.int64]
    digest: str  # names images and labels in their order
    persons: NDArray[np.int64] | None = None
    learned_from: str = ""  # a note (provenance.py) of the images that these are, or were made of


class Images:
    """The images of some sources, one after the other."""

    def __init__(self, sources: Sequence[Source], *, classes: int) -> None:
        require_alike(sources, classes)
        pixels = [torch.from_numpy(np.require(s.images, requirements=("C", "W"))) for s in sources]
        if any(p.dtype != torch.uint8 for p in pixels):
            pixels = [p / 255.0 if p.dtype == torch.uint8 else p for p in pixels]
        self._pixels = torch.cat(pixels).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(np.concatenate([s.labels for s in sources]).astype(np.int64))
        self.shape: tuple[int, int, int] = tuple(self._pixels.shape[1:])  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.labels)

    def __call__(self, rows: NDArray[np.int64]) -> Tensor:
        """(len(rows), C, H, W) in [-1, 1]."""
        return to_floats(self._pixels[torch.from_numpy(rows)])


def require_augment(names: Sequence[str]) -> None:
    """Refuse unknown names, and a cutmix that is not last: it mixes what the others made."""
    Augment([name for name in names if name != CUTMIX])
    if CUTMIX in names[:-1]:
        raise ConfigError(f"augment is {', '.join(names)}: cutmix mixes what the others made. Fix: name it last.")


def per_pass(images: int, batch: int) -> int:
    """Steps of one pass over the images; the last incomplete batch is left out."""
    return max(1, images // batch)


def balanced(first: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Both, with the first ones repeated until they are about as many as the others.

    A diffusion model that saw few images draws many, but poorer ones: left alone, they would be most of every batch.
    """
    return np.concatenate([np.tile(first, times(len(first), len(others))), others])


def times(first: int, others: int) -> int:
    """How often each of the first images counts."""
    return max(1, round(others / max(1, first)))


def chosen(rows: NDArray[np.int64], step: int, *, batch: int, seed: int) -> NDArray[np.int64]:
    """Which of `rows` a step sees: pass by pass, each in a random order of its own."""
    number, place = divmod(step, per_pass(len(rows), batch))
    return rows[_order(seed, number, len(rows))[place * batch : (place + 1) * batch]]


def views(
    images: Tensor, labels: Tensor, rng: UnitRandom, *, augment: Sequence[str], classes: int
) -> tuple[Tensor, Tensor]:
    """(B, C, H, W), (B,) -> one view of each and its target: a class, or with cutmix shares of the classes."""
    names = [name for name in augment if name != CUTMIX]
    images = Augment(names)(images.unsqueeze(1), rng, 1)
    if CUTMIX not in augment:
        return images.squeeze(1), labels
    partner = rng.uniform().argsort(stable=True)
    share = torch.where(rng.uniform(1) < MIXED, rng.beta(ALPHA, 1), 1.0)
    images, left = cutmix(images, images[partner], share, rng)
    own = F.one_hot(labels, classes).to(left.dtype)
    return images.squeeze(1), (left * own + (1 - left) * own[partner]).to(images.dtype)


def require_alike(sources: Sequence[Source], classes: int) -> None:
    """Refuse sources that do not fit together, or labels that are none of the classes."""
    first = sources[0]
    for source in sources:
        if source.images.shape[1:] != first.images.shape[1:]:
            shapes = [f"{h}x{w}x{c}" for h, w, c in (source.images.shape[1:], first.images.shape[1:])]
            raise DataError(f"{source.name}: its images are {shapes[0]}; those of {first.name} are {shapes[1]}.")
        if len(source.labels) and not 0 <= source.labels.min() <= source.labels.max() < classes:
            raise DataError(f"{source.name}: has labels outside of the {classes} classes 0 to {classes - 1}.")


@lru_cache(maxsize=2)
def _order(seed: int, number: int, images: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, number)).permutation(images)
