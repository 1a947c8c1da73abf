"""Fractals: attractors of random iterated function systems, in colour, before a texture.

Kataoka et al. 2020 learn from such images; the affine maps are drawn as by Anderson and Farrell 2022, through their
singular values, whose weighted sum they bound so that the attractor is neither dust nor a blot, and as with them there
may be several in an image. Different are: the singular values meet the sum by a common power, in place of one after
the other, so that no map is special; a population of points is iterated in place of one; colours tell which maps led to
a point besides how many points there are; and the background is 1/f noise in colours in place of midpoint displacement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import ImageRandom, between, scale, whole
from dpvision.public.random.tables import LATTICE, coloured, looked_up, noise_table, palette

Floats = NDArray[np.floating]
Doubles = NDArray[np.float64]

MAPS = (2, 7)
FRACTALS = (1, 3)  # in an image
POINTS = 8  # a pixel of the square around a fractal
SETTLE, KEPT = 12, 16  # generations until points are on the attractor, and those that are drawn
NEWTON = 16  # steps to a root of a convex function, from the left
LEAST = 0.02  # of the area, for a map that leaves hardly any
FEWEST = 256  # points of a generation
FULL = 0.4  # of the usual count of a pixel of a fractal hides most of what is behind


def fractals(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Some fractals before a texture."""
    out = np.empty((len(draws), side, side, 3), np.float32)
    for image, each in zip(out, draws, strict=True):
        image[...] = _image(each, side)
    return out


def _image(draws: ImageRandom, side: int) -> Floats:
    rng = draws.own()
    image = _background(rng, side)
    for number in range(whole(rng, *FRACTALS)):
        rng = draws.own(f"fractal {number}")
        maps, size, table = system(rng), between(rng, 0.5, 1.2), palette(rng)
        corner = (1 - size) * rng.random(2, np.float32)
        rounds, dense = between(rng, 0.5, 2), between(rng, 0, 0.4)
        x, y, hue = attractor(rng, maps, int(POINTS * (size * side) ** 2))
        count, mean = _counted(_fitted(x, corner[0], size), _fitted(y, corner[1], size), hue, side)
        usual = max(count.sum(), 1) / max(np.count_nonzero(count), 1)
        cover = 1 - np.exp(-count / (FULL * usual))
        image += cover * (coloured(table, rounds * mean + dense * np.log1p(count)) - image)
    return image.T.reshape(side, side, 3)


def system(rng: Generator) -> Doubles:
    """(N, 2, 3) maps of the plane: a turn, a shrinking along two axes, perhaps a reflection, a turn, and a shift."""
    many = whole(rng, *MAPS)
    s = singular_values(rng.random((many, 2)), (5 + many + rng.random()) / 2)
    first, last = _turns(rng.random(many)), _turns(rng.random(many))
    s[:, 1] *= np.where(rng.random(many) < 0.5, -1, 1)
    return np.concatenate([(first * s[:, None]) @ last, 2 * rng.random((many, 2, 1)) - 1], 2)


def singular_values(chances: Doubles, alpha: float) -> Doubles:
    """The power of these numbers, the larger of each pair first, for which sum(s1 + 2 s2) = alpha."""
    logs, weights, power = np.log(-np.sort(-chances, 1)), np.array([1.0, 2.0]), 0.0
    for _ in range(NEWTON):
        terms = weights * np.exp(power * logs)
        power -= (terms.sum() - alpha) / (terms * logs).sum()
    return np.exp(power * logs)


def attractor(rng: Generator, maps: Doubles, points: int) -> tuple[Floats, Floats, Floats]:
    """x, y and hue of so many points.

    In every generation each map sends its share of the points, by area, to where points picked from the last
    generation go. The hue is that of the map, mixed half and half with the hue the point had.
    """
    many = max(FEWEST, points // KEPT)
    area = np.maximum(np.abs(np.linalg.det(maps[:, :, :2])), LEAST)
    which = np.searchsorted(np.cumsum(area) / area.sum(), (np.arange(many) + 0.5) / many)
    (a, b, e), (c, d, f) = maps.astype(np.float32)[which].transpose(1, 2, 0).copy()
    tint = (rng.random(len(maps), np.float32) - 0.5)[which]
    x, y, hue = np.zeros((3, many), np.float32)
    out = np.empty((3, KEPT, many), np.float32)
    for parent, generation in zip(rng.integers(many, size=(SETTLE + KEPT, many)), range(-SETTLE, KEPT), strict=True):
        x, y, hue = x.take(parent), y.take(parent), hue.take(parent)
        x, y, hue = a * x + b * y + e, c * x + d * y + f, tint + hue / 2
        if generation >= 0:
            out[:, generation] = x, y, hue
    x, y, hue = out.reshape(3, -1)
    return x, y, hue


def _turns(parts: Doubles) -> Doubles:
    """(N, 2, 2) rotations."""
    angle = 2 * np.pi * parts
    return np.stack([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]).transpose(2, 0, 1)


def _fitted(x: Floats, start: float, size: float) -> Floats:
    low, high = x.min(), x.max()
    return (x - low) * (size / max(high - low, 1e-6)) + start


def _counted(x: Floats, y: Floats, hue: Floats, side: int) -> tuple[Floats, Floats]:
    """Points in each pixel of the unit square and their mean hue."""
    column, row = np.floor(side * x).astype(np.intp), np.floor(side * y).astype(np.intp)
    seen = (np.minimum(column, row) >= 0) & (np.maximum(column, row) < side)
    at = (row * side + column)[seen]
    count = np.bincount(at, minlength=side * side).astype(np.float32)
    hues = np.bincount(at, hue[seen], side * side).astype(np.float32)
    return count, hues / np.maximum(count, 1)


def _background(rng: Generator, side: int) -> Floats:
    """(3, side^2): clouds of a few colours, plain to rich."""
    x, y = np.meshgrid(*[np.arange(side, dtype=np.float32) / side * scale(rng, 1.5, LATTICE / 2)] * 2)
    clouds = looked_up(noise_table(rng, between(rng, 0.8, 2)), x.ravel(), y.ravel())
    return coloured(palette(rng), between(rng, 0, 0.7) * clouds)
