"""How many images are worked on at a time: few enough for the memory and its caches, the same in every run.

The choice depends on shapes only (the model's, the images', the number of views), never on the data or on a clock, so
that a resumed run is cut as before. Results do not depend on it: see exact.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

# What a forward pass may keep for its backward pass, and what the units' gradients may take.
PASS_BYTES = 120 << 20
ROW_BYTES = 384 << 20
MOST_IMAGES = 1024
FETCHED = 256


class Cut:
    """`physical` images at a time, or as many as suit."""

    def __init__(self, physical: int | None, sizes: Sequence[int]) -> None:
        self._row_bytes = 4 * max(1, sum(sizes))
        self._physical = physical
        self.images = max(1, physical or 1)
        self._measured = physical is not None

    def measure(self, saved_bytes: Callable[[], int]) -> None:
        """Once, at the first batch: how many images' activations fit."""
        if not self._measured:
            fitting = max(1, min(MOST_IMAGES, PASS_BYTES // max(1, saved_bytes())))
            self.images = fitting // 16 * 16 if fitting > 16 else fitting
            self._measured = True

    def units(self, copies: int) -> int:
        """The most units at a time."""
        if self._physical is not None:
            return self._physical
        return max(1, min(MOST_IMAGES, ROW_BYTES // self._row_bytes))

    @property
    def capacity(self) -> int:
        return 1

    @property
    def part(self) -> int:
        """How many units to fetch at a time; never changes."""
        return self._physical or FETCHED


def groups(views: Sequence[int], most_units: int, most_images: int) -> list[tuple[int, int]]:
    """Cut the units into (first, last) with at most so many units and images; a larger unit stands alone."""
    ends = list(accumulate(views, initial=0))
    found = []
    first = 0
    while first < len(views):
        last = max(first + 1, bisect_right(ends, ends[first] + most_images) - 1)
        last = min(last, first + most_units)
        found.append((first, last))
        first = last
    return found
