"""Programs: pictures made by short random programs, as those of fragment shaders.

Baradad et al. 2022 learn from 21,000 shaders that people wrote, and the better the more of them there are for the same
number of images. So here a program is drawn for every image: coordinates are bent, patterns are looked up there and
combined, and their values are given colours, which are layered and shaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import ImageRandom, between, heads, one_of, scale, whole
from dpvision.public.random.program_fields import Field, drawn_field
from dpvision.public.random.program_warps import WARPS, Plane, Warp, placed
from dpvision.public.random.tables import coloured, palette

Floats = NDArray[np.floating]
Program = Callable[[Floats, Floats], Floats]  # x and y of N points, from -1 to 1 -> (3, N) in [0, 1]

PREVIEW = 32  # a side
TRIES = 20
CONTRAST = 0.02  # least variance, of the three channels together
ROUGH = (0.02, 0.65)  # 0 is even, 1 is white noise
PLAIN = 0.8  # at most this share of the pixels is of about the same colour
FINE = 2  # points a pixel, across and down
BLOCK = 1 << 11  # pixels at a time


def programs(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Each image by a program of its own."""
    out = np.empty((len(draws), side, side, 3), np.float32)
    for image, each in zip(out, draws, strict=True):
        image[...] = _rendered(_program(each), side, FINE)
    return out


def _program(draws: ImageRandom) -> Program:
    """The first one drawn that is worth seeing."""
    for attempt in range(TRIES):
        program = _drawn(draws.own(f"program {attempt}"))
        if _worth_seeing(_rendered(program, PREVIEW, 1)):
            break
    return program


def _worth_seeing(image: Floats) -> bool:
    """Not blank, not mostly of one colour, and not noise, whose neighbours differ as much as any two pixels."""
    variance = image.var((0, 1)).sum()
    step = (np.square(np.diff(image, axis=0)).mean() + np.square(np.diff(image, axis=1)).mean()) * 3 / 4
    coarse = (image * 3.99).astype(np.intp) @ [16, 4, 1]
    return bool(
        variance > CONTRAST
        and ROUGH[0] < step / variance < ROUGH[1]
        and np.bincount(coarse.ravel()).max() < PLAIN * coarse.size
    )


def _drawn(rng: Generator) -> Program:
    """A picture of one to three layers, in bent coordinates, perhaps with light and shade."""
    bend, picture = _bend(rng, whole(rng, 0, 2)), _layer(rng)
    for _ in range(whole(rng, 0, 2)):
        picture = _covered(rng, picture, _layer(rng))
    if heads(rng, 0.3):
        picture = _shaded(rng, picture)
    return lambda x, y: picture(*bend(x, y))


def _layer(rng: Generator) -> Program:
    """A field in colours."""
    field, table, rounds, start = _field(rng), palette(rng), scale(rng, 0.5, 1.5), between(rng, -1, 1)
    return lambda x, y: coloured(table, rounds * field(x, y) + start)


def _covered(rng: Generator, under: Program, over: Program) -> Program:
    """One picture where a field is positive, the other elsewhere; the edge is hard or soft."""
    mask, level, sharp = _field(rng), between(rng, -0.4, 0.4), scale(rng, 2, 50)

    def program(x: Floats, y: Floats) -> Floats:
        share = np.clip(sharp * (mask(x, y) + level) + 0.5, 0, 1)
        below = under(x, y)
        return below + share * (over(x, y) - below)

    return program


def _shaded(rng: Generator, picture: Program) -> Program:
    light, much = _field(rng), between(rng, 0.2, 0.5)
    return lambda x, y: np.clip(picture(x, y) * (1 + much * light(x, y)), 0, 1)


def _field(rng: Generator) -> Field:
    """Often in coordinates of its own."""
    field, bend = drawn_field(rng), _bend(rng, whole(rng, 0, 1))
    return lambda x, y: field(*bend(x, y))


def _bend(rng: Generator, times: int) -> Warp:
    warps = [placed(rng), *(one_of(rng, WARPS)(rng) for _ in range(times))]

    def bend(x: Floats, y: Floats) -> Plane:
        for warp in warps:
            x, y = warp(x, y)
        return x, y

    return bend


def _rendered(program: Program, side: int, fine: int) -> Floats:
    """(side, side, 3): the mean of fine^2 points of each pixel."""
    x, y = _points(side, fine)
    out = np.empty((3, side * side), np.float32)
    for first in range(0, side * side, BLOCK):
        some = slice(first, first + BLOCK)
        out[:, some] = program(x[:, some].ravel(), y[:, some].ravel()).reshape(3, fine * fine, -1).mean(1)
    return out.T.reshape(side, side, 3)


@cache
def _points(side: int, fine: int) -> Plane:
    """x and y of fine^2 points of side^2 pixels."""
    at = ((2 * np.arange(side * fine, dtype=np.float32) + 1) / (side * fine) - 1).reshape(side, fine).T
    x, y = np.broadcast_arrays(at[None, :, None, :], at[:, None, :, None])
    return x.reshape(fine * fine, -1), y.reshape(fine * fine, -1)
