"""Fractals: attractors of random iterated function systems, in colour, in front of a texture.

Kataoka et al. 2020 learn from fractal images. The affine maps are drawn as in Anderson and Farrell 2022: a constraint
on the weighted sum of their singular values prevents attractors that are dust or a blot, and an image may have several
fractals. Differences from their paper:

* The singular values are raised to a common power to satisfy the constraint, instead of being drawn one after another,
  so that no map is special.
* A population of points is iterated instead of a single point.
* Colours show which maps led to a point, in addition to the number of points.
* The background is coloured 1/f noise instead of midpoint displacement.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import ImageRandom, integer, log_uniform, uniform
from dpvision.public.random.program_warps import LATTICE, draw_noise, interpolate
from dpvision.public.random.programs import draw_palette, look_up_colours

Floats = NDArray[np.floating]
Doubles = NDArray[np.float64]

MAPS = (2, 7)
FRACTALS_PER_IMAGE = (1, 3)
POINTS_PER_PIXEL = 8  # of the square around a fractal
BURN_IN, GENERATIONS = 12, 16  # generations until points reach the attractor, and generations that are drawn
NEWTON_STEPS = 16  # to a root of a convex function, from the left
MIN_AREA = 0.02  # for maps that shrink areas to almost zero
MIN_POINTS = 256  # in a generation
OPACITY = 0.4  # count, relative to the mean of covered pixels, that hides most of the background


def draw_fractals(image_rng: ImageRandom, side: int) -> Floats:
    """Draw one to three fractals in front of a texture."""
    rng = image_rng.generator()
    image = _background(rng, side)
    for number in range(integer(rng, *FRACTALS_PER_IMAGE)):
        rng = image_rng.generator(f"fractal {number}")
        maps, size, palette = draw_maps(rng), uniform(rng, 0.5, 1.2), draw_palette(rng)
        corner = (1 - size) * rng.random(2, np.float32)
        cycles, density = uniform(rng, 0.5, 2), uniform(rng, 0, 0.4)
        x, y, hue = attractor(rng, maps, int(POINTS_PER_PIXEL * (size * side) ** 2))
        count, mean_hue = _histogram(_fit(x, corner[0], size), _fit(y, corner[1], size), hue, side)
        mean_count = max(count.sum(), 1) / max(np.count_nonzero(count), 1)
        cover = 1 - np.exp(-count / (OPACITY * mean_count))
        image += cover * (look_up_colours(palette, cycles * mean_hue + density * np.log1p(count)) - image)
    return image.T.reshape(side, side, 3).astype(np.float32)


def draw_maps(rng: Generator) -> Doubles:
    """Draw affine maps (N, 2, 3): a rotation, scaling of both axes, sometimes a reflection, a rotation and a shift."""
    count = integer(rng, *MAPS)
    s = singular_values(rng.random((count, 2)), (5 + count + rng.random()) / 2)
    first, last = _rotations(rng.random(count)), _rotations(rng.random(count))
    s[:, 1] *= np.where(rng.random(count) < 0.5, -1, 1)
    return np.concatenate([(first * s[:, None]) @ last, 2 * rng.random((count, 2, 1)) - 1], 2)


def singular_values(numbers: Doubles, alpha: float) -> Doubles:
    """Raise the numbers to the power for which sum(s1 + 2 s2) = alpha, where s1 is the larger one of each pair."""
    logs, weights, power = np.log(-np.sort(-numbers, 1)), np.array([1.0, 2.0]), 0.0
    for _ in range(NEWTON_STEPS):
        terms = weights * np.exp(power * logs)
        power -= (terms.sum() - alpha) / (terms * logs).sum()
    return np.exp(power * logs)


def attractor(rng: Generator, maps: Doubles, points: int) -> tuple[Floats, Floats, Floats]:
    """Draw about `points` points of the attractor; return their x, y and hue.

    In every generation, each map produces a fraction of the points proportional to its area, from random points of the
    previous generation. A point's hue is that of its map plus half the hue of its predecessor.
    """
    count = max(MIN_POINTS, points // GENERATIONS)
    area = np.maximum(np.abs(np.linalg.det(maps[:, :, :2])), MIN_AREA)
    map_index = np.searchsorted(np.cumsum(area) / area.sum(), (np.arange(count) + 0.5) / count)
    (a, b, e), (c, d, f) = maps.astype(np.float32)[map_index].transpose(1, 2, 0).copy()
    tint = (rng.random(len(maps), np.float32) - 0.5)[map_index]
    x, y, hue = np.zeros((3, count), np.float32)
    out = np.empty((3, GENERATIONS, count), np.float32)
    parents = rng.integers(count, size=(BURN_IN + GENERATIONS, count))
    for generation, parent in enumerate(parents, start=-BURN_IN):
        x, y, hue = x.take(parent), y.take(parent), hue.take(parent)
        x, y, hue = a * x + b * y + e, c * x + d * y + f, tint + hue / 2
        if generation >= 0:
            out[:, generation] = x, y, hue
    x, y, hue = out.reshape(3, -1)
    return x, y, hue


def _rotations(turns: Doubles) -> Doubles:
    """Return rotation matrices (N, 2, 2)."""
    angle = 2 * np.pi * turns
    return np.stack([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]).transpose(2, 0, 1)


def _fit(x: Floats, start: float, size: float) -> Floats:
    """Scale and shift values to the range from `start` to `start + size`."""
    low, high = x.min(), x.max()
    return (x - low) * (size / max(high - low, 1e-6)) + start


def _histogram(x: Floats, y: Floats, hue: Floats, side: int) -> tuple[Floats, Floats]:
    """Return the number of points in each pixel of the unit square, and their mean hue."""
    column, row = np.floor(side * x).astype(np.intp), np.floor(side * y).astype(np.intp)
    visible = (np.minimum(column, row) >= 0) & (np.maximum(column, row) < side)
    pixel = (row * side + column)[visible]
    count = np.bincount(pixel, minlength=side * side).astype(np.float32)
    hues = np.bincount(pixel, hue[visible], side * side).astype(np.float32)
    return count, hues / np.maximum(count, 1)


def _background(rng: Generator, side: int) -> Floats:
    """Draw clouds (3, side^2) in a few colours, with random contrast."""
    x, y = np.meshgrid(*[np.arange(side, dtype=np.float32) / side * log_uniform(rng, 1.5, LATTICE / 2)] * 2)
    clouds = interpolate(draw_noise(rng, uniform(rng, 0.8, 2)), x.ravel(), y.ravel())
    return look_up_colours(draw_palette(rng), uniform(rng, 0, 0.7) * clouds)
