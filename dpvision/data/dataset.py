"""A data set in memory: splits of images with labels, their fingerprints, and what was found while reading a source.

The fingerprint of a split names its ledger. It depends only on the original images, in any order and any file format.
Labels, persons, class names, a new size or other channels do not change it: the images are of the same people, so they
have one ledger. Training draws random numbers by position, so a second digest also depends on the order, the labels and
the pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from dpvision.errors import DataError

SPLITS = ("train", "val", "test")
DIGEST = 32
UNKNOWN = -1  # a label that nobody has stated, of several per image
_BLOCK = 4 * 2**20


def fingerprint(split: Split) -> str:
    """Return the hex BLAKE2b of the multiset of images. Digests are sorted, not added: sums can be made to collide."""
    return identify(split)[0]


def identify(split: Split) -> tuple[str, str, list[bytes]]:
    """Return the fingerprint, the digest of the records in order, and the digest of each image, all in one pass."""
    digests = list(_image_digests(split.images))
    numbers = [split.labels] if split.persons is None else [split.labels, split.persons]
    ordered = blake2b(b"".join(digests), digest_size=DIGEST, person=b"in order")
    for values in numbers:
        if values.ndim > 1:  # two labels are not a label and a person
            ordered.update(f"labels {values.shape}".encode())
        ordered.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
    if split.originals is not None:
        digests = [bytes(row) for row in split.originals]
    unordered = blake2b(b"".join(sorted(digests)), digest_size=DIGEST, person=b"images").hexdigest()
    return unordered, ordered.hexdigest(), digests


def image_digest(image: np.ndarray) -> bytes:
    """Return the digest of one image (H, W, C): its type, shape and bytes."""
    return next(_image_digests(image[None]))


def _image_digests(images: np.ndarray) -> Iterator[bytes]:
    """Yield one digest per image, reading a block of the (possibly memory-mapped) images at a time."""
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
    """(N,) int64, an index into the classes; with several labels per image (N, labels) int8: 1, 0, or -1 if unknown."""
    persons: np.ndarray | None
    """(N,) int64 index of the person an image is of; the same person has the same index in every split."""
    originals: np.ndarray | None = None
    """(N, 32) uint8 digests of the images before they were resized or recoloured, or None if they are the originals."""
    groups: np.ndarray | None = None
    """(N,) names of the group of each image: of the test split alone, and only if a column of groups was asked for."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Broken:
    """A file that cannot be used. `path` is relative to the source."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """A source that has been read and has passed every check."""

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split | None
    test: Split | None
    inferred: tuple[str, ...]
    """Which of "classes", "image size" and "channels" were inferred from the private data instead of declared."""
    broken: tuple[Broken, ...] = ()
    """Files that `skip_broken` left out."""
    skipped_broken: bool = False
    """Whether `skip_broken` was set, now or when a store was packed: files may have been left out."""
    test_share: float | None = None
    """The share that was set aside as the test split, or None if the source names its splits."""
    notes: tuple[str, ...] = ()
    """What the user should know about how the source was read; nothing in it is a private number."""
    task: str = "classes"
    """What the labels are: "classes", "labels" (several per image, whose names are the classes) or "grades"."""

    @property
    def splits(self) -> dict[str, Split]:
        """The splits by name, without those that the source lacks."""
        return {name: split for name in SPLITS if (split := getattr(self, name)) is not None}

    def require_split(self, name: str, *, source: object) -> Split:
        """Return one split, or raise a DataError if the source lacks it."""
        if name not in self.splits:
            raise DataError(
                f"{source}: has no {name} split. Fix: use --split {' or '.join(self.splits)}, or data with one."
            )
        return self.splits[name]


@dataclass(frozen=True)
class Findings:
    """What is in a source. Not for release: no noise protects it."""

    name: str
    counts: Mapping[str, Mapping[str, int]]
    """split -> class -> readable images."""
    sizes: Mapping[tuple[int, int], int]
    """(height, width) -> readable images, the most frequent size first."""
    size: tuple[int, int] | None
    """The (height, width) to which `load` would bring them; None if no image is readable."""
    channels: Mapping[int, int]
    """1 or 3 -> readable images."""
    persons: int | None
    """Number of different persons in train, or None if the source does not name persons."""
    problems: tuple[str, ...]
    """Reasons why `load` would refuse the source, apart from broken files."""
    broken: tuple[Broken, ...]
    notes: tuple[str, ...] = ()
    """What `load` would note."""


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """A batch of images without labels, in order."""

    names: list[str]
    problems: list[str | None]
    """For each name the reason why its file cannot be read, or None."""
    images: np.ndarray
    """(N, H, W, C) of the readable files."""
    total: int
    """Number of names in all batches together."""
