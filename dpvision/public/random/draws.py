"""Single numbers, for processes that draw functions. They are Python's, which leave arrays of floats what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from numpy.random import Generator

T = TypeVar("T")


def between(toss: Generator, low: float, high: float) -> float:
    """Evenly."""
    return low + (high - low) * toss.random()


def scale(toss: Generator, low: float, high: float) -> float:
    """Evenly in the logarithm."""
    return float(low * (high / low) ** toss.random())


def whole(toss: Generator, low: int, high: int) -> int:
    """A whole number, both ends included."""
    return low + int((high - low + 1) * toss.random())


def heads(toss: Generator, share: float = 0.5) -> bool:
    return bool(toss.random() < share)


def one_of(toss: Generator, these: Sequence[T]) -> T:
    return these[int(len(these) * toss.random())]
