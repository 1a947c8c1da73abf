"""Fields: random functions on the plane with values of about -1 to 1, used alone, altered or combined.

Each function below draws the parameters of a field and returns the field; some alter a given field or combine two.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import bernoulli, choose, integer, log_uniform, uniform
from dpvision.public.random.program_warps import LATTICE, draw_angle, draw_noise, interpolate, rotate, triangle_wave

Floats = NDArray[np.floating]
Field = Callable[[Floats, Floats], Floats]


def gradient(rng: Generator) -> Field:
    """Draw a linear gradient in a random direction."""
    angle = draw_angle(rng)
    return lambda x, y: rotate(x, y, angle)[0]


def wave(rng: Generator) -> Field:
    """Draw a sine wave."""
    frequency, phase = log_uniform(rng, 2, 20), uniform(rng, 0, 2 * pi)
    return lambda x, y: np.sin(frequency * x + phase)


def teeth(rng: Generator) -> Field:
    """Draw a sawtooth or a triangle wave."""
    frequency, phase, triangular = log_uniform(rng, 1, 6), uniform(rng, 0, 1), bernoulli(rng)

    def field(x: Floats, y: Floats) -> Floats:
        t = frequency * x + phase
        return 2 * triangle_wave(t) - 1 if triangular else 2 * (t - np.rint(t))

    return field


def stripes(rng: Generator) -> Field:
    """Draw stripes of equal width, with gaps of another width."""
    frequency, phase, width = log_uniform(rng, 1, 6), uniform(rng, 0, 1), uniform(rng, 0.25, 0.75)
    return lambda x, y: np.sign(width - triangle_wave(frequency * x + phase))


def checks(rng: Generator) -> Field:
    """Draw a checkerboard."""
    frequency, phase = log_uniform(rng, 1, 5), uniform(rng, 0, 1)
    half = 0.5
    return lambda x, y: np.sign((triangle_wave(frequency * x + phase) - half) * (triangle_wave(frequency * y) - half))


def plasma(rng: Generator) -> Field:
    """Draw a sum of waves in a few directions: a quasicrystal if wavelengths are equal and directions evenly spaced."""
    count, frequency = integer(rng, 3, 6), log_uniform(rng, 4, 20)
    angles, frequencies, phases = rng.random((3, count, 1), np.float32)
    if bernoulli(rng, 0.4):
        angles, frequencies = np.arange(count, dtype=np.float32)[:, None] / (2 * count), np.ones_like(frequencies)
    across, along = frequency * frequencies * np.cos(2 * pi * angles), frequency * frequencies * np.sin(2 * pi * angles)

    def field(x: Floats, y: Floats) -> Floats:
        return np.sin(across * x + along * y + 2 * pi * phases).sum(0) * (1.5 / count)

    return field


def noise(rng: Generator) -> Field:
    """Draw clouds, or ridges or billows, which are clouds folded at zero."""
    table, frequency = draw_noise(rng, uniform(rng, 0.9, 2.2)), log_uniform(rng, 2, 24)
    sign = choose(rng, (0, 0, 1, -1))

    def field(x: Floats, y: Floats) -> Floats:
        n = interpolate(table, frequency * x, frequency * y)
        return sign * (1 - 3 * np.abs(n)) if sign else 1.3 * n

    return field


def cells(rng: Generator) -> Field:
    """Draw Voronoi cells, with the distance to the seed, the distance to the border, or one value per cell."""
    count, tone = integer(rng, 5, 16), integer(rng, 0, 2)
    right, down, values = 2 * rng.random((3, count, 1), np.float32) - 1
    spread = 1.6 * count**0.5

    def field(x: Floats, y: Floats) -> Floats:
        x, y = 2 * triangle_wave(x / 2 + 0.5) - 1, 2 * triangle_wave(y / 2 + 0.5) - 1
        distances = np.square(x - right) + np.square(y - down)
        nearest = distances.min(0)
        if tone == 0:
            return spread * np.sqrt(nearest) - 1
        own = distances == nearest
        if tone == 1:
            second = np.where(own, 9.0, distances).min(0)
            return spread * (np.sqrt(second) - np.sqrt(nearest)) - 1
        return np.where(own, values, -1.0).max(0)

    return field


def shapes(rng: Generator) -> Field:
    """Draw the distance to the nearest of a few discs and rounded boxes, which blend into each other."""
    count, soft = integer(rng, 1, 5), log_uniform(rng, 4, 40)
    right, down = 1.6 * rng.random((2, count, 1), np.float32) - 0.8
    wide, high, radius, angle = rng.random((4, count, 1), np.float32)
    box = (rng.random((count, 1)) < 0.6).astype(np.float32)
    wide, high, radius = 0.5 * box * wide, 0.3 * box * high, 0.08 + (0.3 - 0.2 * box) * radius
    steep = log_uniform(rng, 1.5, 12)

    def field(x: Floats, y: Floats) -> Floats:
        u, v = rotate(x - right, y - down, pi * angle)
        u, v = np.abs(u) - wide, np.abs(v) - high
        outside = np.sqrt(np.square(np.maximum(u, 0)) + np.square(np.maximum(v, 0)))
        distance = outside + np.minimum(np.maximum(u, v), 0) - radius
        nearest = distance.min(0)
        return np.tanh(steep * (nearest - np.log(np.exp(soft * (nearest - distance)).sum(0)) / soft))

    return field


def dots(rng: Generator) -> Field:
    """Draw round or square dots on a lattice."""
    frequency, size, square = log_uniform(rng, 1, 5), uniform(rng, 0.3, 0.9), bernoulli(rng, 0.3)

    def field(x: Floats, y: Floats) -> Floats:
        u, v = triangle_wave(2 * frequency * x), triangle_wave(2 * frequency * y)
        return np.clip(6 * (size - (np.maximum(u, v) if square else np.sqrt(u * u + v * v))), -1, 1)

    return field


def arcs(rng: Generator) -> Field:
    """Draw Truchet tiles: randomly rotated pairs of quarter circles, which join into winding lines."""
    flips, frequency = np.sign(draw_noise(rng, 0)), log_uniform(rng, 1, 4)
    width, soft = uniform(rng, 0.1, 0.3), log_uniform(rng, 4, 20)

    def field(x: Floats, y: Floats) -> Floats:
        x, y = frequency * x, frequency * y
        column, row = np.rint(x), np.rint(y)
        turn = flips[(row.astype(np.int32) & LATTICE - 1) * LATTICE + (column.astype(np.int32) & LATTICE - 1)]
        u, v = turn * (x - column), y - row
        u, v = np.where(u + v < 0, u, -u), np.where(u + v < 0, v, -v)
        near = np.abs(np.sqrt(np.square(u + 0.5) + np.square(v + 0.5)) - 0.5)
        return np.clip(soft * (width - near), -1, 1)

    return field


def julia(rng: Generator) -> Field:
    """Draw a Julia set by its orbit trap: the least distance of z to the axes under z -> z^2 + c."""
    angle, zoom, steps = draw_angle(rng), uniform(rng, 0.8, 1.3), integer(rng, 4, 8)
    a, b = 0.8 * np.cos(angle), 0.8 * np.sin(angle)

    def field(x: Floats, y: Floats) -> Floats:
        x, y = zoom * x, zoom * y
        near = np.full_like(x, 9)
        for _ in range(steps):
            x, y = np.clip(x * x - y * y + a, -9, 9), np.clip(2 * x * y + b, -9, 9)
            near = np.minimum(near, np.minimum(np.abs(x), np.abs(y)))
        return 2 * np.exp(-4 * near) - 1

    return field


COMMON = (gradient, wave, teeth, stripes, checks, plasma, noise, cells, shapes, dots, arcs, julia)
PATTERNS = (*COMMON, noise, noise, cells, shapes)  # repeated patterns are drawn more often


def contours(rng: Generator, f: Field) -> Field:
    """Draw contour lines of f: sin(k f)."""
    frequency, phase = log_uniform(rng, 2, 10), uniform(rng, 0, 2 * pi)
    return lambda x, y: np.sin(frequency * f(x, y) + phase)


def terraces(rng: Generator, f: Field) -> Field:
    """Round f to a few levels, with smooth steps between them."""
    levels, sharp = log_uniform(rng, 1, 4), log_uniform(rng, 1, 8)

    def field(x: Floats, y: Floats) -> Floats:
        t = levels * f(x, y)
        floor = np.floor(t)
        rise = np.clip(sharp * (t - floor - 0.5) + 0.5, 0, 1)
        return (floor + rise * rise * (3 - 2 * rise)) / levels

    return field


def relief(rng: Generator, f: Field) -> Field:
    """Show f as a landscape lit from one side."""
    angle, steep = draw_angle(rng), log_uniform(rng, 4, 16)
    right, down = 0.03 * np.cos(angle), 0.03 * np.sin(angle)
    return lambda x, y: np.tanh(steep * (f(x + right, y + down) - f(x, y)))


def creases(rng: Generator, f: Field, g: Field) -> Field:
    """Combine f and g as |f + k g|, which has creases where they cancel."""
    share = uniform(rng, -1, 1)
    return lambda x, y: 1.5 * np.abs(f(x, y) + share * g(x, y)) - 1


def product(rng: Generator, f: Field, g: Field) -> Field:
    """Multiply f by g."""
    return lambda x, y: f(x, y) * g(x, y)


def overlay(rng: Generator, f: Field, g: Field) -> Field:
    """Add some of g to f."""
    share = uniform(rng, 0.2, 0.7)
    return lambda x, y: f(x, y) + share * g(x, y)


def minimum(rng: Generator, f: Field, g: Field) -> Field:
    """Take the smaller of f and a shifted g, which puts one figure in front of the other."""
    shift = uniform(rng, -0.5, 0.5)
    return lambda x, y: np.minimum(f(x, y), g(x, y) + shift)


def sign_switch(rng: Generator, f: Field, g: Field) -> Field:
    """Flip the sign of f where g is negative."""
    return lambda x, y: f(x, y) * np.sign(g(x, y))


def displacement(rng: Generator, f: Field, g: Field) -> Field:
    """Evaluate g at points displaced by f."""
    right, down = uniform(rng, -0.8, 0.8), uniform(rng, -0.8, 0.8)

    def field(x: Floats, y: Floats) -> Floats:
        t = f(x, y)
        return g(x + right * t, y + down * t)

    return field


ALTERATIONS = (contours, terraces, relief)
COMBINATIONS = (creases, product, overlay, minimum, sign_switch, displacement, displacement)


def draw_field(rng: Generator) -> Field:
    """Draw a pattern, and alter it or combine it with another a geometrically distributed number of times."""
    field = choose(rng, PATTERNS)(rng)
    while bernoulli(rng):
        if bernoulli(rng, 0.3):
            field = choose(rng, ALTERATIONS)(rng, field)
        else:
            field = choose(rng, COMBINATIONS)(rng, field, choose(rng, PATTERNS)(rng))
    return field
