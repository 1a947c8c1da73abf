"""Functions on the plane, of values about -1 to 1: patterns, noises and shapes, and what a program makes of them.

Every function draws one field, some from nothing, some from one field or two.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import between, heads, one_of, scale, whole
from dpvision.public.random.program_warps import any_angle, mirrored, turned
from dpvision.public.random.tables import LATTICE, looked_up, noise_table

Floats = NDArray[np.floating]
Field = Callable[[Floats, Floats], Floats]


def slope(rng: Generator) -> Field:
    """Even from one side to the other."""
    angle = any_angle(rng)
    return lambda x, y: turned(x, y, angle)[0]


def wave(rng: Generator) -> Field:
    pace, phase = scale(rng, 2, 20), between(rng, 0, 2 * pi)
    return lambda x, y: np.sin(pace * x + phase)


def teeth(rng: Generator) -> Field:
    """Saws or roofs."""
    pace, phase, roofs = scale(rng, 1, 6), between(rng, 0, 1), heads(rng)

    def field(x: Floats, y: Floats) -> Floats:
        t = pace * x + phase
        return 2 * mirrored(t) - 1 if roofs else 2 * (t - np.rint(t))

    return field


def stripes(rng: Generator) -> Field:
    """Of one width, with gaps of another."""
    pace, phase, width = scale(rng, 1, 6), between(rng, 0, 1), between(rng, 0.25, 0.75)
    return lambda x, y: np.sign(width - mirrored(pace * x + phase))


def checks(rng: Generator) -> Field:
    pace, phase = scale(rng, 1, 5), between(rng, 0, 1)
    half = 0.5
    return lambda x, y: np.sign((mirrored(pace * x + phase) - half) * (mirrored(pace * y) - half))


def plasma(rng: Generator) -> Field:
    """Waves of a few directions; when there are many of one length, a quasicrystal."""
    many, pace = whole(rng, 3, 6), scale(rng, 4, 20)
    angles, paces, phases = rng.random((3, many, 1), np.float32)
    if heads(rng, 0.4):
        angles, paces = np.arange(many, dtype=np.float32)[:, None] / (2 * many), np.ones_like(paces)
    across, along = pace * paces * np.cos(2 * pi * angles), pace * paces * np.sin(2 * pi * angles)

    def field(x: Floats, y: Floats) -> Floats:
        return np.sin(across * x + along * y + 2 * pi * phases).sum(0) * (1.5 / many)

    return field


def noise(rng: Generator) -> Field:
    """Clouds; folded at zero ridges or billows."""
    table, pace = noise_table(rng, between(rng, 0.9, 2.2)), scale(rng, 2, 24)
    sign = one_of(rng, (0, 0, 1, -1))

    def field(x: Floats, y: Floats) -> Floats:
        n = looked_up(table, pace * x, pace * y)
        return sign * (1 - 3 * np.abs(n)) if sign else 1.3 * n

    return field


def cells(rng: Generator) -> Field:
    """Of the points that are nearest to the same seed: how far it is, how far the border is, or one value for all."""
    many, tone = whole(rng, 5, 16), whole(rng, 0, 2)
    right, down, values = 2 * rng.random((3, many, 1), np.float32) - 1
    spread = 1.6 * many**0.5

    def field(x: Floats, y: Floats) -> Floats:
        x, y = 2 * mirrored(x / 2 + 0.5) - 1, 2 * mirrored(y / 2 + 0.5) - 1
        apart = np.square(x - right) + np.square(y - down)
        nearest = apart.min(0)
        if tone == 0:
            return spread * np.sqrt(nearest) - 1
        own = apart == nearest
        if tone == 1:
            second = np.where(own, 9.0, apart).min(0)
            return spread * (np.sqrt(second) - np.sqrt(nearest)) - 1
        return np.where(own, values, -1.0).max(0)

    return field


def shapes(rng: Generator) -> Field:
    """Distance to the nearest of a few discs and round-edged boxes, which melt into each other."""
    many, soft = whole(rng, 1, 5), scale(rng, 4, 40)
    right, down = 1.6 * rng.random((2, many, 1), np.float32) - 0.8
    wide, high, radius, angle = rng.random((4, many, 1), np.float32)
    box = (rng.random((many, 1)) < 0.6).astype(np.float32)
    wide, high, radius = 0.5 * box * wide, 0.3 * box * high, 0.08 + (0.3 - 0.2 * box) * radius
    steep = scale(rng, 1.5, 12)

    def field(x: Floats, y: Floats) -> Floats:
        u, v = turned(x - right, y - down, pi * angle)
        u, v = np.abs(u) - wide, np.abs(v) - high
        outside = np.sqrt(np.square(np.maximum(u, 0)) + np.square(np.maximum(v, 0)))
        distance = outside + np.minimum(np.maximum(u, v), 0) - radius
        least = distance.min(0)
        return np.tanh(steep * (least - np.log(np.exp(soft * (least - distance)).sum(0)) / soft))

    return field


def dots(rng: Generator) -> Field:
    """Round or square, on a lattice."""
    pace, size, square = scale(rng, 1, 5), between(rng, 0.3, 0.9), heads(rng, 0.3)

    def field(x: Floats, y: Floats) -> Floats:
        u, v = mirrored(2 * pace * x), mirrored(2 * pace * y)
        return np.clip(6 * (size - (np.maximum(u, v) if square else np.sqrt(u * u + v * v))), -1, 1)

    return field


def arcs(rng: Generator) -> Field:
    """Truchet's tiles: two quarters of a circle in each, turned at random, that join into winding lines."""
    flips, pace = np.sign(noise_table(rng, 0)), scale(rng, 1, 4)
    width, soft = between(rng, 0.1, 0.3), scale(rng, 4, 20)

    def field(x: Floats, y: Floats) -> Floats:
        x, y = pace * x, pace * y
        column, row = np.rint(x), np.rint(y)
        turn = flips[(row.astype(np.int32) & LATTICE - 1) * LATTICE + (column.astype(np.int32) & LATTICE - 1)]
        u, v = turn * (x - column), y - row
        u, v = np.where(u + v < 0, u, -u), np.where(u + v < 0, v, -v)
        near = np.abs(np.sqrt(np.square(u + 0.5) + np.square(v + 0.5)) - 0.5)
        return np.clip(soft * (width - near), -1, 1)

    return field


