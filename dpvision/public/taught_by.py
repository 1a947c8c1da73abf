"""Which images taught a network: a note in its weights, so that a training can see that none of them is private.

The note has short digests of the images as they are trained on, in 8 bits, whatever they came as: of all of them, or of
the smallest digests where there are very many. It finds the same pixels, not images that were encoded anew, and nothing
that was learned by way of synthetic images.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

MOST, SHORT = 1 << 16, 16  # digests in a note, and hexadecimal digits of each


def pixel_digests(images: NDArray[np.generic]) -> list[bytes]:
    found = []
    for start in range(0, len(images), 1024):
        part = np.asarray(images[start : start + 1024])
        if part.dtype != np.uint8:
            part = np.round(np.clip(part, 0, 1) * 255).astype(np.uint8)
        found += [blake2b(image.tobytes(), digest_size=16).digest() for image in part]
    return found


def note(sources: Iterable[NDArray[np.generic]]) -> str:
    """Of all images of some sources."""
    every = {digest.hex()[:SHORT] for images in sources for digest in pixel_digests(images)}
    return " ".join(sorted(every)[:MOST])


def among(said: str, images: NDArray[np.generic]) -> int:
    """How many of the images a note names."""
    taught = set(said.split())
    return sum(digest.hex()[:SHORT] in taught for digest in pixel_digests(images))
