"""Finds other accounts with many of the same images: a data set with one image changed has a fingerprint of its own.

Next to each ledger are digests of its images, several of each: of the image as it came, of its pixels in 8 bits, of
rows as they were passed to an estimator, of rows of features that were scaled, and of parts of it that stay the same in
another type, by other bounds, in RGB and after small edits (blocks.py). An image is on an account when any of its exact
or scaled digests is there, or enough of its parts. Up to 65,536 images of an account are kept, all of them or a random
sample.

Two data sets overlap by a share of the new one's images and by a share of those on the account. An account with
CHARGED_SHARE of either is charged (accounts.py): ten times the rate at which different images of one kind (the training
and the test split of MNIST, benchmarks/overlap.py) are taken for the same, so other people's images are not charged.

What is charged to an account adds its images there, as a group of its own: whoever overlaps with any of the groups
overlaps with the account. Shares are read from the private data, without noise: not for release.

Accounts of earlier versions have a text file of the smallest digests of all kinds (`.sketch`), which is compared by
exact digests. A file that cannot be read is refused: whether the images are on its account would be unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.core.ledger import Ledger
from dpvision.errors import DPVisionError, LedgerMismatch
from dpvision.private.accounts.blocks import AGREEING, PARTS, SCATTERED, digest_blocks
from dpvision.public.provenance import pixel_digests
from dpvision.storage.home import CHARGED_SHARE, home

NOTED = 0.001  # from this share on an overlap is mentioned; from CHARGED_SHARE on it is charged
MOST = 1 << 16  # images of an account whose digests are kept
ENOUGH = 30  # images: with fewer to compare, finding none of them proves little
EXACT = 5  # digests of an image as a whole: as it came, as it is trained on, and raw_digests of the estimators
SCALED = 2  # digests of rows of features that were scaled: scaled_digests
COLUMNS = EXACT + PARTS + SCALED
WIDE = 128  # numbers in a row, from which on 3 bits of each are enough
MIN_BITS = 40  # of the numbers that are not 0 in a scaled row with a digest: rows with fewer may agree by chance
# Not fractions of small whole numbers, so that the rounding of a multiple does not decide on a step (as in blocks.py).
_SCALE, _SHIFT = 0.9917, 0.00417
_NUMBERS = 1 << 20  # scaled at a time
OLD_SKETCH = 1 << 14
OLD_KINDS = 3  # digests that an image had in a sketch of an earlier version, at most
_FORMAT = "dpvision-images-1"
_U64 = np.dtype("<u8")

Table = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Sketch:
    """(n, COLUMNS) digests of n images, 0 where there is none. Blank images have none at all."""

    digests: Table

    @property
    def rows(self) -> Table:
        """The digests of those images that have some."""
        return self.digests[self.digests.any(axis=1)]

    @property
    def exact(self) -> Sketch:
        """The sketch without the parts of images: it finds the same files or pixels only."""
        return Sketch(np.where(np.arange(COLUMNS) < EXACT, self.digests, np.uint64(0)))


NOTHING = Sketch(np.zeros((0, COLUMNS), np.uint64))


@dataclass(frozen=True)
class Overlap:
    """Another account, the share of the new images that are on it, and the share of its images that are among them."""

    ledger: Ledger
    of_ours: float
    of_theirs: float

    @property
    def share(self) -> float:
        """The larger of the two shares."""
        return max(self.of_ours, self.of_theirs)

    @property
    def is_charged(self) -> bool:
        """Whether the overlap is large enough for the account to be charged."""
        return self.share >= CHARGED_SHARE


def sketch(*kinds: Sequence[bytes], images: NDArray[np.generic] | None = None) -> Sketch:
    """The digests of images: lists with one digest per image, and those of the parts of (n, H, W, C) images."""
    digests = np.zeros((len(kinds[0]), COLUMNS), np.uint64)
    for column, kind in enumerate(kinds):
        digests[:, column] = _numbers(kind)
    if images is not None:
        digests[:, EXACT : EXACT + PARTS], usable = digest_blocks(images)
        digests[~usable] = 0
    return Sketch(digests)


def sketch_images(images: NDArray[np.generic], digests: Sequence[bytes]) -> Sketch:
    """The sketch of (n, H, W, C) images with these digests of their originals (`data.identify`)."""
    return sketch(digests, pixel_digests(images), images=images)


def add_digests(known: Sketch, *kinds: Sequence[bytes]) -> Sketch:
    """A sketch with other digests of the same images, in the same order; b"" where an image has none."""
    digests = known.digests.copy()
    for column, kind in enumerate(kinds, EXACT - len(kinds)):
        digests[:, column] = np.where(known.digests.any(axis=1), _numbers(kind), np.uint64(0))
    return Sketch(digests)


def sketch_rows(images: NDArray[np.generic], digests: Sequence[bytes]) -> Sketch:
    """The sketch of (n, 1, d, 1) rows of features. A constant row, such as many data sets have, has no digest."""
    rows = np.asarray(images).reshape(len(images), -1)
    known = sketch(digests)
    known.digests[(rows == rows[:, :1]).all(axis=1) | ~np.isfinite(rows).all(axis=1)] = 0
    known = add_digests(known, *raw_digests(rows))
    has_any = known.digests.any(axis=1)
    for column, kind in enumerate(scaled_digests(rows), EXACT + PARTS):
        known.digests[:, column] = np.where(has_any, _numbers(kind), np.uint64(0))
    return known


def scaled_digests(rows: NDArray[np.generic]) -> tuple[list[bytes], list[bytes]]:
    """Compute digests that a row shares with its copies in other types of floats and with its multiples.

    Heads and releases scale each row to length 1, so a multiple of a row is the same input. Two lists with one digest
    per row: the row divided by the power of two of its largest number, through float16, in steps of 2^-10 (copies in
    float16, and multiples by powers of two); and divided by its largest number, in 3 or 7 bits and a sign (multiples
    by any positive number, in float32 and float64). b"" where few numbers of the row are not 0.
    """
    digests: tuple[list[bytes], list[bytes]] = ([], [])
    step = max(1, _NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        x = np.asarray(rows[start : start + step]).astype(np.float64)
        x[~np.isfinite(x).all(axis=1)] = 0
        largest = np.abs(x).max(axis=1, keepdims=True)
        mantissa = np.ldexp(x, -np.frexp(largest)[1])
        relative = np.divide(x, largest, out=np.zeros_like(x), where=largest > 0)
        bits = 3 if x.shape[1] >= WIDE else 7
        digests[0].extend(_digests_of_steps(mantissa.astype(np.float16).astype(np.float64) * 2**10, bits=10))
        digests[1].extend(_digests_of_steps(relative * (_SCALE * (2**bits - 1)) + _SHIFT, bits=bits))
    return digests


def _digests_of_steps(x: NDArray[np.float64], *, bits: int) -> list[bytes]:
    steps = np.round(x).astype("<i2")
    enough = (np.count_nonzero(steps, axis=1) - 1) * bits >= MIN_BITS
    digests = iter(pixel_digests(np.ascontiguousarray(steps[enough]).view(np.uint8)))
    return [next(digests) if usable else b"" for usable in enough]


def raw_digests(X: Any) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Compute digests of rows in each form that another type, shape or other bounds may give them.

    Three lists with one digest per row: as float32, as 8 bits of 0 to 255 and as 8 bits of 0 to 1; b"" where a row is
    outside of these. Each row counts by itself: one image must not rename the others.
    """
    x = np.asarray(X)
    digests: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    for start in range(0, len(x), 1024):
        rows = x[start : start + 1024].reshape(len(x[start : start + 1024]), -1).astype(np.float64)
        digests[0].extend(pixel_digests(np.ascontiguousarray(rows, dtype=np.float32).view(np.uint8)))
        least, most = rows.min(axis=1), rows.max(axis=1)
        for kind, top in ((1, 255), (2, 1)):
            within = (least >= 0) & (most <= top)
            rounded = iter(pixel_digests(np.round(rows[within] * (255 / top)).astype(np.uint8)))
            digests[kind].extend(next(rounded) if inside else b"" for inside in within)
    return digests


