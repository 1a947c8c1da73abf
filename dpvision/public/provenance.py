"""The note of which images something public learned from, so that a training can see that none of them is private.

It is the entry `learned_from` of a header or a card: short digests of the images as they came and as they are trained
on, in 8 bits: of all of them, or of the smallest digests where there are very many. It goes from a diffusion model and
its guide to samples, from these to parts and stores made of them, to a model or warm-up that learns from them, and to
weights that were trained privately. It finds the same pixels or files, not images that were encoded again; a mistake,
not somebody who takes it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.data import Split, identify
from dpvision.storage import safetensors

LEARNED_FROM = "learned_from"  # its name on disk
MOST, SHORT = 1 << 16, 16  # digests in a note, and hexadecimal digits of each
MOST_CARD = 16 << 20


def pixel_digests(images: NDArray[np.generic]) -> list[bytes]:
    found = []
    for start in range(0, len(images), 1024):
        part = np.asarray(images[start : start + 1024])
        if part.dtype != np.uint8:
            part = np.round(np.clip(part, 0, 1) * 255).astype(np.uint8)
        found += [blake2b(image.tobytes(), digest_size=16).digest() for image in part]
    return found


def note(images: NDArray[np.generic], originals: Iterable[bytes] = ()) -> str:
    """Of all images, and of the digests of what they were made of."""
    return _text({digest.hex()[:SHORT] for digest in (*pixel_digests(images), *originals)})


def joined(notes: Iterable[str]) -> str:
    """One note of what several name."""
    return _text({word for note in notes for word in note.split()})


def count(note: str, images: NDArray[np.generic], originals: Sequence[bytes]) -> int:
    """How many of the images a note names."""
    named = set(note.split())
    pairs = zip(pixel_digests(images), originals, strict=True)
    return sum(any(digest.hex()[:SHORT] in named for digest in pair) for pair in pairs)


def of_source(source: str, split: Split) -> str:
    """Of the images that these are, or were made of."""
    return joined((note(split.images[:0], identify(split)[2]), of_synthetic(source)))


def of_weights(path: Path) -> str:
    """What a file of weights has; nothing, if it has none."""
    return safetensors.read_header(path).get(LEARNED_FROM, "")


def of_synthetic(source: str) -> str:
    """What the cards next to synthetic images have, of those that their model learned from; nothing, without a card."""
    path = Path(source)
    return joined(map(_of_card, [_card(path), *([path.with_suffix(".json")] if path.suffix == ".npz" else [])]))


def pass_on(source: str, to: Path) -> None:
    """The note next to `source` goes next to what was made of it, too."""
    if found := of_synthetic(source):
        files.write(_card(to), json.dumps({LEARNED_FROM: found}) + "\n", mode=0o644)


def _card(path: Path) -> Path:
    return Path(f"{path}.taught_by.json")


def _of_card(card: Path) -> str:
    try:
        read = json.loads(files.read(card, most=MOST_CARD))
        return str(read.get(LEARNED_FROM, "")) if isinstance(read, dict) else ""
    except (OSError, ValueError, RecursionError):
        return ""


def _text(digests: set[str]) -> str:
    return " ".join(sorted(digests)[:MOST])
