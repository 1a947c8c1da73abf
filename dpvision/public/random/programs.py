"""Images drawn by short random programs, similar to fragment shaders.

Baradad et al. 2022 learn from 21,000 shaders written by people, and find that more shaders are better for the same
number of images. Here every image has its own program: it warps the coordinates, evaluates and combines patterns, and
maps their values to colours, which are layered and shaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import ImageRandom, bernoulli, choose, integer, log_uniform, uniform
from dpvision.public.random.program_fields import Field, draw_field
from dpvision.public.random.program_warps import WARPS, Plane, Warp, affine

Floats = NDArray[np.floating]
Program = Callable[[Floats, Floats], Floats]  # x and y of N points, from -1 to 1 -> (3, N) in [0, 1]

PREVIEW_SIDE = 32
MAX_ATTEMPTS = 20
MIN_VARIANCE = 0.02  # sum over the three channels
ROUGHNESS = (0.02, 0.65)  # allowed range: 0 is constant, 1 is white noise
MAX_UNIFORM = 0.8  # maximum fraction of pixels of about the same colour
SUPERSAMPLING = 2  # points per pixel, in each direction
BLOCK = 1 << 11  # pixels evaluated at once
SHADES = 256  # colours in a palette
LUMA = np.array([0.3, 0.6, 0.1], np.float32)  # weights of red, green and blue in perceived brightness


def draw_program(image_rng: ImageRandom, side: int) -> Floats:
    """Draw a program until a preview of its image is interesting, and render it."""
    for attempt in range(MAX_ATTEMPTS):
        program = _random_program(image_rng.generator(f"program {attempt}"))
        if is_interesting(_render(program, PREVIEW_SIDE, 1)):
            break
    return _render(program, side, SUPERSAMPLING)


def is_interesting(image: Floats) -> bool:
    """Return whether an image is not blank, not mostly of one colour, and not noise."""
    variance = image.var((0, 1)).sum()
    step = (np.square(np.diff(image, axis=0)).mean() + np.square(np.diff(image, axis=1)).mean()) * 3 / 4
    coarse = (image * 3.99).astype(np.intp) @ [16, 4, 1]
    return bool(
        variance > MIN_VARIANCE
        and ROUGHNESS[0] < step / variance < ROUGHNESS[1]
        and np.bincount(coarse.ravel()).max() < MAX_UNIFORM * coarse.size
    )


def _random_program(rng: Generator) -> Program:
    """Draw a program of one to three layers in warped coordinates, sometimes with shading."""
    warp, picture = _warps(rng, integer(rng, 0, 2)), _layer(rng)
    for _ in range(integer(rng, 0, 2)):
        picture = _cover(rng, picture, _layer(rng))
    if bernoulli(rng, 0.3):
        picture = _shade(rng, picture)
    return lambda x, y: picture(*warp(x, y))


def _layer(rng: Generator) -> Program:
    """Draw a field and a palette for its values."""
    field, table, cycles, start = _field(rng), draw_palette(rng), log_uniform(rng, 0.5, 1.5), uniform(rng, -1, 1)
    return lambda x, y: look_up_colours(table, cycles * field(x, y) + start)


def _cover(rng: Generator, under: Program, over: Program) -> Program:
    """Put one picture over the other where a random field is positive; the edge is hard or soft."""
    mask, level, sharp = _field(rng), uniform(rng, -0.4, 0.4), log_uniform(rng, 2, 50)

    def program(x: Floats, y: Floats) -> Floats:
        share = np.clip(sharp * (mask(x, y) + level) + 0.5, 0, 1)
        below = under(x, y)
        return below + share * (over(x, y) - below)

    return program


def _shade(rng: Generator, picture: Program) -> Program:
    light, strength = _field(rng), uniform(rng, 0.2, 0.5)
    return lambda x, y: np.clip(picture(x, y) * (1 + strength * light(x, y)), 0, 1)


def _field(rng: Generator) -> Field:
    """Draw a field with its own coordinates."""
    field, warp = draw_field(rng), _warps(rng, integer(rng, 0, 1))
    return lambda x, y: field(*warp(x, y))


def _warps(rng: Generator, count: int) -> Warp:
    """Draw an affine map followed by `count` warps."""
    warps = [affine(rng), *(choose(rng, WARPS)(rng) for _ in range(count))]

    def compose(x: Floats, y: Floats) -> Plane:
        for warp in warps:
            x, y = warp(x, y)
        return x, y

    return compose


def _render(program: Program, side: int, fine: int) -> Floats:
    """Render an image (side, side, 3) as the mean of fine^2 points per pixel."""
    x, y = _points(side, fine)
    out = np.empty((3, side * side), np.float32)
    for start in range(0, side * side, BLOCK):
        block = slice(start, start + BLOCK)
        out[:, block] = program(x[:, block].ravel(), y[:, block].ravel()).reshape(3, fine * fine, -1).mean(1)
    return out.T.reshape(side, side, 3)


@cache
def _points(side: int, fine: int) -> Plane:
    """Return x and y of fine^2 points in each of side^2 pixels."""
    axis = ((2 * np.arange(side * fine, dtype=np.float32) + 1) / (side * fine) - 1).reshape(side, fine).T
    x, y = np.broadcast_arrays(axis[None, :, None, :], axis[:, None, :, None])
    return x.reshape(fine * fine, -1), y.reshape(fine * fine, -1)


def draw_palette(rng: Generator) -> Floats:
    """Draw a cyclic palette (3, SHADES) of cosines, or of a few colours with or without interpolation."""
    t = np.arange(SHADES, dtype=np.float32) / SHADES
    table = _cosine_palette(rng, t) if bernoulli(rng) else _listed_palette(rng, t)
    grey = LUMA @ table
    return np.clip(grey + uniform(rng, 0.3, 1.2) * (table - grey), 0, 1)


def look_up_colours(palette: Floats, t: Floats) -> Floats:
    """Map numbers to colours (3, N). The palette has period 2, such as from -1 to 1."""
    return palette.take((t * (SHADES / 2)).astype(np.int32) & SHADES - 1, 1)


def _cosine_palette(rng: Generator, t: Floats) -> Floats:
    """Return a + b cos(2 pi (c t + d)) in each channel, where c is an integer."""
    a, b, c, d = rng.random((4, 3, 1), np.float32)
    return 0.25 + 0.5 * a + (0.15 + 0.4 * b) * np.cos(2 * np.pi * ((1 + np.rint(c)) * t + d))


def _listed_palette(rng: Generator, t: Floats) -> Floats:
    """Place colours at random positions on a circle; between two of them, mix them or use the first one."""
    count = integer(rng, 2, 6)
    positions, colours = np.sort(rng.random(count, np.float32)), rng.random((3, count), np.float32)
    if bernoulli(rng, 0.4):
        return colours[:, np.searchsorted(positions, t) - 1]
    return np.stack([np.interp(t, positions, channel, period=1) for channel in colours]).astype(np.float32)
