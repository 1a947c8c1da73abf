"""Dead leaves: shapes of all sizes in front of each other, until they hide everything behind them.

Radii have the density r^-3 - 1 between 0.03 and 1 side, so edges come at every scale alike, as in photographs (Lee,
Mumford and Huang 2001); the variants are those of Baradad et al. 2021. The first shape at a point is the one seen
there, and a pixel that is hidden is never looked at again: hundreds of shapes cost what fifty would.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import ImageRandom

Floats = NDArray[np.float32]

RADII = (0.03, 1.0)  # of the side
MOST = 5000  # shapes; by then hardly a pixel is left
DRAWN = 500  # shapes drawn at a time
TESTS = 1 << 16  # pixels times shapes looked at in one go
FAR = 9.0  # beyond every corner of the image: a limit that cuts nothing
KINDS = ("disc", "square", "rectangle", "triangle", "quadrangle")


def squares(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Upright squares, each of one colour."""
    return _painted(draws, side, ("square",), turned=False)


def oriented(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Turned squares, each of one colour."""
    return _painted(draws, side, ("square",), turned=True)


def mixed(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Discs, squares, rectangles, triangles and quadrangles, turned, each of one colour."""
    return _painted(draws, side, KINDS, turned=True)


def windows(draws: Sequence[ImageRandom], side: int, textures: NDArray[np.floating] | NDArray[np.uint8]) -> Floats:
    """Shapes of all kinds, each a window on a texture (M, height, width, 3); these go on cyclically."""
    out = np.empty((len(draws), side, side, 3), np.float32)
    rows, columns = np.mgrid[:side, :side]
    many, height, width, _ = textures.shape
    for image, each in zip(out, draws, strict=True):
        front = _front(each.own(), side, KINDS, turned=True)
        rng = each.own("textures")
        which, down, right = (rng.integers(most, size=MOST)[front] for most in (many, height, width))
        image[...] = textures[which, (rows + down) % height, (columns + right) % width]
    return out


def _painted(draws: Sequence[ImageRandom], side: int, kinds: tuple[str, ...], *, turned: bool) -> Floats:
    out = np.empty((len(draws), side, side, 3), np.float32)
    for image, each in zip(out, draws, strict=True):
        front = _front(each.own(), side, kinds, turned=turned)
        image[...] = each.own("colours").random((front.max() + 1, 3), np.float32)[front]
    return out


def _front(rng: Generator, side: int, kinds: tuple[str, ...], *, turned: bool) -> NDArray[np.intp]:
    """Number of the shape that is seen at each pixel (side, side)."""
    front = np.full(side * side, MOST - 1, np.intp)
    open_, pixels = np.arange(side * side), _pixels(side)
    number = 0
    while len(open_) and number < MOST:
        if number % DRAWN == 0:
            normals, limits = _shapes(rng, kinds, turned=turned)
        first = number % DRAWN
        some = slice(first, min(DRAWN, first + max(8, TESTS // len(open_))))
        inside = np.logical_and.reduce(
            [pixels @ n[:, some] < limit[some] for n, limit in zip(normals, limits, strict=True)]
        )
        hidden = inside.any(1)
        front[open_[hidden]] = number + inside[hidden].argmax(1)
        open_, pixels = open_[~hidden], pixels[~hidden]
        number += some.stop - some.start
    return front.reshape(side, side)


@cache
def _pixels(side: int) -> Floats:
    """(side^2, 3): x, y and x^2 + y^2, so that half-planes and discs are both linear."""
    x, y = np.meshgrid(*[(np.arange(side, dtype=np.float32) + 0.5) / side] * 2)
    return np.stack([x.ravel(), y.ravel(), (x * x + y * y).ravel()], 1)


def _shapes(rng: Generator, kinds: tuple[str, ...], *, turned: bool) -> tuple[Floats, Floats]:
    """Shapes as what holds inside of them: pixel @ normals[k] < limits[k] for all k; (5, 3, DRAWN) and (5, DRAWN).

    The first four are half-planes, of which a triangle has three and a disc none; the fifth is a disc.
    """
    radius = _radii()[np.searchsorted(_shares(), rng.random(DRAWN))]
    x, y, turn = rng.random((3, DRAWN))
    kind = rng.integers(len(kinds), size=DRAWN)
    long, *apart = rng.random((5, DRAWN))
    is_ = {name: kind == number for number, name in enumerate(kinds)}
    none = np.zeros(DRAWN, bool)
    disc, triangle, rectangle = (is_.get(name, none) for name in ("disc", "triangle", "rectangle"))
    bent = np.where(is_.get("quadrangle", none), np.stack(apart) - 0.5, 0.0)
    angle = (turn if turned else 0.0) * 2 * np.pi + (np.arange(4)[:, None] + 0.6 * bent) * np.pi / np.where(
        triangle, 1.5, 2
    )
    reach = np.repeat(np.where(triangle, radius / 2, radius)[None], 4, 0)
    reach[1::2] *= np.where(rectangle, 0.2 + 0.8 * long, 1.0)
    reach[3, triangle], reach[:, disc] = FAR, FAR
    normals = np.zeros((5, 3, DRAWN))
    normals[:4, 0], normals[:4, 1] = np.cos(angle), np.sin(angle)
    normals[4] = -2 * x, -2 * y, np.ones(DRAWN)
    limits = np.append(normals[:4, 0] * x + normals[:4, 1] * y + reach, (radius**2 - x * x - y * y)[None], 0)
    limits[4, ~disc] = FAR
    tests = slice(None) if "disc" in kinds else slice(4)
    return normals[tests].astype(np.float32), limits[tests].astype(np.float32)


@cache
def _radii() -> NDArray[np.float64]:
    return np.linspace(*RADII, 200)


@cache
def _shares() -> NDArray[np.float64]:
    """Of the shapes that have at most each radius."""
    density = _radii() ** -3 - 1
    return np.cumsum(density) / density.sum()
