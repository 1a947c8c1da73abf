"""The built-in digits as pictures."""

from __future__ import annotations

import numpy as np

from dpvision.data import load
from dpvision.public.quality.classifier import LabelledImages

CLASSES = tuple("0123456789")


def digits() -> tuple[LabelledImages, LabelledImages]:
    """1,437 to train with, and 360 others."""
    data = load("digits")
    assert data.test is not None
    return LabelledImages("digits", data.train.images, data.train.labels), LabelledImages(
        "test digits", data.test.images, data.test.labels
    )


def part(pictures: LabelledImages, rows: slice) -> LabelledImages:
    assert pictures.labels is not None
    return LabelledImages(pictures.name, pictures.images[rows], pictures.labels[rows])


def noise(like: LabelledImages, seed: int = 0) -> LabelledImages:
    images = np.random.default_rng(seed).integers(0, 256, like.images.shape, dtype=np.uint8)
    return LabelledImages("noise", images, like.labels)
