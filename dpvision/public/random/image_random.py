"""Random numbers that belong to one image of one process: whoever else is drawn, and on how many cores, it stays.

Single numbers, for processes that draw functions, are Python's: they leave arrays of floats what they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.random import Generator, Philox

T = TypeVar("T")


@dataclass(frozen=True)
class ImageRandom:
    """Of image `index` of a process under `seed`."""

    process: str
    seed: int
    index: int

    def own(self, purpose: str = "") -> Generator:
        """Of this image alone; other purposes are independent."""
        return self._generator("image", self.index, purpose)

    def shared(self, every: int, purpose: str = "") -> Generator:
        """Of all images whose index has the same quotient by `every`."""
        return self._generator(f"every {every}", self.index // every, purpose)

    def of(self, process: str) -> ImageRandom:
        """Of the same image in another process, for processes that are made of others."""
        return ImageRandom(f"{self.process}/{process}", self.seed, self.index)

    def _generator(self, kind: str, number: int, purpose: str) -> Generator:
        name = repr((self.process, self.seed, kind, number, purpose)).encode()
        return Generator(Philox(key=np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), dtype="<u8")))


def between(rng: Generator, low: float, high: float) -> float:
    """Evenly."""
    return low + (high - low) * rng.random()


def scale(rng: Generator, low: float, high: float) -> float:
    """Evenly in the logarithm."""
    return float(low * (high / low) ** rng.random())


def whole(rng: Generator, low: int, high: int) -> int:
    """A whole number, both ends included."""
    return low + int((high - low + 1) * rng.random())


def heads(rng: Generator, share: float = 0.5) -> bool:
    return bool(rng.random() < share)


def one_of(rng: Generator, these: Sequence[T]) -> T:
    return these[int(len(these) * rng.random())]