def _numbers(digests: Sequence[bytes]) -> Table:
    return np.frombuffer(b"".join(d[:8].ljust(8, b"\0") for d in digests), ">u8").astype(np.uint64)


def remember(ledger: Ledger, ours: Sketch) -> None:
    """Write the digests of the images next to a ledger, as one more group; those that are there already stay."""
    with ledger.locked():
        known, groups = NOTHING.digests, np.zeros(0, np.uint64)
        if ledger.images_path.exists():
            try:
                _, known, groups = _read(ledger.images_path)
            except (OSError, ValueError):
                return  # damaged: `find` refuses it
        rows = ours.rows
        _, first = np.unique(rows[:, 0], return_index=True)
        rows = rows[np.sort(first)]
        new = rows[~np.isin(rows[:, 0], known[:, 0])]
        if not len(new):
            return
        group = min(int(groups.max()) + 1, MOST - 1) if len(groups) else 0
        together = np.concatenate([known, new])
        groups = np.concatenate([groups, np.full(len(new), group, np.uint64)])
        chosen = np.argsort(together[:, 0], kind="stable")[:MOST]  # digests are random numbers, so this is a sample
        files.write(ledger.images_path, _dump(ledger.fingerprint, together[chosen], groups[chosen]))


def find(fingerprint: str, ours: Sketch, *, least: float = CHARGED_SHARE) -> list[Overlap]:
    """Other accounts with at least this share of the images, the largest first."""
    overlaps = [Overlap(ledger, *kept.shares(ours)) for ledger, kept in _all_but(fingerprint)]
    return sorted((shared for shared in overlaps if shared.share >= least), key=lambda shared: -shared.share)


