"""Warps, which are random maps of the plane that a program applies to its coordinates, and tables of smooth noise.

The image is the square from -1 to 1. Each function that takes only a generator draws the parameters of a warp and
returns the warp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import pi

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import bernoulli, integer, log_uniform, uniform

Floats = NDArray[np.floating]
Plane = tuple[Floats, Floats]
Warp = Callable[[Floats, Floats], Plane]

LATTICE = 32  # points per side of a table of noise; a power of two


def affine(rng: Generator) -> Warp:
    """Rotate, zoom, stretch and shift."""
    angle, zoom, stretch = draw_angle(rng), log_uniform(rng, 0.4, 1.4), log_uniform(rng, 0.7, 1.4)
    right, down = uniform(rng, -0.7, 0.7), uniform(rng, -0.7, 0.7)

    def warp(x: Floats, y: Floats) -> Plane:
        x, y = rotate(x, y, angle)
        return zoom * stretch * x + right, zoom / stretch * y + down

    return warp


def polar(rng: Generator) -> Warp:
    """Map to polar coordinates: the radius or its logarithm, and a wave of the angle, sometimes sheared to a spiral."""
    arms, zoom, spiral = integer(rng, 1, 6), log_uniform(rng, 0.5, 2), uniform(rng, -1, 1) if bernoulli(rng, 0.4) else 0
    logarithmic = bernoulli(rng)

    def warp(x: Floats, y: Floats) -> Plane:
        r = np.sqrt(x * x + y * y)
        far = np.log(r + 0.02) if logarithmic else 2 * r
        return zoom * far, 2 * triangle_wave(arms * np.arctan2(y, x) / pi + spiral * far) - 1

    return warp


def kaleidoscope(rng: Generator) -> Warp:
    """Repeat a wedge around the centre, mirroring every other one."""
    wedge, turn = pi / integer(rng, 2, 6), uniform(rng, 0, pi)

    def warp(x: Floats, y: Floats) -> Plane:
        r, angle = np.sqrt(x * x + y * y), wedge * triangle_wave(np.arctan2(y, x) / wedge) + turn
        return r * np.cos(angle), r * np.sin(angle)

    return warp


def tiles(rng: Generator) -> Warp:
    """Repeat a tile, either mirrored or in rows that are shifted like bricks."""
    density, mirror, brick = log_uniform(rng, 0.7, 2.5), bernoulli(rng), uniform(rng, 0, 1) if bernoulli(rng) else 0

    def warp(x: Floats, y: Floats) -> Plane:
        x, y = density * x, density * y
        if mirror:
            return 2 * triangle_wave(x) - 1, 2 * triangle_wave(y) - 1
        row = np.rint(y)
        x = x + brick * row
        return 2 * (x - np.rint(x)), 2 * (y - row)

    return warp


def iterated_folds(rng: Generator) -> Warp:
    """Fold, rotate and magnify a few times, which repeats a figure at many scales."""
    grow, angles = uniform(rng, 1.1, 1.6), [draw_angle(rng) for _ in range(integer(rng, 2, 5))]
    right, down = uniform(rng, 0.2, 0.8), uniform(rng, 0, 0.6)

    def warp(x: Floats, y: Floats) -> Plane:
        for angle in angles:
            x, y = rotate(grow * (np.abs(x) - right), grow * (np.abs(y) - down), angle)
        return x, y

    return warp


def swirl(rng: Generator) -> Warp:
    """Rotate points about the centre, by a larger angle the closer they are to it."""
    strength, reach = uniform(rng, -6, 6), log_uniform(rng, 0.5, 3)
    return lambda x, y: rotate(x, y, strength * np.exp(-reach * (x * x + y * y)))


def ripples(rng: Generator) -> Warp:
    """Shift each coordinate by sines of the other a few times, with increasing frequency."""
    finer, first, strength = uniform(rng, 1.4, 2), log_uniform(rng, 1.5, 6), uniform(rng, 0.4, 1.4)
    phases = rng.random((integer(rng, 1, 4), 2), np.float32) * 2 * pi

    def warp(x: Floats, y: Floats) -> Plane:
        frequency = first
        for x_phase, y_phase in phases:
            x = x + strength / frequency * np.sin(frequency * y + x_phase)
            y = y + strength / frequency * np.sin(frequency * x + y_phase)
            frequency = frequency * finer
        return x, y

    return warp


def turbulence(rng: Generator) -> Warp:
    """Shift points by noise."""
    table, frequency, strength = (
        draw_noise(rng, uniform(rng, 1.2, 2.2)),
        log_uniform(rng, 2, 10),
        uniform(rng, 0.1, 0.6),
    )

    def warp(x: Floats, y: Floats) -> Plane:
        u, v = frequency * x, frequency * y
        return x + strength * interpolate(table, u, v), y + strength * interpolate(table, v, -u)

    return warp


def inversion(rng: Generator) -> Warp:
    """Invert the plane in a circle about a random point."""
    right, down, size = uniform(rng, -0.8, 0.8), uniform(rng, -0.8, 0.8), log_uniform(rng, 0.3, 1.5)

    def warp(x: Floats, y: Floats) -> Plane:
        x, y = x - right, y - down
        factor = size / (x * x + y * y + 0.05)
        return x * factor, y * factor

    return warp


def complex_square(rng: Generator) -> Warp:
    """Map z to z^2 + c in the complex plane."""
    right, down = uniform(rng, -1, 1), uniform(rng, -1, 1)
    return lambda x, y: (x * x - y * y + right, 2 * x * y + down)


def pixelation(rng: Generator) -> Warp:
    """Round coordinates, which gives square blocks."""
    density = log_uniform(rng, 3, 12)
    return lambda x, y: (np.rint(density * x) / density, np.rint(density * y) / density)


def draw_noise(rng: Generator, slope: float) -> Floats:
    """Draw Gaussian noise with amplitudes |f|^-slope, mean 0 and standard deviation 1/2, as a flattened table."""
    white = rng.standard_normal((LATTICE, LATTICE // 2 + 1, 2), np.float32).view(np.complex64)[..., 0]
    noise = np.fft.irfft2(white * _frequency() ** -slope, (LATTICE, LATTICE)).ravel()
    return noise * (LATTICE / 2) / np.linalg.norm(noise)


def interpolate(table: Floats, x: Floats, y: Floats) -> Floats:
    """Interpolate a noise table smoothly at any points. The table is cyclic, and its points are one unit apart."""
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
    """Return frequencies in cycles per table, with infinity in place of 0 so that the mean is 0."""
    f = np.hypot(np.fft.fftfreq(LATTICE)[:, None], np.fft.rfftfreq(LATTICE)).astype(np.float32) * LATTICE
    f[0, 0] = np.inf
    return f


def draw_angle(rng: Generator) -> Floats:
    """Draw an angle as a float32 array with one element."""
    return 2 * pi * rng.random(1, np.float32)


def rotate(x: Floats, y: Floats, angle: Floats) -> Plane:
    """Rotate the plane about the origin."""
    c, s = np.cos(angle), np.sin(angle)
    return c * x - s * y, s * x + c * y


def triangle_wave(x: Floats) -> Floats:
    """Return a triangle wave of period 2 between 0 and 1, which is |x| near 0."""
    return np.abs(x - 2 * np.rint(x / 2))


COMMON = (polar, kaleidoscope, tiles, iterated_folds, swirl, ripples, turbulence, inversion, complex_square)
WARPS = (*COMMON, *COMMON, ripples, turbulence, pixelation)  # repeated warps are drawn more often
