"""Rows as a release has them: mixtures of digits with noise, made by numpy."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

CLASSES = 10


class Release(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    noise_x: float
    noise_y: float
    degree: float


@cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of length 1 and classes, to mix; and others, to classify."""
    images, labels = load_digits(return_X_y=True)
    x = (images / np.linalg.norm(images, axis=1, keepdims=True)).astype(np.float32)
    return x[:1400], labels[:1400], x[1400:], labels[1400:]


@cache
def mixtures(*, rows: int = 6000, degree: float = 16, sigma: float = 0.7, seed: int = 0) -> Release:
    """x~ and y~ of Poisson mixtures of digits; sigma is the noise in sums of rows of length 1."""
    x, labels, *_ = digits()
    rng = np.random.default_rng(seed)
    drawn = (rng.random((rows, len(x)), dtype=np.float32) < degree / len(x)).astype(np.float32)
    mixed, shares = drawn @ x, drawn @ np.eye(CLASSES, dtype=np.float32)[labels]
    mixed += rng.normal(size=mixed.shape).astype(np.float32) * sigma
    shares += rng.normal(size=shares.shape).astype(np.float32) * sigma
    return Release(mixed / np.float32(degree), shares / np.float32(degree), sigma / degree, sigma / degree, degree)
