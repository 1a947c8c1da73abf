"""Dead leaves: overlapping shapes of all sizes that cover the entire image.

Radii have the density r^-3 - 1 between 0.03 and 1 side, so edges are equally frequent at all scales, as in photographs
(Lee, Mumford and Huang 2001). The variants are those of Baradad et al. 2021. Shapes are drawn from front to back: the
first shape that covers a pixel is visible there, and covered pixels are not tested again, so hundreds of shapes cost
little.

Each leaf has one colour or shows part of a texture: a spectrum-colour-wmm image or a feature visualisation. A texture
costs several times as much as an image of leaves, so groups of consecutive images share a few textures, and images are
drawn much faster in the order of their indices. Textures are periodic, so large images repeat small ones.

Baradad et al. also learn from images that excite units of a network trained on dead leaves, which takes hours of
training and seconds of gradient ascent per image. Here images share a few visualisations, seen through the leaves, and
the network is not trained but constructed from dead leaves (see feature_textures).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import ImageRandom
from dpvision.public.random.image_statistics import combined_image

Floats = NDArray[np.float32]

RADII = (0.03, 1.0)  # in sides
MAX_SHAPES = 5000  # enough to cover nearly every pixel
SHAPES_PER_DRAW = 500
TESTS_PER_BLOCK = 1 << 16  # number of pixels times shapes to test at once
FAR = 9.0  # beyond every corner of the image, so that a half-plane with this limit contains the image
KINDS = ("disc", "square", "rectangle", "triangle", "quadrangle")

STATISTICS_TEXTURES, STATISTICS_GROUP = 32, 512  # textures, and consecutive images that share them
MAX_TEXTURE_SIDE = 128
FEATURE_TEXTURES, FEATURE_GROUP = 12, 1024
FEATURES_PER_IMAGE = (2, 6)  # feature visualisations in one image
LEAF_IMAGES, LEAF_SIDE = 16, 32  # images of dead leaves that the network is constructed from


def draw_squares(image_rng: ImageRandom, side: int) -> Floats:
    """Draw upright squares of one colour each."""
    return _paint(image_rng, side, ("square",), rotate=False)


def draw_oriented_squares(image_rng: ImageRandom, side: int) -> Floats:
    """Draw rotated squares of one colour each."""
    return _paint(image_rng, side, ("square",), rotate=True)


def draw_mixed(image_rng: ImageRandom, side: int) -> Floats:
    """Draw rotated discs, squares, rectangles, triangles and quadrangles of one colour each."""
    return _paint(image_rng, side, KINDS, rotate=True)


def draw_textured(image_rng: ImageRandom, side: int) -> Floats:
    """Draw shapes that show spectrum-colour-wmm textures."""
    textures = statistics_textures(image_rng.group_start(STATISTICS_GROUP), min(side, MAX_TEXTURE_SIDE))
    return _draw_windows(image_rng, side, textures)


def draw_features(image_rng: ImageRandom, side: int) -> Floats:
    """Draw shapes that show feature visualisations."""
    textures, rng = feature_visualisations(image_rng.group_start(FEATURE_GROUP)), image_rng.generator("pool")
    chosen = rng.permutation(FEATURE_TEXTURES)[: rng.integers(*FEATURES_PER_IMAGE, endpoint=True)]
    return _draw_windows(image_rng, side, textures[chosen]) / np.float32(255)


@lru_cache(maxsize=2)
def statistics_textures(first: ImageRandom, side: int) -> Floats:
    """Draw the spectrum-colour-wmm textures for the group of images that starts with `first`."""
    rng = first.group_generator(STATISTICS_GROUP, "textures")
    return np.stack([combined_image(rng, side).astype(np.float32) for _ in range(STATISTICS_TEXTURES)])


@lru_cache(maxsize=128)
def feature_visualisations(first: ImageRandom) -> NDArray[np.uint8]:
    """Draw the feature visualisations for the group of images that starts with `first`."""
    from dpvision.public.random import feature_textures  # imported here because torch takes seconds to load

    leaf = first.for_process("dead-leaves-mixed")
    leaves = [draw_mixed(replace(leaf, index=leaf.index + number), LEAF_SIDE) for number in range(LEAF_IMAGES)]
    filters = feature_textures.build_network(first.group_generator(FEATURE_GROUP, "network"), np.stack(leaves))
    rng = first.group_generator(FEATURE_GROUP, "textures")
    units = rng.permutation(feature_textures.UNITS)[:FEATURE_TEXTURES]
    return feature_textures.draw_textures(rng, filters, units)


def _draw_windows(image_rng: ImageRandom, side: int, textures: NDArray[np.floating] | NDArray[np.uint8]) -> Floats:
    """Draw shapes of all kinds that each show one of the textures (M, height, width, 3), repeated cyclically."""
    rows, columns = np.mgrid[:side, :side]
    count, height, width, _ = textures.shape
    front = _front(image_rng.generator(), side, KINDS, rotate=True)
    rng = image_rng.generator("textures")
    texture, down, right = (rng.integers(high, size=MAX_SHAPES)[front] for high in (count, height, width))
    return textures[texture, (rows + down) % height, (columns + right) % width].astype(np.float32)


def _paint(image_rng: ImageRandom, side: int, kinds: tuple[str, ...], *, rotate: bool) -> Floats:
    front = _front(image_rng.generator(), side, kinds, rotate=rotate)
    return image_rng.generator("colours").random((front.max() + 1, 3), np.float32)[front]


def _front(rng: Generator, side: int, kinds: tuple[str, ...], *, rotate: bool) -> NDArray[np.intp]:
    """Return the number of the shape that is visible at each pixel (side, side)."""
    front = np.full(side * side, MAX_SHAPES - 1, np.intp)
    uncovered, pixels = np.arange(side * side), _pixels(side)
    number = 0
    while len(uncovered) and number < MAX_SHAPES:
        start = number % SHAPES_PER_DRAW
        if start == 0:
            normals, limits = _draw_shapes(rng, kinds, rotate=rotate)
        block = slice(start, min(SHAPES_PER_DRAW, start + max(8, TESTS_PER_BLOCK // len(uncovered))))
        inside = np.logical_and.reduce(
            [pixels @ n[:, block] < limit[block] for n, limit in zip(normals, limits, strict=True)]
        )
        covered = inside.any(1)
        front[uncovered[covered]] = number + inside[covered].argmax(1)
        uncovered, pixels = uncovered[~covered], pixels[~covered]
        number += block.stop - block.start
    return front.reshape(side, side)


@cache
def _pixels(side: int) -> Floats:
    """Return x, y and x^2 + y^2 of each pixel (side^2, 3), in which half-planes and discs are both linear."""
    x, y = np.meshgrid(*[(np.arange(side, dtype=np.float32) + 0.5) / side] * 2)
    return np.stack([x.ravel(), y.ravel(), (x * x + y * y).ravel()], 1)


def _draw_shapes(rng: Generator, kinds: tuple[str, ...], *, rotate: bool) -> tuple[Floats, Floats]:
    """Draw N shapes, as linear tests: normals (5, 3, N) and limits (5, N).

    A pixel is inside a shape if pixel @ normals[k] < limits[k] for all k. The first four tests are half-planes, of
    which a triangle uses three and a disc none; the fifth test is a disc.
    """
    radius = _radii()[np.searchsorted(_radius_quantiles(), rng.random(SHAPES_PER_DRAW))]
    x, y, turn = rng.random((3, SHAPES_PER_DRAW))
    kind = rng.integers(len(kinds), size=SHAPES_PER_DRAW)
    aspect, *bends = rng.random((5, SHAPES_PER_DRAW))
    is_kind = {name: kind == number for number, name in enumerate(kinds)}
    none = np.zeros(SHAPES_PER_DRAW, bool)
    disc, triangle, rectangle = (is_kind.get(name, none) for name in ("disc", "triangle", "rectangle"))
    bend = np.where(is_kind.get("quadrangle", none), np.stack(bends) - 0.5, 0.0)
    angle = (turn if rotate else 0.0) * 2 * np.pi + (np.arange(4)[:, None] + 0.6 * bend) * np.pi / np.where(
        triangle, 1.5, 2
    )
    reach = np.repeat(np.where(triangle, radius / 2, radius)[None], 4, 0)
    reach[1::2] *= np.where(rectangle, 0.2 + 0.8 * aspect, 1.0)
    reach[3, triangle], reach[:, disc] = FAR, FAR
    normals = np.zeros((5, 3, SHAPES_PER_DRAW))
    normals[:4, 0], normals[:4, 1] = np.cos(angle), np.sin(angle)
    normals[4] = -2 * x, -2 * y, np.ones(SHAPES_PER_DRAW)
    limits = np.append(normals[:4, 0] * x + normals[:4, 1] * y + reach, (radius**2 - x * x - y * y)[None], 0)
    limits[4, ~disc] = FAR
    tests = slice(None) if "disc" in kinds else slice(4)
    return normals[tests].astype(np.float32), limits[tests].astype(np.float32)


@cache
def _radii() -> NDArray[np.float64]:
    return np.linspace(*RADII, 200)


@cache
def _radius_quantiles() -> NDArray[np.float64]:
    """Return the cumulative distribution of the radii."""
    density = _radii() ** -3 - 1
    return np.cumsum(density) / density.sum()
