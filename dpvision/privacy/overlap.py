"""Finds other accounts about many of the same images: a data set with one image changed has a fingerprint of its own.

Beside each ledger lies a sketch: the smallest digests of its images (a bottom-k sample, Broder 1997). Among the
smallest of both, the share of the new sketch that the other one has estimates how many of the new images are on that
account. An image has two digests: of what it came as, and of its pixels in 8 bits, whatever their type and shape. It
finds parts, copies and extensions of a data set, not images that were encoded anew. For the operator's eyes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dpvision import atomic
from dpvision.errors import DPVisionError
from dpvision.privacy.ledger import Account, Ledger, home

SKETCH = 1 << 14
# With fewer digests to compare, that none is the same says little.
ENOUGH = 30


def sketch(*digests: Iterable[bytes]) -> tuple[str, ...]:
    """The smallest distinct digests, short, as hexadecimal text."""
    return tuple(sorted({d.hex()[:24] for some in digests for d in some})[:SKETCH])


def both(known: Sequence[str], digests: Iterable[bytes]) -> tuple[str, ...]:
    """A sketch, and other digests of the same images."""
    return tuple(sorted({*known, *sketch(digests)})[:SKETCH])


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
    found = [(ledger, _share(members, theirs)) for ledger, theirs in _all_but(fingerprint)]
    return sorted(((ledger, share) for ledger, share in found if share >= least), key=lambda pair: -pair[1])


def untold(fingerprint: str, members: Sequence[str]) -> list[Ledger]:
    """Accounts of so many images that a sketch can not tell whether these few are among them."""
    return [
        ledger
        for ledger, theirs in _all_but(fingerprint)
        if len(theirs) >= SKETCH and len(_comparable(members, theirs)) < ENOUGH
    ]


def _all_but(fingerprint: str) -> Iterator[tuple[Ledger, list[str]]]:
    for path in sorted((home() / "ledgers").glob("*.sketch")):
        try:
            owner, theirs = _read(path)
            if owner != fingerprint:
                yield Ledger(path.parent, owner), theirs
        except (DPVisionError, OSError, ValueError):
            continue


def _read(path: Path) -> tuple[str, list[str]]:
    owner, *members = atomic.read(path, most=1 << 20).decode("ascii").split()[: SKETCH + 1]
    return owner, members


def _share(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """How much of ours is theirs too."""
    below, known = _comparable(ours, theirs), set(theirs)
    return sum(member in known for member in below) / len(below) if below else 0.0


def _comparable(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """Of ours those that theirs would have: a sketch is complete up to its largest member, or it is the whole set."""
    if not theirs:
        return []
    return [member for member in ours if len(theirs) < SKETCH or member <= theirs[-1]]
