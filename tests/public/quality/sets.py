"""The built-in digits as labelled images."""

from __future__ import annotations

import numpy as np

from dpvision.data import load
from dpvision.public.quality.classifier import LabelledImages

CLASSES = tuple("0123456789")


def digits() -> tuple[LabelledImages, LabelledImages]:
    """1,437 training and 360 test images."""
    data = load("digits")
    assert data.test is not None
    return LabelledImages("digits", data.train.images, data.train.labels), LabelledImages(
        "test digits", data.test.images, data.test.labels
    )


def part(pictures: LabelledImages, rows: slice) -> LabelledImages:
    return LabelledImages(pictures.name, pictures.images[rows], pictures.labels[rows])


def noise(like: LabelledImages, seed: int = 0) -> LabelledImages:
    images = np.random.default_rng(seed).integers(0, 256, like.images.shape, dtype=np.uint8)
    return LabelledImages("noise", images, like.labels)
