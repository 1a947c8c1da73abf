"""Two data sets that are drawn, not photographed: no rule or constant of dpvision was chosen on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]


def outlines(count: int, *, seed: int, side: int = 24) -> Labelled:
    """Grey images of the outline of an ellipse, a rectangle, a triangle or a cross, turned, moved and in noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    down, right = np.indices((side, side)) / (side - 1) * 2 - 1
    images = np.empty((count, side, side, 1), np.uint8)
    for number, label in enumerate(labels):
        angle, size, wide = rng.uniform(0, np.pi), rng.uniform(0.4, 0.7), rng.uniform(0.6, 1.0)
        y, x = down - rng.uniform(-0.25, 0.25), right - rng.uniform(-0.25, 0.25)
        u, v = (x * np.cos(angle) + y * np.sin(angle)) / size, (y * np.cos(angle) - x * np.sin(angle)) / size / wide
        distance = (
            np.hypot(u, v),
            np.maximum(abs(u), abs(v)),
            np.maximum(np.maximum(-2 * v, v + 1.7 * u), v - 1.7 * u),
            1 + np.minimum(abs(u), abs(v)) * (np.maximum(abs(u), abs(v)) < 1) + (np.maximum(abs(u), abs(v)) >= 1),
        )[label]
        line = np.exp(-(((distance - 1) / 0.18) ** 2)) * rng.uniform(90, 200)
        images[number, ..., 0] = np.clip(40 + line + rng.normal(0, 25, (side, side)), 0, 255)
    return images, labels.astype(np.int64)


def weaves(count: int, *, seed: int, side: int = 28) -> Labelled:
    """Colour images of three weaves (one direction, two, rings) in any two colours; three in four are of the first."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, count, p=(0.75, 0.15, 0.10))
    down, right = np.indices((side, side)) / side
    images = np.empty((count, side, side, 3), np.uint8)
    for number, label in enumerate(labels):
        angle, rate, phase = rng.uniform(0, np.pi), rng.uniform(4, 8), rng.uniform(0, 2 * np.pi, 2)
        along, across = right * np.cos(angle) + down * np.sin(angle), down * np.cos(angle) - right * np.sin(angle)
        middle = rng.uniform(0.3, 0.7, 2)
        wave = (
            np.sin(2 * np.pi * rate * along + phase[0]),
            np.sin(2 * np.pi * rate * along + phase[0]) * np.sin(2 * np.pi * rate * across + phase[1]) * 1.4,
            np.sin(2 * np.pi * rate * np.hypot(right - middle[0], down - middle[1]) + phase[0]),
        )[label]
        one, other = rng.uniform(40, 215, (2, 3))
        mixed = (one + other) / 2 + wave[..., None] * (one - other) / 2
        images[number] = np.clip(mixed + rng.normal(0, 20, (side, side, 3)), 0, 255)
    return images, labels.astype(np.int64)
