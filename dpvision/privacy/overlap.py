"""Finds other accounts about many of the same images: a data set with one image changed has a fingerprint of its own.

Beside each ledger lies a sketch: the smallest digests of its images (a bottom-k sample, Broder 1997). Among the
smallest of both, the share of the new sketch that the other one has estimates how many of the new images are on that
account. It finds parts, copies and extensions of a data set, not images that were encoded anew. For the operator's
eyes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpvision import atomic
from dpvision.errors import DPVisionError
from dpvision.privacy.ledger import Account, Ledger, home

SKETCH = 2048


def sketch(digests: Sequence[bytes]) -> tuple[str, ...]:
    """The smallest distinct digests, short, as hexadecimal text."""
    return tuple(d.hex()[:24] for d in sorted(set(digests))[:SKETCH])


def keep(ledger: Ledger, members: Sequence[str]) -> None:
    """Write the sketch beside a ledger, of all that was ever charged there: the smallest of both are the smallest."""
    known: list[str] = []
    if ledger.sketch_path.exists():
        try:
            known = _read(ledger.sketch_path)[1]
        except (OSError, ValueError):
            return  # damaged: left as it is
    together = sorted({*known, *members})[:SKETCH]
    if together and together != known:
        atomic.write(ledger.sketch_path, "\n".join([ledger.fingerprint, *together]) + "\n")


def others(fingerprint: str, members: Sequence[str], *, least: float = 0.02) -> list[tuple[Account, float]]:
    """Other accounts that have at least the share `least` of these images, the largest share first."""
    found = []
    for ledger, share in ledgers(fingerprint, members, least=least):
        try:
            found.append((ledger.account(), share))
        except DPVisionError:
            continue  # a note must not stop a run: a damaged ledger stops its own
    return found


def ledgers(fingerprint: str, members: Sequence[str], *, least: float = 0.02) -> list[tuple[Ledger, float]]:
    """Their ledgers, not read yet."""
    found = []
    for path in sorted((home() / "ledgers").glob("*.sketch")):
        try:
            owner, theirs = _read(path)
            share = _share(members, theirs)
            if owner != fingerprint and share >= least:
                found.append((Ledger(path.parent, owner), share))
        except (DPVisionError, OSError, ValueError):
            continue
    return sorted(found, key=lambda pair: -pair[1])


def _read(path: Path) -> tuple[str, list[str]]:
    owner, *members = atomic.read(path, most=1 << 20).decode("ascii").split()[: SKETCH + 1]
    return owner, members


def _share(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """How much of ours is theirs too: both sketches are complete up to the smaller of their largest members."""
    if not ours or not theirs:
        return 0.0
    limit, known = min(max(ours), max(theirs)), set(theirs)
    if len(theirs) < SKETCH:
        limit = max(ours)  # theirs is the whole set
    below = [member for member in ours if member <= limit]
    return sum(member in known for member in below) / len(below) if below else 0.0
