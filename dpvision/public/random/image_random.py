"""Random numbers for one image of one process, which do not depend on the other images drawn or on the machine.

The functions below draw Python scalars, so that arithmetic with them preserves the dtype of an array.
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
        """Return a generator for this image alone. Different purposes give independent generators."""
        return self._generator("image", self.index, purpose)

    def group_generator(self, every: int, purpose: str = "") -> Generator:
        """Return a generator shared by the group of `every` consecutive images that contains this one."""
        return self._generator(f"every {every}", self.index // every, purpose)

    def group_start(self, every: int) -> ImageRandom:
        """Return the random numbers of the first image in the group of `every` images that contains this one."""
        return replace(self, index=self.index - self.index % every)

    def for_process(self, process: str) -> ImageRandom:
        """Return the random numbers of this image for another process, of which this process is composed."""
        return replace(self, process=f"{self.process}/{process}")

    def _generator(self, kind: str, number: int, purpose: str) -> Generator:
        name = repr((self.process, self.seed, kind, number, purpose)).encode()
        return Generator(Philox(key=np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), dtype="<u8")))


def uniform(rng: Generator, low: float, high: float) -> float:
    """Draw uniformly from [low, high)."""
    return low + (high - low) * rng.random()


def log_uniform(rng: Generator, low: float, high: float) -> float:
    """Draw from the log-uniform distribution on [low, high)."""
    return float(low * (high / low) ** rng.random())


def integer(rng: Generator, low: int, high: int) -> int:
    """Draw a uniform integer from low to high, inclusive."""
    return low + int((high - low + 1) * rng.random())


def bernoulli(rng: Generator, probability: float = 0.5) -> bool:
    """Draw True with this probability."""
    return bool(rng.random() < probability)


def choose(rng: Generator, options: Sequence[T]) -> T:
    """Draw one of the options uniformly."""
    return options[int(len(options) * rng.random())]
