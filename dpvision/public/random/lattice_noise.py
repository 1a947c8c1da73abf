"""Smooth noise that can be looked up anywhere in the plane: a cyclic table and what lies between its points."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.floating]

LATTICE = 32  # points a side; a power of two


def noise_table(toss: Generator, slope: float) -> Floats:
    """Gaussian noise whose amplitude falls with this power of the frequency: mean 0, standard deviation 1/2; flat."""
    white = toss.standard_normal((LATTICE, LATTICE // 2 + 1, 2), np.float32).view(np.complex64)[..., 0]
    noise = np.fft.irfft2(white * _frequency() ** -slope, (LATTICE, LATTICE)).ravel()
    return noise * (LATTICE / 2) / np.linalg.norm(noise)


def looked_up(table: Floats, x: Floats, y: Floats) -> Floats:
    """Its points are one unit apart; between them it is smooth."""
    left, top = np.floor(x), np.floor(y)
    u, v = x - left, y - top
    u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
    column, row = left.astype(np.int32), top.astype(np.int32)
    i, next_i = column & LATTICE - 1, column + 1 & LATTICE - 1
    j, next_j = (row & LATTICE - 1) * LATTICE, (row + 1 & LATTICE - 1) * LATTICE
    upper, lower = table.take(j + i), table.take(next_j + i)
    upper = upper + u * (table.take(j + next_i) - upper)
    lower = lower + u * (table.take(next_j + next_i) - lower)
    return upper + v * (lower - upper)


@cache
def _frequency() -> Floats:
    """In cycles a table; infinite in place of 0, so that the mean vanishes."""
    f = np.hypot(np.fft.fftfreq(LATTICE)[:, None], np.fft.rfftfreq(LATTICE)).astype(np.float32) * LATTICE
    f[0, 0] = np.inf
    return f
