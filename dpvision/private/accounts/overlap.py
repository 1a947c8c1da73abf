"""Finds other accounts with many of the same images, since changing one image changes a data set's fingerprint.

Several digests of each image are stored next to its ledger: of the original image, of its pixels in 8 bits, of rows as
they were passed to an estimator, of scaled feature rows, and of parts that stay the same in another type, range or
colour format and after small edits (blocks.py). An image is on an account if any of its exact or scaled digests is
there, or enough of its parts. The digests of up to 65,536 images of an account are stored: all images, or a random
sample.

An overlap is measured as a share of the new images and as a share of the images on the account. If either reaches
CHARGED_SHARE, the account is charged (accounts.py). That is ten times the rate at which different images of one kind
(the training and test splits of MNIST, benchmarks/overlap.py) are mistaken for the same, so unrelated data sets are not
charged.

Each charge adds its images to the account as a separate group: a data set that overlaps with any of the groups overlaps
with the account. Shares are computed from the private data without noise: not for release.

Accounts of earlier versions have a text file of the smallest digests of all kinds (`.sketch`), which is compared by
exact digests. An unreadable file is an error, because it is unknown whether the images are on its account.
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
from dpvision.private.accounts.blocks import MIN_AGREEING, PARTS, SCATTERED, digest_blocks
from dpvision.public.provenance import pixel_digests
from dpvision.storage.home import CHARGED_SHARE, home

MIN_NOTED_SHARE = 0.001  # smaller overlaps are not mentioned; overlaps of CHARGED_SHARE or more are charged
MAX_IMAGES = 1 << 16  # images of an account whose digests are stored
MIN_COMPARED = 30  # images: finding no match among fewer proves little
EXACT = 5  # digests of a whole image: of the original, of its 8-bit pixels, and the estimators' three (raw_digests)
SCALED = 2  # digests of scaled feature rows (scaled_digests)
COLUMNS = EXACT + PARTS + SCALED
WIDE = 128  # rows with at least this many numbers need only 3 bits of each
MIN_BITS = 40  # in the nonzero numbers of a scaled row; rows with fewer have no digest, as they may agree by chance
# Deliberately odd constants: common ratios do not fall on the edge of a step, where rounding would decide.
_SCALE, _SHIFT = 0.9917, 0.00417
_NUMBERS = 1 << 20  # numbers scaled at a time
OLD_SKETCH = 1 << 14
OLD_KINDS = 3  # the most digests that an image had in a sketch of an earlier version
_FORMAT = "dpvision-images-1"
_U64 = np.dtype("<u8")

Table = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Sketch:
    """The (n, COLUMNS) digests of n images, with 0 for a missing digest. Blank images have none at all."""

    digests: Table

    @property
    def rows(self) -> Table:
        """The rows of digests, without the images that have none."""
        return self.digests[self.digests.any(axis=1)]

    @property
    def exact(self) -> Sketch:
        """The sketch without digests of parts: it finds only identical files or pixels."""
        return Sketch(np.where(np.arange(COLUMNS) < EXACT, self.digests, np.uint64(0)))


NOTHING = Sketch(np.zeros((0, COLUMNS), np.uint64))


@dataclass(frozen=True)
class Overlap:
    """Another account, the share of the new images that are on it, and the share of its images among the new ones."""

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
    """Make a sketch from lists with one digest per image, and from the parts of (n, H, W, C) images."""
    digests = np.zeros((len(kinds[0]), COLUMNS), np.uint64)
    for column, kind in enumerate(kinds):
        digests[:, column] = _numbers(kind)
    if images is not None:
        digests[:, EXACT : EXACT + PARTS], usable = digest_blocks(images)
        digests[~usable] = 0
    return Sketch(digests)


def sketch_images(images: NDArray[np.generic], digests: Sequence[bytes]) -> Sketch:
    """Make the sketch of (n, H, W, C) images, given the digests of their originals (`data.identify`)."""
    return sketch(digests, pixel_digests(images), images=images)


def add_digests(known: Sketch, *kinds: Sequence[bytes]) -> Sketch:
    """Add further digests of the same images, in the same order, to a sketch; b"" stands for a missing digest."""
    digests = known.digests.copy()
    for column, kind in enumerate(kinds, EXACT - len(kinds)):
        digests[:, column] = np.where(known.digests.any(axis=1), _numbers(kind), np.uint64(0))
    return Sketch(digests)


def sketch_rows(images: NDArray[np.generic], digests: Sequence[bytes]) -> Sketch:
    """Make the sketch of (n, 1, d, 1) feature rows. Constant rows have no digest, as many data sets have them."""
    rows = np.asarray(images).reshape(len(images), -1)
    known = sketch(digests)
    known.digests[(rows == rows[:, :1]).all(axis=1) | ~np.isfinite(rows).all(axis=1)] = 0
    known = add_digests(known, *raw_digests(rows))
    has_any = known.digests.any(axis=1)
    for column, kind in enumerate(scaled_digests(rows), EXACT + PARTS):
        known.digests[:, column] = np.where(has_any, _numbers(kind), np.uint64(0))
    return known


def scaled_digests(rows: NDArray[np.generic]) -> tuple[list[bytes], list[bytes]]:
    """Compute digests that a row shares with its copies in other floating-point types and with its multiples.

    Heads and releases scale each row to norm 1, so a multiple of a row is the same input. The result is two lists with
    one digest per row. The first divides a row by the power of two of its largest number and rounds it through float16
    to steps of 2^-10; it finds float16 copies and multiples by powers of two. The second divides a row by its largest
    number and rounds it to 3 or 7 bits and a sign; it finds multiples by any positive number, in float32 and float64.
    A digest is b"" if few numbers of the row are nonzero.
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
    """Compute digests that do not depend on the type, shape and value range of the rows.

    The result is three lists with one digest per row: of its float32 values, of 8-bit values in the range 0 to 255 and
    of 8-bit values in the range 0 to 1; b"" if a row is outside that range. Rows are treated independently, so that one
    image cannot change the digests of others.
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
    """Store the digests of the images next to a ledger, as one more group; existing digests are not changed."""
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
        group = min(int(groups.max()) + 1, MAX_IMAGES - 1) if len(groups) else 0
        together = np.concatenate([known, new])
        groups = np.concatenate([groups, np.full(len(new), group, np.uint64)])
        chosen = np.argsort(together[:, 0], kind="stable")[:MAX_IMAGES]  # digests are random: a sample
        files.write(ledger.images_path, _dump(ledger.fingerprint, together[chosen], groups[chosen]))


def find(fingerprint: str, ours: Sketch, *, min_share: float = CHARGED_SHARE) -> list[Overlap]:
    """Find the other accounts with at least this share of the images, and sort them, largest first."""
    overlaps = [Overlap(ledger, *stored.shares(ours)) for ledger, stored in _read_others(fingerprint)]
    return sorted((shared for shared in overlaps if shared.share >= min_share), key=lambda shared: -shared.share)


def find_undecided(fingerprint: str, ours: Sketch) -> list[Ledger]:
    """Find accounts with too many images for their sample to show whether these few are among them."""
    return [ledger for ledger, stored in _read_others(fingerprint) if not stored.decides(ours)]


@dataclass(frozen=True, eq=False)
class _Stored:
    """The digests stored next to a ledger, their groups, and the sketch of an earlier version; any may be empty."""

    images: Table
    groups: NDArray[np.uint64]
    old: Table

    def shares(self, ours: Sketch) -> tuple[float, float]:
        """Return the share of our images on the account and of its images among ours: the larger of two estimates."""
        new, old = _shares(ours.rows, self.images, self.groups), _old_shares(ours.rows, self.old)
        return max(new[0], old[0]), max(new[1], old[1])

    def decides(self, ours: Sketch) -> bool:
        """Return whether these images would be found if all of them were on the account."""
        rows, stored = ours.rows, len(self.images)
        if stored >= MAX_IMAGES and len(rows) * stored < MIN_COMPARED * _size(self.images):
            return False
        if len(self.old) < OLD_SKETCH or stored > OLD_SKETCH // OLD_KINDS:
            return True
        return bool(((rows[:, :EXACT] > 0) & (rows[:, :EXACT] <= self.old[-1])).sum() >= MIN_COMPARED)


def _size(theirs: Table) -> float:
    """Return the number of images on an account: exact, or estimated if only a sample is stored."""
    return len(theirs) if len(theirs) < MAX_IMAGES else len(theirs) * 2.0**64 / float(theirs[:, 0].max())


def _shares(ours: Table, theirs: Table, groups: NDArray[np.uint64]) -> tuple[float, float]:
    if not len(ours) or not len(theirs):
        return 0.0, 0.0
    shared = _are_among(theirs, ours)
    sizes, hits = np.bincount(groups.astype(np.int64)), np.bincount(groups[shared].astype(np.int64))
    of_theirs = float(np.max(hits / np.maximum(sizes[: len(hits)], 1), initial=0.0))
    if len(theirs) < MAX_IMAGES:
        return float(_are_among(ours, theirs).mean()), of_theirs
    return min(1.0, float(shared.mean()) * _size(theirs) / len(ours)), of_theirs


def has_some_of(these: Sketch, those: Sketch) -> bool:
    """Return whether any of these images is exactly among those, or CHARGED_SHARE of them as altered copies."""
    exact = np.isin(these.rows[:, 0], those.rows[:, 0]) & (these.rows[:, 0] > 0)
    return bool(exact.any() or (len(these.rows) and _are_among(these.rows, those.rows).mean() >= CHARGED_SHARE))


def _are_among(these: Table, those: Table) -> NDArray[np.bool_]:
    """Return which of these images are among those, by any exact or scaled digest or by enough parts."""
    hits = np.isin(these, those) & (these > 0)
    scattered, quadrants = hits[:, EXACT : EXACT + SCATTERED], hits[:, EXACT + SCATTERED : EXACT + PARTS]
    whole = hits[:, :EXACT].any(axis=1) | hits[:, EXACT + PARTS :].any(axis=1)
    parts = (scattered.sum(axis=1) >= MIN_AGREEING) | (quadrants.sum(axis=1) >= MIN_AGREEING)
    return np.asarray(whole | parts)


def _old_shares(ours: Table, old: Table) -> tuple[float, float]:
    """Estimate both shares from a sketch of an earlier version, which has the smallest digests of all kinds."""
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
    return float(np.max(shares[counts >= min(MIN_COMPARED, counts.max())], initial=0.0)), of_theirs


def _read_others(fingerprint: str) -> Iterator[tuple[Ledger, _Stored]]:
    """Yield the ledgers with other fingerprints and the digests stored next to them."""
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
                "restore it from a backup; or remove it, and the next run on that account's data writes it again."
            ) from exc
        if owner != fingerprint:
            yield ledger, _Stored(images, groups, sketched)


def _dump(fingerprint: str, rows: Table, groups: NDArray[np.uint64]) -> bytes:
    """Return the content of a digest file: a line of text, then groups and nonempty columns as 64-bit numbers."""
    used = np.flatnonzero(rows.any(axis=0))
    header = f"{_FORMAT} {fingerprint} {','.join(map(str, used))}\n".encode()
    return header + np.column_stack([groups, rows[:, used]]).astype(_U64).tobytes()


def _read(path: Path) -> tuple[str, Table, NDArray[np.uint64]]:
    data = files.read(path, most=(1 << 12) + MAX_IMAGES * (COLUMNS + 1) * 8)
    header, _, body = data.partition(b"\n")
    kind, owner, columns = header[: 1 << 12].decode("ascii").split(" ")
    used = [int(column) for column in columns.split(",")]
    if kind != _FORMAT or used != sorted(set(used)) or used[0] != 0 or used[-1] >= COLUMNS:
        raise ValueError("its header is malformed")
    table = np.frombuffer(body, _U64).reshape(-1, len(used) + 1)
    rows, groups = np.zeros((len(table), COLUMNS), np.uint64), table[:, 0]
    rows[:, used] = table[:, 1:]
    if not len(table) or len(table) > MAX_IMAGES or groups.max() >= MAX_IMAGES or not rows[:, 0].all():
        raise ValueError("its table is malformed")
    return owner, rows, groups


def _read_old(path: Path) -> tuple[str, Table]:
    """Read a sketch of an earlier version: its owner, and the first 64 bits of each digest, sorted."""
    owner, *members = files.read(path, most=1 << 20).decode("ascii").split()[: OLD_SKETCH + 1]
    return owner, np.array(sorted(int(member[:16].ljust(16, "0"), 16) for member in members), np.uint64)
