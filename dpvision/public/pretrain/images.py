"""Pairs of views of random images, as a stream: no data set is stored, and every image is drawn when it is needed.

Where all images fit into KEEP bytes of memory, each is drawn once and kept for later passes; it is the same image.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dpvision.public.random import stream
from dpvision.views import Augment, Coins

# Baradad et al. 2021: a random part, mirrored or not, in other colours, sometimes grey.
PART, CHANGED = ("resized-crop",), ("flip", "jitter", "grayscale")
AUGMENT = PART + CHANGED
KEEP = 3 << 29


def pairs(
    process: str, *, side: int, finer: int, batch: int, images: int, steps: range, seed: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each step two views of `batch` images, each (batch, 3, side, side) in [-1, 1].

    Images are drawn `finer` times as large, so that a small part of one still has detail, and there are `images`
    different ones: every pass takes them in another order. A step depends on its number alone, so a run can go on
    anywhere.
    """
    part, changed = Augment(PART), Augment(CHANGED)
    drawn = _drawn(process, side=side * finer, batch=batch, images=images, steps=steps, seed=seed, workers=workers)
    for step, pixels in zip(steps, drawn, strict=True):
        whole = torch.from_numpy(pixels).permute(0, 3, 1, 2).unsqueeze(1) / 127.5 - 1
        coins = Coins(_seed(seed, step), np.arange(batch))
        small = F.avg_pool2d(part(whole, coins, 2).flatten(0, 1), finer).unflatten(0, (-1, 2))
        views = changed(small, coins, 2)
        yield views[:, 0], views[:, 1]


def _drawn(
    process: str, *, side: int, batch: int, images: int, steps: range, seed: int, workers: int
) -> Iterator[NDArray[np.uint8]]:
    """The images of each step, in the step's order."""
    wanted = (chosen(step, batch=batch, images=images, seed=seed) for step in steps)
    shape = (images, side, side, 3)
    if math.prod(shape) > KEEP:
        yield from stream(process, (rows.tolist() for rows in wanted), side=side, seed=seed, workers=workers)
        return
    kept, asked = np.empty(shape, dtype=np.uint8), np.zeros(images, dtype=np.bool_)
    waiting: deque[tuple[NDArray[np.int64], NDArray[np.int64]]] = deque()

    def missing() -> Iterator[list[int]]:
        for rows in wanted:
            new = rows[~asked[rows]]
            asked[new] = True
            waiting.append((rows, new))
            yield new.tolist()

    for pixels in stream(process, missing(), side=side, seed=seed, workers=workers):
        rows, new = waiting.popleft()
        kept[new] = pixels
        yield kept[rows]


def chosen(step: int, *, batch: int, images: int, seed: int) -> NDArray[np.int64]:
    """Which images a step sees: pass by pass, each in a random order of its own, the last incomplete batch left out."""
    per_pass = images // batch
    start = step % per_pass * batch
    return _order(seed, step // per_pass, images)[start : start + batch]


@lru_cache(maxsize=2)
def _order(seed: int, number: int, images: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, number)).permutation(images)


def _seed(seed: int, step: int) -> int:
    return (seed << 40) + step
