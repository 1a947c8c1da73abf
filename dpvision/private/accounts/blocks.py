"""Digests of parts of an image that stay the same when it is saved in another format or edited in a few pixels.

The brightness of an image (colour images: the usual weighted sum of red, green and blue) is cut into parts in two ways:
8 scattered parts, each with every eighth pixel of a fixed shuffle, and the 4 quadrants. The values of a part are scaled
by its own minimum and maximum, rounded to 8 levels and hashed. So the digest of a part is the same for every type and
range of values (uint8, floats in [0, 1] or [-1, 1]), the same for a grey image and its RGB copy, and independent of the
rest of the image.

Two images count as the same when two scattered parts or two quadrants agree. Changing a few pixels leaves most
scattered parts unchanged; a stamp in a corner leaves three quadrants unchanged. A part in which fewer than 8 pixels
differ from the most frequent level has no digest, because blank and nearly blank parts would all agree.
benchmarks/overlap.py measures how often different images are mistaken for the same.

Digests are one-way (BLAKE2b, 64 bits), but anyone who has an image can test whether it was in the data. They are stored
in the operator's home folder, next to the ledgers, and only their owner can read them.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from itertools import product

import numpy as np
from numpy.typing import NDArray

SCATTERED, QUADRANTS = 8, 4
PARTS = SCATTERED + QUADRANTS
MIN_AGREEING = 2  # matching scattered parts, or matching quadrants, that make two images the same
MIN_PIXELS = 16  # smaller images are not cut into parts
_MIN_PART_PIXELS = 32  # smaller images have fewer scattered parts
_LEVELS = 8
_MIN_RARE = 8  # pixels that differ from the most frequent level; in a small part, a quarter of its pixels
# Deliberately odd constants: common values do not fall on the edge of a level, where rounding would decide.
_SCALE, _SHIFT = np.float32(0.9917 * _LEVELS), np.float32(0.00417)
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
_MAX_PART_PIXELS = 1024  # a sample of each part suffices for large images
_BLOCK = 32 << 20  # bytes of brightness values computed at a time


def digest_blocks(images: NDArray[np.generic]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return (n, PARTS) digests of (n, H, W, C) images, with 0 for a missing digest, and which images are not blank.

    An image is blank if fewer than 16 pixels, or a quarter of a small image, differ from the median. Blank images can
    be identical in every byte and still belong to different people.
    """
    count, height, width, channels = images.shape
    digests = np.zeros((count, PARTS), np.uint64)
    usable = np.ones(count, np.bool_)
    parts = _parts(height, width)
    used, places = np.unique(np.concatenate([*parts.values(), np.zeros(0, np.int64)]), return_inverse=True)
    ends = np.cumsum([len(pixels) for pixels in parts.values()])
    columns = dict(zip(parts, np.split(places, ends[:-1]), strict=True)) if parts else {}
    step = max(1, _BLOCK // (4 * channels * height * width))
    for start in range(0, count, step):
        piece = np.asarray(images[start : start + step]).reshape(-1, height * width, channels)
        rows = _brightness(piece if len(used) == height * width else piece[:, used])
        for number, pixels in columns.items():
            name = f"{number} of {height * width}" if number < SCATTERED else f"{number} of {height}x{width}"
            digests[start : start + step, number] = _digest_part(rows[:, pixels], name.encode())
        present = digests[start : start + step] > 0
        full = (present[:, :SCATTERED].sum(axis=1) >= MIN_AGREEING) | (
            present[:, SCATTERED:].sum(axis=1) >= MIN_AGREEING
        )
        values = piece[~full].astype(np.float32)  # the others have enough differing pixels in two parts
        off = (values != np.median(values, axis=1, keepdims=True)).any(axis=2).sum(axis=1)
        usable[start : start + step][~full] = off >= _min_differing(height * width, MIN_AGREEING * _MIN_RARE)
    _repeat_few(digests, sum(number < SCATTERED for number in parts))
    return digests, usable


def _brightness(pixels: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return the (n, pixels) brightness of (n, pixels, C) values, unscaled: each part is scaled separately later."""
    values = pixels.astype(np.float32)
    return values @ _LUMINANCE if values.shape[2] == 3 else values[..., 0]


def _parts(height: int, width: int) -> dict[int, NDArray[np.int64]]:
    """List the pixels of each part; scattered parts ignore the shape of the image, as feature rows have none."""
    pixels = height * width
    if pixels < MIN_PIXELS:
        return {}
    count = min(SCATTERED, max(1, pixels // _MIN_PART_PIXELS))
    shuffled = _shuffle(_spread(pixels, 64 * _MAX_PART_PIXELS))
    parts = {number: np.sort(shuffled[number::count][:_MAX_PART_PIXELS]) for number in range(count)}
    if min(height, width) >= 16:
        places = np.arange(pixels).reshape(height, width)
        halves = [(slice(0, side // 2), slice(side // 2, None)) for side in (height, width)]
        for number, (rows, columns) in enumerate(product(*halves), SCATTERED):
            quadrant = places[rows, columns].reshape(-1)
            parts[number] = quadrant[_spread(len(quadrant), _MAX_PART_PIXELS)]
    return parts


def _spread(count: int, limit: int) -> NDArray[np.int64]:
    """Return all numbers from 0 to count - 1, or `limit` of them, evenly spread."""
    return np.arange(count) if count <= limit else np.arange(limit) * count // limit


def _shuffle(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers in the order of a fixed mix of their bits, which does not depend on library versions."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return numbers[np.argsort(mixed, kind="stable")]


def _digest_part(values: NDArray[np.float32], name: bytes) -> NDArray[np.uint64]:
    """Return one digest per row, or 0 if too few of its pixels differ."""
    least = values.min(axis=1, keepdims=True)
    spread = values.max(axis=1, keepdims=True) - least
    scale = _SCALE / np.where(spread > 0, spread, np.float32(1))
    levels = np.floor((values - least) * scale + _SHIFT).astype(np.uint8)
    usual = np.max([(levels == level).sum(axis=1) for level in range(_LEVELS)], axis=0)
    enough = levels.shape[1] - usual >= _min_differing(levels.shape[1], _MIN_RARE)
    start = blake2b(name, digest_size=8, person=b"part of image")
    text, length = levels.tobytes(), levels.shape[1]
    digests = bytearray()
    for first in range(0, len(text), length):
        state = start.copy()
        state.update(text[first : first + length])
        digests += state.digest()
    return np.where(enough, np.frombuffer(bytes(digests), ">u8").astype(np.uint64), np.uint64(0))


def _min_differing(pixels: int, usual: int) -> int:
    """Return how many pixels must differ from the usual value: `usual`, or a quarter if there are few pixels."""
    return min(usual, math.ceil(pixels / 4))


def _repeat_few(digests: NDArray[np.uint64], count: int) -> None:
    """If there are fewer than 4 scattered parts, repeat them, so that a single match is enough."""
    if 0 < count < 4:
        for number in range(count, SCATTERED):
            digests[:, number] = digests[:, number % count]