def undecided(fingerprint: str, ours: Sketch) -> list[Ledger]:
    """Accounts of so many images that their sample cannot show whether these few are among them."""
    return [ledger for ledger, kept in _all_but(fingerprint) if not kept.decides(ours)]


@dataclass(frozen=True, eq=False)
class _Kept:
    """The digests next to a ledger with their groups, the sketch of an earlier version, or both; else empty."""

    images: Table
    groups: NDArray[np.uint64]
    old: Table

    def shares(self, ours: Sketch) -> tuple[float, float]:
        """The share of our images that are theirs, and of theirs that are ours; the larger one where there are two."""
        new, old = _shares(ours.rows, self.images, self.groups), _old_shares(ours.rows, self.old)
        return max(new[0], old[0]), max(new[1], old[1])

    def decides(self, ours: Sketch) -> bool:
        """Whether these images would be found, if all of them were on the account."""
        rows, kept = ours.rows, len(self.images)
        if kept >= MOST and len(rows) * kept < ENOUGH * _size(self.images):
            return False
        if len(self.old) < OLD_SKETCH or kept > OLD_SKETCH // OLD_KINDS:
            return True
        return bool(((rows[:, :EXACT] > 0) & (rows[:, :EXACT] <= self.old[-1])).sum() >= ENOUGH)


def _size(theirs: Table) -> float:
    """The number of images on an account: all that are kept, or an estimate from the largest of the digests kept."""
    return len(theirs) if len(theirs) < MOST else len(theirs) * 2.0**64 / float(theirs[:, 0].max())


def _shares(ours: Table, theirs: Table, groups: NDArray[np.uint64]) -> tuple[float, float]:
    if not len(ours) or not len(theirs):
        return 0.0, 0.0
    shared = _are_among(theirs, ours)
    sizes, hits = np.bincount(groups.astype(np.int64)), np.bincount(groups[shared].astype(np.int64))
    of_theirs = float(np.max(hits / np.maximum(sizes[: len(hits)], 1), initial=0.0))
    if len(theirs) < MOST:
        return float(_are_among(ours, theirs).mean()), of_theirs
    return min(1.0, float(shared.mean()) * _size(theirs) / len(ours)), of_theirs


def has_some_of(these: Sketch, those: Sketch) -> bool:
    """Whether one of these is among those exactly, or CHARGED_SHARE of them as copies in another form."""
    exact = np.isin(these.rows[:, 0], those.rows[:, 0]) & (these.rows[:, 0] > 0)
    return bool(exact.any() or (len(these.rows) and _are_among(these.rows, those.rows).mean() >= CHARGED_SHARE))


