"""What a source becomes: splits of images with labels, what names a split, and what was found while reading it.

The fingerprint of a split, by which it has its ledger, is that of the images as they came, in any order, whatever file
they came from. Labels, persons, the names of the classes, a new size or other channels do not change it: they are the
same people's images, so they have one ledger. What is trained on is another matter: random draws are made by place, so
order, labels and pixels all count in the digest of exactly that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

SPLITS = ("train", "val", "test")
DIGEST = 32
_BLOCK = 4 * 2**20


def fingerprint(split: Split) -> str:
    """Hex BLAKE2b of the multiset of images. Sorted, not added up: sums can be made to collide."""
    return identify(split)[0]


def identify(split: Split) -> tuple[str, str, list[bytes]]:
    """The fingerprint, the digest of the records in their order, and the images' own digests; in one pass."""
    digests = list(_image_digests(split.images))
    numbers = [split.labels] if split.persons is None else [split.labels, split.persons]
    exact = blake2b(b"".join(digests), digest_size=DIGEST, person=b"in order")
    for values in numbers:
        exact.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
    if split.originals is not None:
        digests = [bytes(row) for row in split.originals]
    unordered = blake2b(b"".join(sorted(digests)), digest_size=DIGEST, person=b"images").hexdigest()
    return unordered, exact.hexdigest(), digests


def image_digest(image: np.ndarray) -> bytes:
    """Digest of one image (H, W, C): type, shape and bytes."""
    return next(_image_digests(image[None]))


def _image_digests(images: np.ndarray) -> Iterator[bytes]:
    """One digest per image, a block of the (maybe memory-mapped) images at a time."""
    count, *shape = images.shape
    dtype = images.dtype.newbyteorder("<")
    kind = f"{dtype.str} {shape}".encode().ljust(56, b"\0")
    size = int(np.prod(shape)) * dtype.itemsize
    step = max(1, _BLOCK // size)
    start_state = blake2b(kind, digest_size=DIGEST)
    for start in range(0, count, step):
        block = np.ascontiguousarray(images[start : start + step], dtype=dtype).reshape(-1).view(np.uint8).data
        for first in range(0, len(block), size):
            state = start_state.copy()
            state.update(block[first : first + size])
            yield state.digest()


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
    """A file that cannot be used. `path` is relative to the source."""

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
    """What is in a source. Not for release: no noise protects it."""

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
