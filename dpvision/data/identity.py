"""What names a split: its fingerprint for the ledger, and a digest of exactly what is trained on.

The fingerprint is that of the images as they came, in any order, whatever file they came from. Labels, persons, the
names of the classes, a new size or other channels do not change it: they are the same people's images, so they have
one ledger. What is trained on is another matter: coins are drawn by place, so order, labels and pixels all count there.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from dpvision.data.dataset import Split

_BLOCK = 4 * 2**20
DIGEST = 32


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
