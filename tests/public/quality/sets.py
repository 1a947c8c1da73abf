"""The built-in digits as pictures."""

from __future__ import annotations

import numpy as np

from dpvision.data import load
from dpvision.public.quality.pictures import Pictures

CLASSES = tuple("0123456789")


def digits() -> tuple[Pictures, Pictures]:
    """1,437 to train with, and 360 others."""
    data = load("digits")
    assert data.test is not None
    return Pictures("digits", data.train.images, data.train.labels), Pictures(
        "test digits", data.test.images, data.test.labels
    )


def part(pictures: Pictures, rows: slice) -> Pictures:
    assert pictures.labels is not None
    return Pictures(pictures.name, pictures.images[rows], pictures.labels[rows])


def noise(like: Pictures, seed: int = 0) -> Pictures:
    images = np.random.default_rng(seed).integers(0, 256, like.images.shape, dtype=np.uint8)
    return Pictures("noise", images, like.labels)
