"""Forty filters of 3 x 3 pixels: edges and bars in eight directions, four spots, and all of them negated.

The bank of Baradad et al. 2021, who turn a step and a line on a finer grid, interpolate, and cut out the middle: there
these are a ramp and a tent across the direction.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

DIRECTIONS = 8  # of half a turn
SPOTS = (
    ((0, 0, 0), (0, 1, 0), (0, 0, 0)),
    ((-1 / 8, -1 / 8, -1 / 8), (-1 / 8, 1, -1 / 8), (-1 / 8, -1 / 8, -1 / 8)),
    ((0, 1, 0), (1, 1, 1), (0, 1, 0)),
    ((-1, 1, -1), (1, 1, 1), (-1, 1, -1)),
)


@cache
def bank() -> NDArray[np.float64]:
    """(40, 3, 3)."""
    angle = np.arange(DIRECTIONS)[:, None, None] * np.pi / DIRECTIONS
    y, x = np.mgrid[-1:2, -1:2]
    across = x * np.cos(angle) + y * np.sin(angle)
    edges, bars = np.clip(across, -1, 1), np.maximum(0, 1 - abs(across))
    half = np.concatenate([edges, bars - bars.mean((1, 2), keepdims=True), np.array(SPOTS)])
    return np.concatenate([half, -half])
