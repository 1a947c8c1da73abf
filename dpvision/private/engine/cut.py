"""How many images are worked on at a time: few enough for the memory and its caches, enough for every thread.

The choice depends on shapes only (the model's, the images', the number of views), never on the images themselves.
Results do not depend on it, as long as a unit fits a pass: see exact.py and clipped_sum.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

# What forward passes may keep for their backward passes, and what the units' gradients may take, over all threads.
PASS_BYTES = 2 << 30
ROW_BYTES = 1 << 30
# A thread works best with what a forward pass of this many bytes keeps.
BEST_BYTES = 320 << 20
MOST_IMAGES = 2048
MOST_AT_ONCE = 128  # where each view of a unit passes at weights of its own
# Units fetched at a time where nothing else is asked for.
FETCHED = 1024


class Cut:
    """`physical` images at a time, or as many as suit."""

    def __init__(self, physical: int | None, sizes: Sequence[int]) -> None:
        self._row_bytes = 4 * max(1, sum(sizes))
        self._physical = physical
        self._saved_bytes = 0

    @property
    def images(self) -> int:
        """The most images in one pass."""
        if self._physical is not None:
            return self._physical
        each = min(BEST_BYTES, PASS_BYTES // torch.get_num_threads())
        fitting = max(1, min(MOST_IMAGES, each // max(1, self._saved_bytes)))
        return fitting // 16 * 16 if fitting > 16 else fitting

    def measure(self, saved_bytes: Callable[[], int]) -> None:
        """Once, at the first batch: what a forward pass keeps per image."""
        if not self._saved_bytes:
            self._saved_bytes = max(1, saved_bytes())

    def most(self, images: int, *, copies: int, threads: int) -> tuple[int, int]:
        """The most units and images in a group, such that every thread has one.

        Copies pass one after the other, and a part of what they keep stays until the last has passed: as many as fit
        into memory, since convolutions are slow with few images.
        """
        rows = self._physical or max(1, ROW_BYTES // self._row_bytes // threads)
        share, size = -(-images // threads), self.images
        if copies and self._physical is None:
            size = max(size, min(MOST_AT_ONCE * copies, PASS_BYTES // threads // max(1, self._saved_bytes)))
        return max(1, rows), max(1, copies, min(size, share))

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