def _are_among(these: Table, those: Table) -> NDArray[np.bool_]:
    """Which of these images are among those: by any exact digest, or by enough of their parts."""
    hits = np.isin(these, those) & (these > 0)
    scattered, quadrants = hits[:, EXACT : EXACT + SCATTERED], hits[:, EXACT + SCATTERED : EXACT + PARTS]
    whole = hits[:, :EXACT].any(axis=1) | hits[:, EXACT + PARTS :].any(axis=1)
    parts = (scattered.sum(axis=1) >= AGREEING) | (quadrants.sum(axis=1) >= AGREEING)
    return np.asarray(whole | parts)


def _old_shares(ours: Table, old: Table) -> tuple[float, float]:
    """Return both shares by a sketch of an earlier version, which has the smallest digests of all kinds together."""
    exact = ours[:, :EXACT]
    hits = np.isin(exact, old) & (exact > 0)
    of_theirs = min(1.0, OLD_KINDS * float(np.isin(old, exact).mean())) if len(old) else 0.0
    if not len(ours) or not len(old):
        return 0.0, 0.0
    if len(old) < OLD_SKETCH:
        return float(hits.any(axis=1).mean()), of_theirs
    comparable = (exact > 0) & (exact <= old[-1])
    counts = comparable.sum(axis=0)
    shares = hits.sum(axis=0) / np.maximum(counts, 1)
    return float(np.max(shares[counts >= min(ENOUGH, counts.max())], initial=0.0)), of_theirs


def _all_but(fingerprint: str) -> Iterator[tuple[Ledger, _Kept]]:
    folder = home() / "ledgers"
    for stem in sorted({path.stem for kind in ("images", "sketch") for path in folder.glob(f"*.{kind}")}):
        new, old = folder / f"{stem}.images", folder / f"{stem}.sketch"
        path = new
        try:
            owner, images, groups, sketched = "", NOTHING.digests, NOTHING.digests[:, 0], NOTHING.digests[:, 0]
            if new.exists():
                owner, images, groups = _read(new)
            if old.exists():
                path = old
                owner, sketched = _read_old(old)
            ledger = Ledger(folder, owner)
        except (DPVisionError, OSError, ValueError) as exc:
            raise LedgerMismatch(
                f"{path}: cannot be read ({exc}), so it is unknown whether these images are on its account. Fix: "
                "restore it from a copy; or remove it, and the next run on that account's data writes it again."
            ) from exc
        if owner != fingerprint:
            yield ledger, _Kept(images, groups, sketched)


def _dump(fingerprint: str, rows: Table, groups: NDArray[np.uint64]) -> bytes:
    """The content of a file of digests: a line of text, then groups and the columns in use, as 64-bit numbers."""
    used = np.flatnonzero(rows.any(axis=0))
    header = f"{_FORMAT} {fingerprint} {','.join(map(str, used))}\n".encode()
    return header + np.column_stack([groups, rows[:, used]]).astype(_U64).tobytes()


def _read(path: Path) -> tuple[str, Table, NDArray[np.uint64]]:
    data = files.read(path, most=(1 << 12) + MOST * (COLUMNS + 1) * 8)
    header, _, body = data.partition(b"\n")
    kind, owner, columns = header[: 1 << 12].decode("ascii").split(" ")
    used = [int(column) for column in columns.split(",")]
    if kind != _FORMAT or used != sorted(set(used)) or used[0] != 0 or used[-1] >= COLUMNS:
        raise ValueError("it is not what a run writes")
    table = np.frombuffer(body, _U64).reshape(-1, len(used) + 1)
    rows, groups = np.zeros((len(table), COLUMNS), np.uint64), table[:, 0]
    rows[:, used] = table[:, 1:]
    if not len(table) or len(table) > MOST or groups.max() >= MOST or not rows[:, 0].all():
        raise ValueError("it is not what a run writes")
    return owner, rows, groups


def _read_old(path: Path) -> tuple[str, Table]:
    """The owner and the first 64 bits of each digest, sorted, of a sketch of an earlier version."""
    owner, *members = files.read(path, most=1 << 20).decode("ascii").split()[: OLD_SKETCH + 1]
    return owner, np.array(sorted(int(member[:16].ljust(16, "0"), 16) for member in members), np.uint64)
