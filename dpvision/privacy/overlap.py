"""Finds other accounts about many of the same images: a data set with one image changed has a fingerprint of its own.

Beside each ledger lies a sketch: the smallest digests of its images (a bottom-k sample, Broder 1997). Among the
smallest of both, the share of the new sketch that the other one has estimates how many of the new images are on that
account. An image has several digests: of what it came as, of its pixels in 8 bits, and of numbers as they were given to
an estimator. In another type only one of them is the same: a share may be up to KINDS times what is told. It finds
parts, copies and extensions of a data set, not images that were encoded anew. For the operator's eyes.

Notes skip a sketch or ledger that can not be read, as a note must not stop a run. Gates (`ledgers`, `untold`) refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dpvision import atomic
from dpvision.errors import DPVisionError, LedgerMismatch
from dpvision.privacy.ledger import Account, Ledger, home

SKETCH = 1 << 14
# The most digests that an image has: as it came, as it is trained on, and raw_digests of the estimators.
KINDS = 5
LEAST = 0.02 / KINDS  # of the digests, so that 2% of the images are found in any type
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
    with ledger.locked():
        known: list[str] = []
        if ledger.sketch_path.exists():
            try:
                known = _read(ledger.sketch_path)[1]
            except (OSError, ValueError):
                return  # damaged: left as it is
        together = sorted({*known, *members})[:SKETCH]
        if together and together != known:
            atomic.write(ledger.sketch_path, "\n".join([ledger.fingerprint, *together]) + "\n")


def others(fingerprint: str, members: Sequence[str]) -> list[tuple[Account, float]]:
    """Other accounts that have some of these images, the largest share first: for a note."""
    found = []
    for ledger, share in _with_shares(fingerprint, members, least=LEAST, skip_damaged=True):
        try:
            found.append((ledger.account(), share))
        except DPVisionError:
            continue  # a note must not stop a run: a damaged ledger stops its own
    return found


def ledgers(fingerprint: str, members: Sequence[str], *, least: float = LEAST) -> list[tuple[Ledger, float]]:
    """Their ledgers, not read yet: for a gate."""
    return _with_shares(fingerprint, members, least=least, skip_damaged=False)


def _with_shares(
    fingerprint: str, members: Sequence[str], *, least: float, skip_damaged: bool
) -> list[tuple[Ledger, float]]:
    every = _all_but(fingerprint, skip_damaged=skip_damaged)
    found = [(ledger, _share(members, theirs)) for ledger, theirs in every]
    return sorted(((ledger, share) for ledger, share in found if share >= least), key=lambda pair: -pair[1])


def untold(fingerprint: str, members: Sequence[str]) -> list[Ledger]:
    """Accounts of so many images that a sketch can not tell whether these few are among them."""
    return [
        ledger
        for ledger, theirs in _all_but(fingerprint, skip_damaged=False)
        if len(theirs) >= SKETCH and len(_comparable(members, theirs)) < ENOUGH
    ]


def _all_but(fingerprint: str, *, skip_damaged: bool) -> Iterator[tuple[Ledger, list[str]]]:
    for path in sorted((home() / "ledgers").glob("*.sketch")):
        try:
            owner, theirs = _read(path)
            ledger = Ledger(path.parent, owner)
        except (DPVisionError, OSError, ValueError) as exc:
            if skip_damaged:
                continue
            raise LedgerMismatch(
                f"{path}: can not be read ({exc}), so nobody can tell whether these images are on its account. Fix: "
                "restore it from a copy; or remove it, and the next run on that account's data writes it anew."
            ) from exc
        if owner != fingerprint:
            yield ledger, theirs


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
