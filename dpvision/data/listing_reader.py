"""Decodes the files of a listing one by one, straight into the array that they end up in."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from dpvision.data import records
from dpvision.data.classes import Classes, declared_names
from dpvision.data.dataset import Broken, Dataset, Split
from dpvision.data.identity import DIGEST
from dpvision.data.listing import (
    Item,
    Listing,
    Progress,
    broken_file,
    common_size,
    flattened,
    refuse_broken,
    require_distinct,
    settle_classes,
    survey,
)
from dpvision.data.picture import decode
from dpvision.data.refusal import Refusal
from dpvision.data.regular_file import open_inside
from dpvision.data.room import Room


def read_listing(
    listing: Listing,
    source: Path,
    *,
    name: str,
    classes: Classes,
    size: records.Size,
    channels: int | None,
    skip_broken: bool,
    room: Room,
    progress: Progress | None,
) -> Dataset:
    declared, sides = declared_names(classes), records.declared_size(size)
    records.check_channels(channels)
    if not listing.items.get("train") and not listing.broken:
        raise Refusal("has no image in train.")
    names = settle_classes(listing, declared, numbered=isinstance(classes, int))
    require_distinct(listing)
    images, kept, broken, originals = decode_listing(
        listing, source, sides=sides, skip_broken=skip_broken, room=room, progress=progress, channels=channels
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
    inferred = records.inferred(classes=declared is None, size=sides is None, channels=channels is None)
    parts = splits["train"], splits.get("val"), splits.get("test")
    return Dataset(name, names, *parts, inferred, tuple(broken), skipped_broken=skip_broken)


def decode_listing(
    listing: Listing,
    source: Path,
    *,
    sides: tuple[int, int] | None,
    skip_broken: bool,
    room: Room,
    progress: Progress | None = None,
    channels: int | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, list[Item]], list[Broken], dict[str, np.ndarray]]:
    """Images and items by split, what was left out, and the originals' digests. First headers are read, then images."""
    good, broken = survey(listing)
    # What is already known to be broken does not end the work here: the message has to tell how many there are.
    total = sum(len(pairs) for pairs in good.values())
    images: dict[str, np.ndarray] = {}
    kept: dict[str, list[Item]] = {}
    originals: dict[str, np.ndarray] = {}
    if total:
        height, width = common_size(good, sides)
        # Gray stays gray only if everything is gray.
        depth = channels or max(found for _, (_, _, found) in flattened(good))
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
        refuse_broken(source, Path(listing.shown_root), broken)
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
