"""Batches of augmented public images: a function of (seed, step), so that training can resume at any step.

The augmentations are those of private training, with separate random numbers for each image. In addition there is
cutmix across images, which private training cannot use: one image would contribute to the gradients of others.
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
# As Yun et al. 2019 do for CIFAR: an image is mixed with probability 1/2, and the mixing ratio is uniform on [0, 1].
MIXED, ALPHA = 0.5, 1.0


@dataclass(frozen=True, eq=False)
class Source:
    """A set of public, labelled images."""

    name: str
    images: NDArray[Any]  # (N, H, W, C): uint8, or float32 in [0, 1]
    labels: NDArray[np.int64]
    digest: str  # of the images and labels in order
    persons: NDArray[np.int64] | None = None
    provenance: str = ""  # record (provenance.py) of these images and of the images they were made from


class Images:
    """The concatenated images of several sources."""

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
        """Return the images of these rows as (len(rows), C, H, W) in [-1, 1]."""
        return to_floats(self._pixels[torch.from_numpy(rows)])


def require_augment(names: Sequence[str]) -> None:
    """Require known names. Cutmix must be last, because it mixes the results of the others."""
    Augment([name for name in names if name != CUTMIX])
    if CUTMIX in names[:-1]:
        raise ConfigError(f"augment is {', '.join(names)}: cutmix mixes the results of the others. Fix: put it last.")


def steps_per_pass(images: int, batch: int) -> int:
    """Return the number of steps per pass over the images; an incomplete last batch is dropped."""
    return max(1, images // batch)


def balance(first: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate both, repeating `first` until it has about the same number of rows as `others`.

    Otherwise the many, poorer samples of a diffusion model would dominate every batch over the few images it was
    fitted to.
    """
    return np.concatenate([np.tile(first, repeats(len(first), len(others))), others])


def repeats(first: int, others: int) -> int:
    """Return how many times `balance` repeats the first rows."""
    return max(1, round(others / max(1, first)))


def choose_batch(rows: NDArray[np.int64], step: int, *, batch: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of a step's batch. Every pass visits all rows in a new random order."""
    number, position = divmod(step, steps_per_pass(len(rows), batch))
    return rows[_order(seed, number, len(rows))[position * batch : (position + 1) * batch]]


def draw_views(
    images: Tensor, labels: Tensor, rng: UnitRandom, *, augment: Sequence[str], classes: int
) -> tuple[Tensor, Tensor]:
    """Draw one view of each image (B, C, H, W) and its target: a class or, with cutmix, class proportions."""
    names = [name for name in augment if name != CUTMIX]
    images = Augment(names)(images.unsqueeze(1), rng, 1)
    if CUTMIX not in augment:
        return images.squeeze(1), labels
    partner = rng.uniform().argsort(stable=True)
    share = torch.where(rng.uniform(1) < MIXED, rng.beta(ALPHA, 1), 1.0)
    images, weight = cutmix(images, images[partner], share, rng)
    targets = F.one_hot(labels, classes).to(weight.dtype)
    return images.squeeze(1), (weight * targets + (1 - weight) * targets[partner]).to(images.dtype)


def require_alike(sources: Sequence[Source], classes: int) -> None:
    """Require images of the same shape and labels that are valid class indices."""
    first = sources[0]
    for source in sources:
        if source.images.shape[1:] != first.images.shape[1:]:
            shapes = [f"{h}x{w}x{c}" for h, w, c in (source.images.shape[1:], first.images.shape[1:])]
            raise DataError(f"{source.name}: its images are {shapes[0]}; those of {first.name} are {shapes[1]}.")
        if len(source.labels) and not 0 <= source.labels.min() <= source.labels.max() < classes:
            raise DataError(f"{source.name}: has labels that are not from 0 to {classes - 1}.")


@lru_cache(maxsize=2)
def _order(seed: int, number: int, images: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, number)).permutation(images)
