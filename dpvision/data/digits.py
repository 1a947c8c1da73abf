"""The built-in data set: scikit-learn's 8x8 digits, which are public."""

from __future__ import annotations

import numpy as np

from dpvision.data import records
from dpvision.data.classes import Classes, declared_names, match_stored
from dpvision.data.dataset import Dataset, Split
from dpvision.data.refusal import named

_TRAIN = 1_437
_BRIGHTEST = 16


def read_digits(*, classes: Classes, size: records.Size, channels: int | None) -> Dataset:
    """1,437 images to train and 360 to test, in an order that is the same for everyone."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images * 255 / _BRIGHTEST).astype(np.uint8).reshape(-1, 8, 8, 1)
    names = tuple(str(number) for number in range(10))
    with named("digits"):
        match_stored(names, declared_names(classes), numbered=isinstance(classes, int))
        records.settle_size(pixels.shape, records.declared_size(size))
        records.settle_channels(pixels.shape, channels)
    order = np.random.default_rng(0).permutation(len(pixels))
    train, test = (
        Split(images=pixels[part], labels=labels[part].astype(np.int64), persons=None)
        for part in (order[:_TRAIN], order[_TRAIN:])
    )
    return Dataset("digits", names, train, None, test, ())
