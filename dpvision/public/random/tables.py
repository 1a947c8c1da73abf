"""Cyclic tables that can be looked up anywhere: smooth noise in the plane, and the colours of a number.

As they are cyclic, a place or a number may go round and round without a seam.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import between, heads, whole

Floats = NDArray[np.floating]

LATTICE = 32  # points a side of a table of noise; a power of two
SHADES = 256  # of a table of colours
GREY = np.array([0.3, 0.6, 0.1], np.float32)  # what the eye makes of red, green and blue


def noise_table(rng: Generator, slope: float) -> Floats:
    """Gaussian noise whose amplitude falls with this power of the frequency: mean 0, standard deviation 1/2; flat."""
    white = rng.standard_normal((LATTICE, LATTICE // 2 + 1, 2), np.float32).view(np.complex64)[..., 0]
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


def palette(rng: Generator) -> Floats:
    """(3, SHADES) colours: cosines, or a list of colours with or without what lies between them."""
    t = np.arange(SHADES, dtype=np.float32) / SHADES
    table = _cosines(rng, t) if heads(rng) else _listed(rng, t)
    grey = GREY @ table
    return np.clip(grey + between(rng, 0.3, 1.2) * (table - grey), 0, 1)


def coloured(table: Floats, t: Floats) -> Floats:
    """(3, N) colours of numbers; one round of the table is 2 long, as from -1 to 1."""
    return table.take((t * (SHADES / 2)).astype(np.int32) & SHADES - 1, 1)


@cache
def _frequency() -> Floats:
    """In cycles a table; infinite in place of 0, so that the mean vanishes."""
    f = np.hypot(np.fft.fftfreq(LATTICE)[:, None], np.fft.rfftfreq(LATTICE)).astype(np.float32) * LATTICE
    f[0, 0] = np.inf
    return f


def _cosines(rng: Generator, t: Floats) -> Floats:
    """a + b cos(2 pi (c t + d)) in each channel, c a whole number."""
    a, b, c, d = rng.random((4, 3, 1), np.float32)
    return 0.25 + 0.5 * a + (0.15 + 0.4 * b) * np.cos(2 * np.pi * ((1 + np.rint(c)) * t + d))


def _listed(rng: Generator, t: Floats) -> Floats:
    """Colours at random places of the circle; in between a mixture, or the last one."""
    many = whole(rng, 2, 6)
    places, colours = np.sort(rng.random(many, np.float32)), rng.random((3, many), np.float32)
    if heads(rng, 0.4):
        return colours[:, np.searchsorted(places, t) - 1]
    return np.stack([np.interp(t, places, channel, period=1) for channel in colours]).astype(np.float32)
