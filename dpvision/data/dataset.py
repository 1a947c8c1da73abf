"""What a source becomes: splits of images with labels, and what was found while reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Records of one split. The arrays have the same length and are never empty."""

    images: np.ndarray
    """(N, H, W, C) with C 1 or 3; uint8, or float32 in [0, 1]; may be memory-mapped and read-only."""
    labels: np.ndarray
    """(N,) int64, an index into the classes."""
    persons: np.ndarray | None
    """(N,) int64 index of the person an image is of; the same person has the same index in every split."""
    originals: np.ndarray | None = None
    """(N, 32) uint8 digests of the images as they were before they were resized or recoloured, or None if they are."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Broken:
    """A file that can not be used. `path` is relative to the source."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """A source that was read and passed every check."""

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split | None
    test: Split | None
    inferred: tuple[str, ...]
    """Public facts read off the private data instead of declared: some of "classes", "image size", "channels"."""
    broken: tuple[Broken, ...] = ()
    """Files that were left out because skip_broken was asked for."""
    skipped_broken: bool = False
    """Whether skip_broken was asked for, now or when a store was packed: files may have been left out."""


@dataclass(frozen=True)
class Findings:
    """What is in a source, for the eyes of its owner: no noise protects it."""

    name: str
    counts: Mapping[str, Mapping[str, int]]
    """split -> class -> readable images."""
    sizes: Mapping[tuple[int, int], int]
    """(height, width) -> readable images."""
    channels: Mapping[int, int]
    """1 or 3 -> readable images."""
    persons: int | None
    """How many different persons are in train, or None where the source does not say."""
    problems: tuple[str, ...]
    """Reasons why `load` would refuse the source as it is, apart from the broken files."""
    broken: tuple[Broken, ...]
