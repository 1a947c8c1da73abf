"""How long a training would take on this machine, from random images: no private one is touched."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvision.data import Split
from dpvision.models.inputs import Inputs
from dpvision.private.engine import ClippedSum, Public
from dpvision.private.features import cache
from dpvision.private.training.prepare import Prepared
from dpvision.private.training.units import fetcher
from dpvision.settings.training import WAYS


def seconds(prepared: Prepared, *, ranks: int = 1) -> float:
    """Of the features that are not there yet, and of all steps; looking at the test split comes on top."""
    sampler = prepared.sampler
    images = sampler.rate * sampler.steps * len(prepared.data.train)
    return _seconds_of_features(prepared) / ranks + images / ranks / images_per_second(prepared)


def _seconds_of_features(prepared: Prepared) -> float:
    parts = prepared.split(prepared.model())
    if parts is None:
        return 0.0
    splits = [s for s in (prepared.data.train, prepared.data.test) if s is not None]
    missing = sum(cache.count_missing(prepared.named(s, parts), len(s)) for s in splits)
    if not missing:
        return 0.0
    images = torch.rand(min(missing, cache.AT_A_TIME), *prepared.shape) * 2 - 1
    parts.features(images[:1])  # the first call sets things up
    began = time.perf_counter()
    parts.features(images)
    return (time.perf_counter() - began) / len(images) * missing


def images_per_second(prepared: Prepared, *, seconds: float = 3.0) -> float:
    """Private images with all their views; public gradients, few beside these, are not counted."""
    model, views, config = prepared.model(), prepared.views(), prepared.config
    (learner, loss), parts = prepared.learner(model), prepared.split(model)
    shape = cache.shape_of(parts, prepared.shape) if parts else prepared.shape
    clipped_sum = ClippedSum(learner, loss, clip=1.0, physical=config.physical, one_view=config.one_view)
    least = max(1, min(prepared.sampler.batch, 64 // config.views or 1))
    moved = config.views if WAYS[config.assist].each_view else 0
    public = Public(perturbations=[torch.zeros(clipped_sum.size)] * moved)
    count, rate = least, 0.0
    while True:
        images, labels = torch.rand(count, *shape) * 2 - 1, np.zeros(count, dtype=np.int64)
        split = Split(np.zeros((count, 1, 1, 1), dtype=np.uint8), labels, None)
        fetch = fetcher(split, "image", _Ready(split, images), views)
        clipped_sum.sum([fetch(np.arange(count), 0)], public)  # the first call sets things up
        began = time.perf_counter()
        clipped_sum.sum([fetch(np.arange(count), 0)], public)
        rate = count / (time.perf_counter() - began)
        most = max(1, min(prepared.sampler.batch, clipped_sum.units_at_a_time // config.views))
        wanted = max(1, min(most, int(rate * seconds / 2)))
        if wanted <= 2 * count:
            return rate
        count = wanted


class _Ready(Inputs):
    """Inputs that are there already."""

    def __init__(self, split: Split, images: Tensor) -> None:
        super().__init__(split)
        self._ready = images

    def __call__(self, rows: Any) -> Tensor:
        return self._ready[rows]
