"""Pairs of views of random images, as a stream: nothing is stored, and every image is drawn when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.randimages import stream
from dpvision.views import Augment, Coins

# Baradad et al. 2021: a random part, mirrored or not, in other colours, sometimes grey.
AUGMENT = ("resized-crop", "flip", "jitter", "grayscale")


def pairs(
    process: str, *, side: int, finer: int, batch: int, images: int, steps: range, seed: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each step two views of `batch` images, each (batch, 3, side, side) in [-1, 1].

    Images are drawn `finer` times as large, so that a small part of one still has detail, and there are `images`
    different ones: every pass takes them in another order. A step depends on its number alone, so a run can go on
    anywhere.
    """
    augment = Augment(AUGMENT)
    rows = (chosen(step, batch=batch, images=images, seed=seed).tolist() for step in steps)
    drawn = stream(process, rows, side=side * finer, seed=seed, workers=workers)
    for step, pixels in zip(steps, drawn, strict=True):
        whole = torch.from_numpy(pixels).permute(0, 3, 1, 2).unsqueeze(1) / 127.5 - 1
        views = augment(whole, Coins(_seed(seed, step), np.arange(batch)), 2)
        small = F.avg_pool2d(views.flatten(0, 1), finer).unflatten(0, (-1, 2))
        yield small[:, 0], small[:, 1]


def chosen(step: int, *, batch: int, images: int, seed: int) -> np.ndarray:
    """Which images a step sees: pass by pass, each in a random order of its own, the last incomplete batch left out."""
    per_pass = images // batch
    start = step % per_pass * batch
    return _order(seed, step // per_pass, images)[start : start + batch]


@lru_cache(maxsize=2)
def _order(seed: int, number: int, images: int) -> np.ndarray:
    return np.random.default_rng((seed, number)).permutation(images)


def _seed(seed: int, step: int) -> int:
    return (seed << 40) + step
