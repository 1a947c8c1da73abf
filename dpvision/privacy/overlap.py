"""Finds other accounts about many of the same images: a data set with one image changed has a fingerprint of its own.

Beside each ledger lies a sketch: the smallest digests of its images (a bottom-k sample, Broder 1997). The share of the
new sketch's members that the other sketch has, among the smallest of both, estimates how much they overlap. It finds
copies that were cropped, cleaned or extended, not images that were encoded or resized anew. For the operator's eyes.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpvision import atomic
from dpvision.errors import DPVisionError
from dpvision.privacy.ledger import Account, Ledger, home

SKETCH = 256


def sketch(digests: Sequence[bytes]) -> tuple[str, ...]:
    """The smallest distinct digests, short, as hexadecimal text."""
    return tuple(d.hex()[:24] for d in sorted(set(digests))[:SKETCH])


def keep(ledger: Ledger, members: Sequence[str]) -> None:
    """Write the sketch beside a ledger."""
    if members and not ledger.sketch_path.exists():
        atomic.write(ledger.sketch_path, "\n".join([ledger.fingerprint, *members]) + "\n")


def others(fingerprint: str, members: Sequence[str], *, least: float = 0.02) -> list[tuple[Account, float]]:
    """Other accounts that share at least `least` of their images with these, the largest share first."""
    found = []
    for path in sorted((home() / "ledgers").glob("*.sketch")):
        try:
            owner, *theirs = path.read_text("ascii").split()[: SKETCH + 1]
            share = _resemblance(members, theirs)
            if owner != fingerprint and share >= least:
                found.append((Ledger(path.parent, owner).account(), share))
        except (DPVisionError, OSError, ValueError):
            continue  # a note must not stop a run: a damaged ledger stops its own
    return sorted(found, key=lambda pair: -pair[1])


def _resemblance(ours: Sequence[str], theirs: Sequence[str]) -> float:
    both = sorted(set(ours) | set(theirs))[: max(len(ours), len(theirs))]
    common = set(ours) & set(theirs)
    return sum(member in common for member in both) / len(both) if both else 0.0
