"""Colours of a number: cyclic tables, so that a number may go round and round without a seam."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.draws import between, heads, whole

Floats = NDArray[np.floating]

SHADES = 256
GREY = np.array([0.3, 0.6, 0.1], np.float32)  # what the eye makes of red, green and blue


def palette(toss: Generator) -> Floats:
    """(3, SHADES) colours: cosines, or a list of colours with or without what lies between them."""
    t = np.arange(SHADES, dtype=np.float32) / SHADES
    table = _cosines(toss, t) if heads(toss) else _listed(toss, t)
    grey = GREY @ table
    return np.clip(grey + between(toss, 0.3, 1.2) * (table - grey), 0, 1)


def coloured(table: Floats, t: Floats) -> Floats:
    """(3, N) colours of numbers; one round of the table is 2 long, as from -1 to 1."""
    return table.take((t * (SHADES / 2)).astype(np.int32) & SHADES - 1, 1)


def _cosines(toss: Generator, t: Floats) -> Floats:
    """a + b cos(2 pi (c t + d)) in each channel, c a whole number."""
    a, b, c, d = toss.random((4, 3, 1), np.float32)
    return 0.25 + 0.5 * a + (0.15 + 0.4 * b) * np.cos(2 * np.pi * ((1 + np.rint(c)) * t + d))


def _listed(toss: Generator, t: Floats) -> Floats:
    """Colours at random places of the circle; in between a mixture, or the last one."""
    many = whole(toss, 2, 6)
    places, colours = np.sort(toss.random(many, np.float32)), toss.random((3, many), np.float32)
    if heads(toss, 0.4):
        return colours[:, np.searchsorted(places, t) - 1]
    return np.stack([np.interp(t, places, channel, period=1) for channel in colours]).astype(np.float32)
