"""The fingerprint of a split: it names the records, whatever their order and whatever file they came from.

A second digest names their order as well: coins are drawn by place, so the same records in another order are the same
data set for the ledger, but another training.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise

import numpy as np

from dpvision.data.dataset import Split

_BLOCK = 4 * 2**20
_DIGEST = 32


def fingerprint(split: Split) -> str:
    """Hex BLAKE2b of the multiset of records.

    A record is the image (type, shape and bytes) and its label. With persons, the records of one person are put
    together first, so that what counts is who shares a person and not how the persons are numbered.
    """
    return identify(split)[0]


def identify(split: Split) -> tuple[str, str]:
    """The fingerprint, and the digest of the records in their order; one pass over the images for both."""
    digests = _record_digests(split)
    who = b"" if split.persons is None else np.ascontiguousarray(split.persons, dtype="<i8").tobytes()
    in_order = blake2b(b"".join(digests) + who, digest_size=_DIGEST, person=b"in order").hexdigest()
    return _unordered(split, digests), in_order


def _unordered(split: Split, digests: list[bytes]) -> str:
    if split.persons is None:
        return _combined(b"records", digests).hex()
    order = np.argsort(split.persons, kind="stable")
    ids = np.asarray(split.persons)[order]
    bounds = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    numbers = order.tolist()
    groups = [_combined(b"person", [digests[i] for i in numbers[a:b]]) for a, b in pairwise(bounds)]
    return _combined(b"persons", groups).hex()


def _combined(tag: bytes, digests: list[bytes]) -> bytes:
    """One digest of many in any order. Sorted, not added up: sums can be made to collide."""
    return blake2b(b"".join(sorted(digests)), digest_size=_DIGEST, person=tag).digest()


def _record_digests(split: Split) -> list[bytes]:
    """One digest per record, a block of the (maybe memory-mapped) images at a time."""
    count, *shape = split.images.shape
    dtype = split.images.dtype.newbyteorder("<")
    kind = f"{dtype.str} {shape}".encode().ljust(56, b"\0")
    size = int(np.prod(shape)) * dtype.itemsize
    width = len(kind) + 8 + size
    step = max(1, _BLOCK // width)
    digests: list[bytes] = []
    for start in range(0, count, step):
        images = np.ascontiguousarray(split.images[start : start + step], dtype=dtype)
        rows = np.empty((len(images), width), np.uint8)
        rows[:, : len(kind)] = np.frombuffer(kind, np.uint8)
        labels = np.ascontiguousarray(split.labels[start : start + step], dtype="<i8")
        rows[:, len(kind) : len(kind) + 8] = labels.view(np.uint8).reshape(-1, 8)
        rows[:, len(kind) + 8 :] = images.view(np.uint8).reshape(len(images), size)
        flat = rows.reshape(-1).data
        digests += [blake2b(flat[a : a + width], digest_size=_DIGEST).digest() for a in range(0, len(flat), width)]
    return digests