def julia(rng: Generator) -> Field:
    """How near z comes to the axes on its way, z going to z^2 + c."""
    angle, zoom, steps = any_angle(rng), between(rng, 0.8, 1.3), whole(rng, 4, 8)
    a, b = 0.8 * np.cos(angle), 0.8 * np.sin(angle)

    def field(x: Floats, y: Floats) -> Floats:
        x, y = zoom * x, zoom * y
        near = np.full_like(x, 9)
        for _ in range(steps):
            x, y = np.clip(x * x - y * y + a, -9, 9), np.clip(2 * x * y + b, -9, 9)
            near = np.minimum(near, np.minimum(np.abs(x), np.abs(y)))
        return 2 * np.exp(-4 * near) - 1

    return field


COMMON = (slope, wave, teeth, stripes, checks, plasma, noise, cells, shapes, dots, arcs, julia)
PATTERNS = (*COMMON, noise, noise, cells, shapes)  # how often each is drawn


def bands(rng: Generator, f: Field) -> Field:
    """sin(k f): contour lines."""
    pace, phase = scale(rng, 2, 10), between(rng, 0, 2 * pi)
    return lambda x, y: np.sin(pace * f(x, y) + phase)


def terraces(rng: Generator, f: Field) -> Field:
    """A few levels, with slopes between them that end smoothly."""
    levels, sharp = scale(rng, 1, 4), scale(rng, 1, 8)

    def field(x: Floats, y: Floats) -> Floats:
        t = levels * f(x, y)
        floor = np.floor(t)
        rise = np.clip(sharp * (t - floor - 0.5) + 0.5, 0, 1)
        return (floor + rise * rise * (3 - 2 * rise)) / levels

    return field


def relief(rng: Generator, f: Field) -> Field:
    """f as a landscape with the sun low on one side."""
    angle, steep = any_angle(rng), scale(rng, 4, 16)
    right, down = 0.03 * np.cos(angle), 0.03 * np.sin(angle)
    return lambda x, y: np.tanh(steep * (f(x + right, y + down) - f(x, y)))


def folds(rng: Generator, f: Field, g: Field) -> Field:
    """|f + g|: creases where they cancel."""
    much = between(rng, -1, 1)
    return lambda x, y: 1.5 * np.abs(f(x, y) + much * g(x, y)) - 1


def products(rng: Generator, f: Field, g: Field) -> Field:
    return lambda x, y: f(x, y) * g(x, y)


def textured(rng: Generator, f: Field, g: Field) -> Field:
    """f with a little of g."""
    much = between(rng, 0.2, 0.7)
    return lambda x, y: f(x, y) + much * g(x, y)


def nearer(rng: Generator, f: Field, g: Field) -> Field:
    """The smaller of the two: one figure in front of the other."""
    shift = between(rng, -0.5, 0.5)
    return lambda x, y: np.minimum(f(x, y), g(x, y) + shift)


def pieces(rng: Generator, f: Field, g: Field) -> Field:
    """f where g is positive and its negative elsewhere."""
    return lambda x, y: f(x, y) * np.sign(g(x, y))


def fed(rng: Generator, f: Field, g: Field) -> Field:
    """g at places that f has moved."""
    right, down = between(rng, -0.8, 0.8), between(rng, -0.8, 0.8)

    def field(x: Floats, y: Floats) -> Floats:
        t = f(x, y)
        return g(x + right * t, y + down * t)

    return field


ALTERED = (bands, terraces, relief)
COMBINED = (folds, products, textured, nearer, pieces, fed, fed)


def drawn_field(rng: Generator) -> Field:
    """A pattern, which is altered or combined with another as long as a coin shows heads."""
    field = one_of(rng, PATTERNS)(rng)
    while heads(rng):
        if heads(rng, 0.3):
            field = one_of(rng, ALTERED)(rng, field)
        else:
            field = one_of(rng, COMBINED)(rng, field, one_of(rng, PATTERNS)(rng))
    return field
