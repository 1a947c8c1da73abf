"""Reads the image files of a listing: first all headers, then each image straight into the array that it ends up in."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dpvision.data import facts
from dpvision.data.dataset import DIGEST, SPLITS, Broken, Dataset, Split
from dpvision.data.files import Refusal, open_inside, resolve_inside, shown
from dpvision.data.listing import Item, Listing
from dpvision.data.picture import decode, measure
from dpvision.data.store import Room
from dpvision.errors import DataError

Progress = Callable[[int, int], None]
Measured = dict[str, list[tuple[Item, tuple[int, int, int]]]]
"""Split -> its readable files, each with (height, width, channels)."""


def read_listing(
    listing: Listing,
    source: Path,
    declared: facts.Declared,
    *,
    name: str,
    skip_broken: bool,
    room: Room,
    progress: Progress | None,
) -> Dataset:
    """The data set, after every label was found among the classes and no file under two names."""
    if not listing.items.get("train") and not listing.broken:
        raise Refusal("has no image in train.")
    names = settle_classes(listing, declared)
    require_distinct(listing)
    images, kept, broken, originals = _decode_files(
        listing, source, declared, skip_broken=skip_broken, room=room, progress=progress
    )
    if "train" not in images:
        raise Refusal("has no readable image in train.")
    numbers = {label: number for number, label in enumerate(names)}
    persons = _index_persons(kept)
    splits = {
        split: Split(
            images=array,
            labels=np.array([numbers[item.label] for item in kept[split]], dtype=np.int64),
            persons=persons.get(split),
            originals=originals[split],
        )
        for split, array in images.items()
    }
    parts = splits["train"], splits.get("val"), splits.get("test")
    return Dataset(name, names, *parts, declared.inferred, tuple(broken), skipped_broken=skip_broken)


def _decode_files(
    listing: Listing,
    source: Path,
    declared: facts.Declared,
    *,
    skip_broken: bool,
    room: Room,
    progress: Progress | None,
) -> tuple[dict[str, np.ndarray], dict[str, list[Item]], list[Broken], dict[str, np.ndarray]]:
    """Images and items by split, what was left out, and the originals' digests. First headers are read, then images."""
    good, broken = survey(listing)
    # What is already known to be broken does not end the work here: the message has to tell how many there are.
    total = sum(len(pairs) for pairs in good.values())
    images: dict[str, np.ndarray] = {}
    kept: dict[str, list[Item]] = {}
    originals: dict[str, np.ndarray] = {}
    if total:
        height, width = common_size(good, declared.size)
        # Gray stays gray only if everything is gray.
        depth = declared.channels or max(found for _, (_, _, found) in _flattened(good))
        room.require(math.prod((total, height, width, depth)))
        done = 0
        for split, pairs in good.items():
            shape = (len(pairs), height, width, depth)
            out = room.array(f"{split}_images", shape=shape, dtype=np.dtype(np.uint8)) if pairs else None
            kept[split] = []
            digests: list[bytes] = []
            for item, _ in pairs:
                try:
                    with open_inside(listing.root, item.path) as file:
                        picture, digest = decode(file, size=(height, width), channels=depth)
                except (Refusal, OSError) as exc:
                    broken.append(broken_file(item.path, exc))
                else:
                    assert out is not None
                    out[len(kept[split])] = picture
                    kept[split].append(item)
                    digests.append(digest)
                done += 1
                if progress is not None:
                    progress(done, total)
            originals[split] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST)
            if out is not None and kept[split]:
                whole = len(kept[split]) == len(pairs)
                name = f"{split}_images"
                images[split] = out if whole else room.shorten(name, count=len(kept[split]), array=out)
    if not skip_broken:
        _refuse_broken(source, Path(listing.shown_root), broken)
    return images, kept, broken, originals


def _index_persons(kept: dict[str, list[Item]]) -> dict[str, np.ndarray]:
    """Indices in the sorted order of the ids. Not an array of text: one long id would widen them all."""
    ids = sorted({item.person for items in kept.values() for item in items if item.person is not None})
    if not ids:
        return {}
    numbers = {person: number for number, person in enumerate(ids)}
    return {
        split: np.array([numbers[item.person] for item in items if item.person is not None], dtype=np.int64)
        for split, items in kept.items()
    }


def settle_classes(listing: Listing, declared: facts.Declared) -> tuple[str, ...]:
    """The classes, after every label of every split was found among them."""
    names = facts.settle_names(listing.classes, declared)
    known = set(names)
    for split in SPLITS:
        for item in listing.items.get(split, ()):
            if item.label not in known:
                raise Refusal(f"in {split}, {facts.unknown_name(item.label, names, numbered=declared.numbered)}")
    return names


def require_distinct(listing: Listing) -> None:
    """One file under two names, by a symbolic or a hard link, would be two records, and maybe of two persons."""
    seen: dict[tuple[int, int], str] = {}
    for items in listing.items.values():
        for item in items:
            try:
                found = os.stat(resolve_inside(listing.root, item.path))
            except (Refusal, OSError, ValueError):
                continue  # reported with the other broken files
            first = seen.setdefault((found.st_dev, found.st_ino), item.path)
            if first != item.path:
                raise Refusal(
                    f"has one file under two names: {shown(item.path)} is a link to the same image as {shown(first)}. "
                    "Fix: list every image once, under the person whose image it is."
                )


def survey(listing: Listing) -> tuple[Measured, list[Broken]]:
    """(height, width, channels) of every readable file by split, and the broken ones."""
    good: Measured = {}
    broken = list(listing.broken)
    for split, items in listing.items.items():
        good[split] = []
        for item in items:
            try:
                with open_inside(listing.root, item.path) as file:
                    good[split].append((item, measure(file)))
            except (Refusal, OSError) as exc:
                broken.append(broken_file(item.path, exc))
    return good, broken


def broken_file(path: str, exc: Exception) -> Broken:
    reason = str(exc) if isinstance(exc, Refusal) else f"cannot be read ({exc})."
    return Broken(shown(path), reason)


def _refuse_broken(source: Path, folder: Path, broken: list[Broken]) -> None:
    """Stops with the first broken file, how many there are, and the two ways to go on."""
    if broken:
        count = "It is the only broken file" if len(broken) == 1 else f"{len(broken):,} files are broken"
        raise DataError(
            f"{shown(folder / broken[0].path)}: {broken[0].reason} {count}. "
            f"Fix: `dpvision check {shown(source)}` lists all; --skip-broken leaves them out."
        )


def common_size(good: Measured, declared: tuple[int, int] | None) -> tuple[int, int]:
    """The size that all images have or get."""
    if declared is not None:
        return declared
    counts: dict[tuple[int, int], int] = {}
    for _, (height, width, _) in _flattened(good):
        counts[height, width] = counts.get((height, width), 0) + 1
    usual = max(counts, key=lambda size: counts[size])
    for item, (height, width, _) in _flattened(good):
        if (height, width) != usual:
            advice = usual[0] if usual[0] == usual[1] else f"({usual[0]}, {usual[1]})"
            raise Refusal(
                f"has images of {len(counts):,} sizes: {shown(item.path)} is {height}x{width}, most are "
                f"{usual[0]}x{usual[1]} (height x width). Fix: give the size to resize all to, such as --size {advice}."
            )
    return usual


def _flattened(
    good: Measured,
) -> Iterator[tuple[Item, tuple[int, int, int]]]:
    for pairs in good.values():
        yield from pairs
