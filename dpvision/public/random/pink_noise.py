"""Noise whose amplitude falls with a power of the frequency, and blotches where it is loud."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LOBES = 3  # of the Lanczos kernel
GRID = 4  # blotches a side


def pink(toss: Generator, side: int, exponent: float) -> Floats:
    """Gaussian noise with amplitudes |f|^-exponent and mean zero (side, side)."""
    spectrum = toss.standard_normal((2, side, side // 2 + 1))
    return np.fft.irfft2((spectrum[0] + 1j * spectrum[1]) * _frequencies(side) ** -exponent, (side, side))


def blotches(toss: Generator, side: int) -> Floats:
    """A grid of 4 x 4 Laplace numbers, made smooth: near zero in most places, large in few (side, side)."""
    enlarge = _lanczos(side)
    return enlarge @ toss.laplace(size=(GRID, GRID)) @ enlarge.T


@cache
def _frequencies(side: int) -> Floats:
    frequencies = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) * side
    frequencies[0, 0] = np.inf
    return frequencies


@cache
def _lanczos(side: int) -> Floats:
    """From GRID to `side` points (side, GRID)."""
    places = (np.arange(side) + 0.5) * GRID / side - 0.5
    away = places[:, None] - np.arange(GRID)
    weights = np.where(abs(away) < LOBES, np.sinc(away) * np.sinc(away / LOBES), 0.0)
    return weights / weights.sum(1, keepdims=True)
