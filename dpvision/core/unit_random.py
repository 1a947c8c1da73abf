"""Random numbers for the views of each unit that do not depend on the rest of the batch.

Formal guarantee: the numbers of an image are a function of (seed, its unit, its number within the unit, the number of
earlier draws, position in the draw) only. So adding or removing a unit, splitting a batch or reordering it does not
change the views of other units. Otherwise one person would move the gradients of all others, and clipping each would
bound nothing. (If units are numbered by their position in the data, removing one renumbers later ones, which changes
nothing in distribution.)

The function is Threefry-2x64 with 20 rounds (Salmon et al. 2011), a cipher-like permutation of a counter under a key of
128 bits; it uses integers only, so its bits are the same on every machine. The key is the seed of one step, drawn from
the run's secret stream and equal on all ranks; the counter is

    word 0    the unit
    word 1    number of the image within the unit (24 bits), draw (12 bits), position in the draw (28 bits, in pairs)

    edge case                                behaviour
    a unit with several images               each has its own number within the unit (`copies`), so its own draws
    the same image twice                     refused: both would get the same numbers
    a draw of no numbers                     counts as a draw
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from dpvision.errors import ConfigError

SEED_BITS = 128
COPY_BITS, DRAW_BITS, POSITION_BITS = 24, 12, 28
WORD = (1 << 64) - 1
ROTATIONS = (16, 42, 12, 31, 16, 32, 24, 21)
PARITY = 0x1BD11BDAA9FC1A22

Words = NDArray[np.uint64]


def threefry(key: tuple[int, int], first: Words, second: Words) -> tuple[Words, Words]:
    """Apply Threefry-2x64-20 under the key to two counter words, elementwise and modulo 2^64."""
    keys = (key[0], key[1], PARITY ^ key[0] ^ key[1])
    a, b = first + np.uint64(keys[0]), second + np.uint64(keys[1])
    for number in range(20):
        turn = ROTATIONS[number % 8]
        a += b
        high = b >> np.uint64(64 - turn)
        b <<= np.uint64(turn)
        b |= high
        b ^= a
        if number % 4 == 3:
            injection = number // 4 + 1
            a += np.uint64(keys[injection % 3])
            b += np.uint64((keys[(injection + 1) % 3] + injection) & WORD)
    return a, b


class UnitRandom:
    """Random numbers for a batch of images: row i of every draw depends only on image i, of unit `units[i]`."""

    def __init__(self, seed: int, units: NDArray[np.int64], copies: NDArray[np.int64] | None = None) -> None:
        units = np.asarray(units)
        copies = np.zeros(units.shape, dtype=np.int64) if copies is None else np.asarray(copies)
        if not 0 <= seed < 1 << SEED_BITS:
            raise ConfigError(f"the seed must be 0 or more and below 2^{SEED_BITS}.")
        if units.ndim != 1 or units.shape != copies.shape or {units.dtype.kind, copies.dtype.kind} - set("iu"):
            raise ConfigError(
                f"units and copies must list one integer per image; they have shapes {units.shape} and {copies.shape} "
                f"and types {units.dtype} and {copies.dtype}."
            )
        if len(units) and (units.min() < 0 or copies.min() < 0 or copies.max() >= 1 << COPY_BITS):
            raise ConfigError(
                f"units, and the images of each, must be numbered from 0, with at most 2^{COPY_BITS} images per unit."
            )
        order = np.lexsort((copies, units))
        if ((np.diff(units[order]) == 0) & (np.diff(copies[order]) == 0)).any():
            raise ConfigError(
                "two images would get the same random numbers: they have the same unit and the same number within it. "
                "Fix: number the images of a unit by `copies`, or use UnitRandom.grouped."
            )
        self._key = (seed & WORD, seed >> 64)
        self._units = units.astype(np.uint64)
        self._copies = copies.astype(np.uint64)
        self._draws = 0

    @staticmethod
    def grouped(seed: int, units: NDArray[np.int64], sizes: Sequence[int]) -> UnitRandom:
        """Create random numbers for units of several consecutive images: units[u] has sizes[u], numbered from 0."""
        if len(units) != len(sizes):
            raise ConfigError(f"there are {len(units)} units and {len(sizes)} sizes: each unit needs one.")
        copies = [np.arange(size, dtype=np.int64) for size in sizes]
        none = np.empty(0, dtype=np.int64)
        return UnitRandom(seed, np.repeat(np.asarray(units), sizes), np.concatenate(copies) if copies else none)

    def __len__(self) -> int:
        return len(self._units)

    def blocks(self, size: int) -> Iterator[tuple[slice, UnitRandom]]:
        """Yield blocks of `size` images that continue this sequence of draws; afterwards it continues after theirs."""
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            block = copy.copy(self)
            block._units, block._copies = self._units[rows], self._copies[rows]
            yield rows, block
        if len(self):
            self._draws = block._draws

    def uniform(self, *shape: int) -> Tensor:
        """Draw (images, *shape) float64 numbers from [0, 1), multiples of 2^-53."""
        return torch.from_numpy((self._words(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def beta(self, alpha: float, *shape: int) -> Tensor:
        """Draw (images, *shape) float64 numbers from Beta(alpha, alpha), by its inverse distribution function."""
        return torch.from_numpy(special.betaincinv(alpha, alpha, self._open(shape)))

    def integers(self, high: int, *shape: int) -> Tensor:
        """Draw (images, *shape) integers from 0 to high - 1, with equal probabilities up to high * 2^-53."""
        if not 1 <= high <= 1 << 32:
            raise ConfigError(f"high is {high}: it must be from 1 to 2^32.")
        return (self.uniform(*shape) * high).long()

    def _open(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw numbers from the open interval (0, 1), odd multiples of 2^-53, so that no inverse is infinite."""
        return ((self._words(shape) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def _words(self, shape: tuple[int, ...]) -> Words:
        """Draw (images, *shape) random words."""
        count = math.prod(shape)
        pairs = (count + 1) // 2
        if self._draws >= 1 << DRAW_BITS or pairs > 1 << POSITION_BITS:
            raise ConfigError(f"each image has at most 2^{DRAW_BITS} draws of at most 2^{POSITION_BITS + 1} numbers.")
        place = (self._copies << np.uint64(DRAW_BITS)) | np.uint64(self._draws)
        second = (place << np.uint64(POSITION_BITS))[:, None] | np.arange(pairs, dtype=np.uint64)
        first = np.broadcast_to(self._units[:, None], second.shape)
        self._draws += 1
        both = np.stack(threefry(self._key, first, second), axis=2)
        return both.reshape(len(self), 2 * pairs)[:, :count].reshape(len(self), *shape)
