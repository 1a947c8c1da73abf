"""Single numbers for the processes that are written as drawn functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.random import Generator

T = TypeVar("T")


def between(toss: Generator, low: float, high: float) -> np.float32:
    """Evenly."""
    return np.float32(low + (high - low) * toss.random())


def scale(toss: Generator, low: float, high: float) -> np.float32:
    """Evenly in the logarithm."""
    return np.float32(low * (high / low) ** toss.random())


def whole(toss: Generator, low: int, high: int) -> int:
    """A whole number, both ends included."""
    return low + int((high - low + 1) * toss.random())


def heads(toss: Generator, share: float = 0.5) -> bool:
    return bool(toss.random() < share)


def one_of(toss: Generator, these: Sequence[T]) -> T:
    return these[int(len(these) * toss.random())]
