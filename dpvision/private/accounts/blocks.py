"""Digests of parts of an image that stay the same when it is saved in another format or edited in a few pixels.

The brightness of an image (colour images: the usual weighted sum of red, green and blue) is cut into parts in two ways:
8 scattered parts, each with every eighth pixel of a fixed shuffle, and the 4 quadrants. The values of a part are scaled
to its own least and largest value, rounded to 8 levels and hashed. So a part has the same digest in every type and
range of values (uint8, floats in [0, 1] or [-1, 1]), as a grey image and as its copy in RGB, whatever happens outside.

Two images count as the same when two scattered parts or two quadrants agree. A few changed pixels leave most scattered
parts as they were; a stamp in a corner leaves three quadrants. Parts with fewer than 8 pixels off their most frequent
level have no digest: blank and nearly blank parts would all agree. benchmarks/overlap.py measures how often different
images are taken for the same.

Digests are one-way (BLAKE2b, 64 bits), but whoever has an image can find out whether it was among them. They are kept
in the operator's home folder, next to the ledgers, readable by their owner only.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from itertools import product

import numpy as np
from numpy.typing import NDArray

SCATTERED, QUADRANTS = 8, 4
PARTS = SCATTERED + QUADRANTS
AGREEING = 2  # scattered parts, or quadrants, of two images that are the same
FEWEST_PIXELS = 16  # of an image that is cut into parts at all
_IN_A_PART = 32  # pixels at least: smaller images have fewer scattered parts
_LEVELS = 8
_RARE = 8  # pixels that are not of the most frequent level, or a quarter of a small part
# Not fractions of small whole numbers, so that the rounding of a type does not decide on a level.
_SCALE, _SHIFT = np.float32(0.9917 * _LEVELS), np.float32(0.00417)
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
_MAX_IN_A_PART = 1024  # pixels: of large images, a sample of each part is enough
_BLOCK = 32 << 20  # bytes of brightness at a time


def digest_blocks(images: NDArray[np.generic]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """(n, PARTS) digests of (n, H, W, C) images, 0 where there is none; and which images are not blank.

    An image is blank where fewer than 16 pixels, or a quarter of a small image, differ from most of it: then even
    images that are the same in every byte may be of different people.
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
        full = (present[:, :SCATTERED].sum(axis=1) >= AGREEING) | (present[:, SCATTERED:].sum(axis=1) >= AGREEING)
        values = piece[~full].astype(np.float32)  # the others have enough such pixels in two parts
        off = (values != np.median(values, axis=1, keepdims=True)).any(axis=2).sum(axis=1)
        usable[start : start + step][~full] = off >= _fewest(height * width, AGREEING * _RARE)
    _repeat_few(digests, sum(number < SCATTERED for number in parts))
    return digests, usable


def _brightness(pixels: NDArray[np.generic]) -> NDArray[np.float32]:
    """(n, pixels) of (n, pixels, C), in the scale of the given values: parts are scaled later, each by itself."""
    values = pixels.astype(np.float32)
    return values @ _LUMINANCE if values.shape[2] == 3 else values[..., 0]


def _parts(height: int, width: int) -> dict[int, NDArray[np.int64]]:
    """The pixels of each part. Scattered ones depend on the number of pixels alone: rows of features have no shape."""
    pixels = height * width
    if pixels < FEWEST_PIXELS:
        return {}
    count = min(SCATTERED, max(1, pixels // _IN_A_PART))
    shuffled = _shuffle(_spread(pixels, 64 * _MAX_IN_A_PART))
    parts = {number: np.sort(shuffled[number::count][:_MAX_IN_A_PART]) for number in range(count)}
    if min(height, width) >= 16:
        places = np.arange(pixels).reshape(height, width)
        halves = [(slice(0, side // 2), slice(side // 2, None)) for side in (height, width)]
        for number, (rows, columns) in enumerate(product(*halves), SCATTERED):
            quadrant = places[rows, columns].reshape(-1)
            parts[number] = quadrant[_spread(len(quadrant), _MAX_IN_A_PART)]
    return parts


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """All of 0 to count - 1, or `most` of them, evenly spread."""
    return np.arange(count) if count <= most else np.arange(most) * count // most


def _shuffle(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers in the order of a fixed mix of their bits, which no version of a library changes."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return numbers[np.argsort(mixed, kind="stable")]


def _digest_part(values: NDArray[np.float32], name: bytes) -> NDArray[np.uint64]:
    """One digest per row, 0 where too few pixels differ."""
    least = values.min(axis=1, keepdims=True)
    spread = values.max(axis=1, keepdims=True) - least
    scale = _SCALE / np.where(spread > 0, spread, np.float32(1))
    levels = np.floor((values - least) * scale + _SHIFT).astype(np.uint8)
    usual = np.max([(levels == level).sum(axis=1) for level in range(_LEVELS)], axis=0)
    enough = levels.shape[1] - usual >= _fewest(levels.shape[1], _RARE)
    start = blake2b(name, digest_size=8, person=b"part of image")
    text, length = levels.tobytes(), levels.shape[1]
    digests = bytearray()
    for first in range(0, len(text), length):
        state = start.copy()
        state.update(text[first : first + length])
        digests += state.digest()
    return np.where(enough, np.frombuffer(bytes(digests), ">u8").astype(np.uint64), np.uint64(0))


def _fewest(pixels: int, usual: int) -> int:
    """The number of pixels that must differ from most: the usual one, or a quarter where there are few pixels."""
    return min(usual, math.ceil(pixels / 4))


def _repeat_few(digests: NDArray[np.uint64], count: int) -> None:
    """Repeat fewer than 4 scattered parts, so that one of them that agrees is enough."""
    if 0 < count < 4:
        for number in range(count, SCATTERED):
            digests[:, number] = digests[:, number % count]
