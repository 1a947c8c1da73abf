"""Small fits: digits, a linear model, few steps that every image is in, so that the account is exact and quick."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from dpvision.estimators import PrivateImageClassifier, PrivateRelease

FULL = {"full_batch": True}


@cache
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    loaded = load_digits()
    return (loaded.images * 15.9).astype(np.uint8), loaded.target


def classifier(**given: Any) -> PrivateImageClassifier:
    return PrivateImageClassifier(
        **{"model": "linear", "steps": 12, "settings": FULL, "classes": 10, "n": 1200, **given}
    )


def release(**given: Any) -> PrivateRelease:
    return PrivateRelease(**{"encoder": "pixels", "rank": 0, "rows": 500, "classes": 10, "n": 1200, **given})
