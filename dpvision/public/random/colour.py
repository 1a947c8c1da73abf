"""Colour: an area divided among 3 to 22 random colours by random shares, blurred (Baradad et al. 2021).

Other processes take its colours along their principal axes, for which it hardly matters where a colour is. Rectangles
make it an image of its own; where the original puts the colours, and how wide it blurs, we do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from dpvision.public.random.coins import Coins

Floats = NDArray[np.float64]

FEWEST, MOST = 3, 22


def colours(coins: Sequence[Coins], side: int) -> Floats:
    """Rectangles in a random palette, blurred."""
    return np.reshape([image(each.own(), side) for each in coins], (len(coins), side, side, 3))


def image(toss: Generator, side: int) -> Floats:
    """(side, side, 3)."""
    count = toss.integers(FEWEST, MOST + 1)
    out = np.empty((side, side, 3))
    _divide(out, toss.random((count, 3)), toss.random(count))
    return uniform_filter(out, 1 + 2 * max(1, side // 32), axes=(0, 1), mode="nearest")


class Palette(NamedTuple):
    """The colours of an image along their principal axes."""

    mean: Floats  # (3,)
    axes: Floats  # (3, 3): an axis a row
    ascending: Floats  # (3, pixels): what pixels have along each axis


def palette(image: Floats) -> Palette:
    pixels = image.reshape(-1, 3)
    mean = pixels.mean(0)
    pixels = pixels - mean
    axes = np.linalg.eigh(np.einsum("pi,pj->ij", pixels, pixels))[1].T
    axes *= np.sign(axes.sum(1, keepdims=True))  # or else up to the linear algebra library
    return Palette(mean, axes, np.sort(np.einsum("ai,pi->ap", axes, pixels)))


def _divide(area: Floats, colours: Floats, shares: Floats) -> None:
    """Half of the colours to each side of a cut through the longer side, down to one colour a rectangle."""
    if len(colours) == 1:
        area[...] = colours
        return
    half = len(colours) // 2
    longer = area if area.shape[0] >= area.shape[1] else area.swapaxes(0, 1)
    cut = round(len(longer) * shares[:half].sum() / shares.sum())
    _divide(longer[:cut], colours[:half], shares[:half])
    _divide(longer[cut:], colours[half:], shares[half:])
