"""Maps of the plane onto itself: what a program does to its coordinates before it looks at them.

The image is the square from -1 to 1. Every function draws one map.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import between, heads, scale, whole
from dpvision.public.random.tables import looked_up, noise_table

Floats = NDArray[np.floating]
Plane = tuple[Floats, Floats]
Warp = Callable[[Floats, Floats], Plane]


def placed(rng: Generator) -> Warp:
    """Turned, zoomed, stretched and shifted."""
    angle, zoom, stretch = any_angle(rng), scale(rng, 0.4, 1.4), scale(rng, 0.7, 1.4)
    right, down = between(rng, -0.7, 0.7), between(rng, -0.7, 0.7)

    def warp(x: Floats, y: Floats) -> Plane:
        x, y = turned(x, y, angle)
        return zoom * stretch * x + right, zoom / stretch * y + down

    return warp


def polar(rng: Generator) -> Warp:
    """Radius, or its logarithm, and angle, mirrored so that it closes; sheared it is a spiral."""
    arms, pull, spiral = whole(rng, 1, 6), scale(rng, 0.5, 2), between(rng, -1, 1) if heads(rng, 0.4) else 0
    logarithmic = heads(rng)

    def warp(x: Floats, y: Floats) -> Plane:
        r = np.sqrt(x * x + y * y)
        far = np.log(r + 0.02) if logarithmic else 2 * r
        return pull * far, 2 * mirrored(arms * np.arctan2(y, x) / pi + spiral * far) - 1

    return warp


def kaleidoscope(rng: Generator) -> Warp:
    """The same wedge all around, every other one mirrored."""
    wedge, turn = pi / whole(rng, 2, 6), between(rng, 0, pi)

    def warp(x: Floats, y: Floats) -> Plane:
        r, angle = np.sqrt(x * x + y * y), wedge * mirrored(np.arctan2(y, x) / wedge) + turn
        return r * np.cos(angle), r * np.sin(angle)

    return warp


def tiled(rng: Generator) -> Warp:
    """The same tile everywhere, mirrored or in rows that are shifted like bricks."""
    tiles, mirror, brick = scale(rng, 0.7, 2.5), heads(rng), between(rng, 0, 1) if heads(rng) else 0

    def warp(x: Floats, y: Floats) -> Plane:
        x, y = tiles * x, tiles * y
        if mirror:
            return 2 * mirrored(x) - 1, 2 * mirrored(y) - 1
        row = np.rint(y)
        x = x + brick * row
        return 2 * (x - np.rint(x)), 2 * (y - row)

    return warp


def folded(rng: Generator) -> Warp:
    """Folded, turned and magnified a few times: the same figure at many scales."""
    grow, angles = between(rng, 1.1, 1.6), [any_angle(rng) for _ in range(whole(rng, 2, 5))]
    right, down = between(rng, 0.2, 0.8), between(rng, 0, 0.6)

    def warp(x: Floats, y: Floats) -> Plane:
        for angle in angles:
            x, y = turned(grow * (np.abs(x) - right), grow * (np.abs(y) - down), angle)
        return x, y

    return warp


def swirled(rng: Generator) -> Warp:
    """Turned about the centre, the more so the nearer to it."""
    strength, reach = between(rng, -6, 6), scale(rng, 0.5, 3)
    return lambda x, y: turned(x, y, strength * np.exp(-reach * (x * x + y * y)))


def rippled(rng: Generator) -> Warp:
    """Shifted by sines of the other coordinate, a few times, each finer than the last."""
    finer, first, much = between(rng, 1.4, 2), scale(rng, 1.5, 6), between(rng, 0.4, 1.4)
    phases = rng.random((whole(rng, 1, 4), 2), np.float32) * 2 * pi

    def warp(x: Floats, y: Floats) -> Plane:
        pace = first
        for one, other in phases:
            x = x + much / pace * np.sin(pace * y + one)
            y = y + much / pace * np.sin(pace * x + other)
            pace = pace * finer
        return x, y

    return warp


def stirred(rng: Generator) -> Warp:
    """Shifted by noise."""
    table, pace, much = noise_table(rng, between(rng, 1.2, 2.2)), scale(rng, 2, 10), between(rng, 0.1, 0.6)

    def warp(x: Floats, y: Floats) -> Plane:
        u, v = pace * x, pace * y
        return x + much * looked_up(table, u, v), y + much * looked_up(table, v, -u)

    return warp


def inverted(rng: Generator) -> Warp:
    """Inside out, about a point."""
    right, down, size = between(rng, -0.8, 0.8), between(rng, -0.8, 0.8), scale(rng, 0.3, 1.5)

    def warp(x: Floats, y: Floats) -> Plane:
        x, y = x - right, y - down
        much = size / (x * x + y * y + 0.05)
        return x * much, y * much

    return warp


def squared(rng: Generator) -> Warp:
    """z^2 + c of the complex plane."""
    right, down = between(rng, -1, 1), between(rng, -1, 1)
    return lambda x, y: (x * x - y * y + right, 2 * x * y + down)


def pixelated(rng: Generator) -> Warp:
    """In blocks."""
    fine = scale(rng, 3, 12)
    return lambda x, y: (np.rint(fine * x) / fine, np.rint(fine * y) / fine)


def any_angle(rng: Generator) -> Floats:
    return 2 * pi * rng.random(1, np.float32)


def turned(x: Floats, y: Floats, angle: Floats) -> Plane:
    c, s = np.cos(angle), np.sin(angle)
    return c * x - s * y, s * x + c * y


def mirrored(x: Floats) -> Floats:
    """Up and down between 0 and 1: a triangular wave of period 2 that is |x| about zero."""
    return np.abs(x - 2 * np.rint(x / 2))


COMMON = (polar, kaleidoscope, tiled, folded, swirled, rippled, stirred, inverted, squared)
WARPS = (*COMMON, *COMMON, rippled, stirred, pixelated)  # how often each is drawn
