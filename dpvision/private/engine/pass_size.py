"""The number of images in one pass.

On the CPU, the size of a pass suits the memory and the caches and gives every thread a group. It depends only on shapes
(of the model, of the images, the number of views), never on the images themselves. Results do not depend on it as long
as a unit fits in a pass: see exact.py and clipped_sum.py.

On an accelerator, libraries choose kernels by the sizes of their inputs, so every pass has the same size: a number of
units, each with the same number of images, which is the number of views times a power of two. Units with fewer images
are padded with copies of their own images, which have weight zero in the mean; blank units with factor zero fill the
other slots.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dpvision.models.device import total_memory

# Bytes that forward passes may store for their backward passes, and that gradients may use, over all threads.
PASS_BYTES = 2 << 30
ROW_BYTES = 1 << 30
# A thread is fastest with passes whose forward part stores this many bytes.
BEST_BYTES = 320 << 20
MAX_IMAGES = 2048
MAX_UNITS_OF_COPIES = 128  # if each view of a unit is differentiated at its own weights
# Units fetched at a time if no physical batch size is set.
FETCHED = 1024
# On an accelerator: images in a pass, images in a float64 pass (used by `certify`), and the share of memory for a pass.
MAX_IMAGES_BATCHED, MAX_IMAGES_FLOAT64, MEMORY_SHARE = 1024, 32, 0.5
# Memory that a backward pass needs relative to what the forward pass stores, and gradients relative to their size.
BACKWARD, OF_ROWS = 2, 2


class PassSize:
    """Determines the number of images in a pass: `physical`, or what suits the memory and, on the CPU, the caches."""

    def __init__(
        self,
        physical: int | None,
        sizes: Sequence[int],
        *,
        like: Tensor,
        views: int = 1,
        batch: int | None = None,
    ) -> None:
        self._row_bytes = 4 * max(1, sum(sizes))
        self._physical, self._views, self._batch = physical, views, batch
        self._device, self._dtype = like.device, like.dtype
        self.batched = like.device.type != "cpu"
        self._saved_bytes = 0

    @property
    def images(self) -> int:
        """The maximum number of images in one pass; on an accelerator, the number in every pass."""
        if self.batched:
            return self._images_per_batch()
        if self._physical is not None:
            return self._physical
        memory = min(BEST_BYTES, PASS_BYTES // torch.get_num_threads())
        fitting = max(1, min(MAX_IMAGES, memory // max(1, self._saved_bytes)))
        return fitting // 16 * 16 if fitting > 16 else fitting

    def _images_per_batch(self) -> int:
        """Return the number of images in every pass: a whole number of units that fits the device's memory."""
        if self._physical is not None:
            images = self._physical // self._views * self._views or self._physical
        else:
            unit = self._views * BACKWARD * self._saved_bytes + OF_ROWS * self._row_bytes
            units = min(MAX_IMAGES_BATCHED // self._views, int(MEMORY_SHARE * total_memory(self._device)) // unit)
            if self._batch is not None:
                units = min(units, 2 * self._batch - 1)
            images = self._views * _power_of_two(units)
        return images if self._dtype == torch.float32 else min(images, max(self._views, MAX_IMAGES_FLOAT64))

    def measure(self, saved_bytes: Callable[[], int]) -> None:
        """Measure, on the first call only, how many bytes a forward pass stores per image."""
        if not self._saved_bytes:
            self._saved_bytes = max(1, saved_bytes())

    def limits(self, images: int, *, copies: int, threads: int) -> tuple[int, int]:
        """Return the maximum numbers of units and images in a group, such that every thread has a group.

        Views at their own weights pass one after the other, and a part of what they store stays until the last one. A
        group has as many units as fit into memory, since convolutions are slow with few images.
        """
        rows = self._physical or max(1, ROW_BYTES // self._row_bytes // threads)
        share, size = -(-images // threads), self.images
        if copies and self._physical is None:
            size = max(size, min(MAX_UNITS_OF_COPIES * copies, PASS_BYTES // threads // max(1, self._saved_bytes)))
        return max(1, rows), max(1, copies, min(size, share))

    def full_passes(self, views: Sequence[int], *, copies: int) -> Iterator[tuple[list[int], int, int]]:
        """Yield the units of each pass on an accelerator, the number of slots for units, and the images per slot."""
        by_size: dict[int, list[int]] = {}
        for unit, images in enumerate(views):
            by_size.setdefault(copies or self._padded_size(images), []).append(unit)
        for size, units in sorted(by_size.items()):
            places = max(1, self.images // size)
            for start in range(0, len(units), places):
                yield units[start : start + places], places, size

    def _padded_size(self, images: int) -> int:
        """Return the number of images to which a unit is padded: whole passes if it is larger than one."""
        if images > self.images:
            return -(-images // self.images) * self.images
        size = self._views
        while size < images:
            size *= 2
        return min(size, self.images)

    @property
    def units_at_a_time(self) -> int:
        """The number of units, or of images, to fetch at a time; constant once the pass is planned."""
        if self.batched and (self._physical or self._saved_bytes):
            return self.images * max(1, FETCHED // self.images if self._physical is None else 1)
        return self._physical or FETCHED


def divide(views: Sequence[int], max_units: int, max_images: int) -> list[tuple[int, int]]:
    """Divide the units into ranges (first, end) within both limits; a unit with more images forms its own range."""
    ends = list(accumulate(views, initial=0))
    ranges = []
    first = 0
    while first < len(views):
        last = max(first + 1, bisect_right(ends, ends[first] + max_images) - 1)
        last = min(last, first + max_units)
        ranges.append((first, last))
        first = last
    return ranges


def _power_of_two(limit: int) -> int:
    """Return the largest power of two that is at most `limit`, and at least 1."""
    return 1 << max(0, max(1, limit).bit_length() - 1)
