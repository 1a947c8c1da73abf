"""Which images taught a network: a note in its weights, so that a training can see that none of them is private.

The note has short digests of the images as they came and as they are trained on, in 8 bits: of all of them, or of the
smallest digests where there are very many. It goes from a diffusion model and its guide to samples, from these to parts
and stores made of them, to a model or warm-up that learns from them, and to weights that were trained privately. It
finds the same pixels or files, not images that were encoded anew; a mistake, not somebody who takes it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpvision.core import files

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


def both(notes: Iterable[str]) -> str:
    """One note of what several name."""
    return _text({word for note in notes for word in note.split()})


def among(note: str, images: NDArray[np.generic], originals: Sequence[bytes]) -> int:
    """How many of the images a note names."""
    taught = set(note.split())
    pairs = zip(pixel_digests(images), originals, strict=True)
    return sum(any(digest.hex()[:SHORT] in taught for digest in pair) for pair in pairs)


def noted_beside(source: str) -> str:
    """What the cards beside synthetic images say of those that taught their model; nothing, if there is none."""
    path = Path(source)
    return both(map(_said_by, [_carried(path), *([path.with_suffix(".json")] if path.suffix == ".npz" else [])]))


def carry(source: str, to: Path) -> None:
    """The note beside `source` goes beside what was made of it, too."""
    if noted := noted_beside(source):
        files.write(_carried(to), json.dumps({"learned_from": noted}) + "\n", mode=0o644)


def _carried(path: Path) -> Path:
    return Path(f"{path}.taught_by.json")


def _said_by(card: Path) -> str:
    try:
        said = json.loads(files.read(card, most=MOST_CARD))
        return str(said.get("learned_from", "")) if isinstance(said, dict) else ""
    except (OSError, ValueError, RecursionError):
        return ""


def _text(digests: set[str]) -> str:
    return " ".join(sorted(digests)[:MOST])
