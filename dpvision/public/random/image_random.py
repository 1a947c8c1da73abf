"""Random numbers that belong to one image of one process, independent of which other images are drawn and where.

Scalars drawn by the functions below are Python numbers, so arithmetic with them keeps the dtype of an array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.random import Generator, Philox

T = TypeVar("T")


@dataclass(frozen=True)
class ImageRandom:
    """The random numbers of image `index` of a process under `seed`."""

    process: str
    seed: int
    index: int

    def generator(self, purpose: str = "") -> Generator:
        """A generator for this image alone. Different purposes give independent generators."""
        return self._generator("image", self.index, purpose)

    def group_generator(self, every: int, purpose: str = "") -> Generator:
        """A generator shared by the group of `every` consecutive images that contains this one."""
        return self._generator(f"every {every}", self.index // every, purpose)

    def group_start(self, every: int) -> ImageRandom:
        """The first image of that group."""
        return replace(self, index=self.index - self.index % every)

    def for_process(self, process: str) -> ImageRandom:
        """The same image in another process, for processes that are composed of others."""
        return replace(self, process=f"{self.process}/{process}")

    def _generator(self, kind: str, number: int, purpose: str) -> Generator:
        name = repr((self.process, self.seed, kind, number, purpose)).encode()
        return Generator(Philox(key=np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), dtype="<u8")))


def uniform(rng: Generator, low: float, high: float) -> float:
    """Draw uniformly from [low, high)."""
    return low + (high - low) * rng.random()


def log_uniform(rng: Generator, low: float, high: float) -> float:
    """Draw from [low, high) with a uniform logarithm."""
    return float(low * (high / low) ** rng.random())


def integer(rng: Generator, low: int, high: int) -> int:
    """Draw an integer from low to high, both included."""
    return low + int((high - low + 1) * rng.random())


def bernoulli(rng: Generator, probability: float = 0.5) -> bool:
    """Draw True with this probability."""
    return bool(rng.random() < probability)


def choose(rng: Generator, options: Sequence[T]) -> T:
    """Draw one of the options."""
    return options[int(len(options) * rng.random())]
