"""Provenance: a record of the images that public weights or images derive from, so that no private image is among them.

A record is a string of short digests of the original image files and of the 8-bit pixels used for training. If there
are very many, only the smallest digests are kept. The record is stored in the entry `learned_from` of a header or card.
It is passed on from a diffusion model and its guide to their samples, from samples to splits and stores made of them,
to models and warm-ups trained on them, and to weights that are then trained privately. It recognises identical pixels
or files, but not re-encoded images: it prevents mistakes, not deliberate removal.
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
from dpvision.errors import DataError
from dpvision.storage import safetensors

ENTRY = "learned_from"  # its name in headers and cards
MAX_DIGESTS, DIGITS = 1 << 16, 16  # digests in a record, and hexadecimal digits of each
MAX_CARD_BYTES = 16 << 20


def pixel_digests(images: NDArray[np.generic]) -> list[bytes]:
    """Return a digest of the 8-bit pixels of each image."""
    digests = []
    for start in range(0, len(images), 1024):
        block = np.asarray(images[start : start + 1024])
        if block.dtype != np.uint8:
            block = np.round(np.clip(block, 0, 1) * 255).astype(np.uint8)
        digests += [blake2b(image.tobytes(), digest_size=16).digest() for image in block]
    return digests


def provenance_of(images: NDArray[np.generic], originals: Iterable[bytes] = ()) -> str:
    """Return the record of these images, and of the originals they were made from, given the originals' digests."""
    return _text({digest.hex()[:DIGITS] for digest in (*pixel_digests(images), *originals)})


def merge_provenance(records: Iterable[str]) -> str:
    """Merge several records into one."""
    return _text({digest for record in records for digest in record.split()})


def count_matches(provenance: str, images: NDArray[np.generic], originals: Sequence[bytes]) -> int:
    """Count the images that are in the record, either by their pixels or by the digest of their original."""
    recorded = set(provenance.split())
    pairs = zip(pixel_digests(images), originals, strict=True)
    return sum(any(digest.hex()[:DIGITS] in recorded for digest in pair) for pair in pairs)


def provenance_of_source(source: str, split: Split) -> str:
    """Return the record of the images of a source, and of the images they were synthesised from."""
    return merge_provenance((provenance_of(split.images[:0], identify(split)[2]), read_card_provenance(source)))


def read_provenance(weights: Path) -> str:
    """Return the record in the header of a weight file; empty if it has none."""
    return safetensors.read_header(weights).get(ENTRY, "")


def read_card_provenance(source: str) -> str:
    """Return the record in the cards next to synthetic images; empty if there is no card."""
    path = Path(source)
    own = path.with_suffix(".json")  # the card of samples; next to other arrays it may be any file
    return merge_provenance(
        (_read_card(_card_path(path)), _read_card(own, ours=False) if path.suffix == ".npz" else "")
    )


def copy_provenance(source: str, to: Path) -> None:
    """Copy the record next to `source`, if there is one, to a card next to `to`, which was made from it."""
    if provenance := read_card_provenance(source):
        files.write(_card_path(to), json.dumps({ENTRY: provenance}) + "\n", mode=0o644)


def _card_path(path: Path) -> Path:
    return Path(f"{path}.taught_by.json")


def _read_card(path: Path, *, ours: bool = True) -> str:
    """Read the record in a card. If the card is `ours`, an unreadable one is an error."""
    if not path.exists():
        return ""
    try:
        card = json.loads(files.read(path, most=MAX_CARD_BYTES))
        return str(card.get(ENTRY, "")) if isinstance(card, dict) else ""
    except (OSError, ValueError, RecursionError) as exc:
        if not ours:
            return ""
        raise DataError(
            f"{path}: cannot be read, so the origin of these images is unknown ({exc}). Fix: restore the file."
        ) from exc


def _text(digests: set[str]) -> str:
    return " ".join(sorted(digests)[:MAX_DIGESTS])
