"""Reads the image files of a listing: first all headers, then each image straight into its place in the final array."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dpvision.data import facts
from dpvision.data.dataset import DIGEST, SPLITS, Broken, Dataset, Findings, Split, Unlabelled
from dpvision.data.files import Refusal, open_inside, printable, resolve_inside
from dpvision.data.listing import Item, Listing, find_problem, list_images
from dpvision.data.picture import decode, measure
from dpvision.data.store import Destination
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
    destination: Destination,
    progress: Progress | None,
) -> Dataset:
    """Read the data set; labels that are not among the classes and one file under two names are refused."""
    if not listing.items.get("train") and not listing.broken:
        raise Refusal("has no image in train.")
    names = _resolve_classes(listing, declared)
    _require_distinct(listing)
    images, items, originals, broken = _decode_files(listing, declared, destination=destination, progress=progress)
    if broken and not skip_broken:
        _refuse_broken(source, Path(listing.given_root), broken)
    if "train" not in images:
        raise Refusal("has no readable image in train.")
    numbers = {label: number for number, label in enumerate(names)}
    persons = _index_persons(items)
    splits = {
        split: Split(
            images=array,
            labels=np.array([numbers[item.label] for item in items[split]], dtype=np.int64),
            persons=persons.get(split),
            originals=originals[split],
        )
        for split, array in images.items()
    }
    parts = splits["train"], splits.get("val"), splits.get("test")
    return Dataset(name, names, *parts, declared.inferred, tuple(broken), skipped_broken=skip_broken)


def inspect_listing(listing: Listing, name: str, declared: facts.Declared) -> Findings:
    """Decode every image, without keeping any, and report what is there and why `read_listing` would refuse it."""
    good, broken = _measure_files(listing)
    problems = [*_refusal_of(_resolve_classes, listing, declared), *_refusal_of(_require_distinct, listing)]
    labels = {item.label for items in listing.items.values() for item in items} | listing.classes
    counts = {split: dict.fromkeys(declared.names or facts.sort_names(labels), 0) for split in good}
    sizes: Counter[tuple[int, int]] = Counter()
    channels: Counter[int] = Counter()
    persons: set[str] = set()
    readable: Measured = {split: [] for split in good}
    for split, pairs in good.items():
        for item, (height, width, depth) in pairs:
            try:
                _decode_file(listing.root, item.path, size=(height, width), channels=depth)
            except (Refusal, OSError) as exc:
                broken.append(_broken_file(item.path, exc))
                continue
            readable[split].append((item, (height, width, depth)))
            counts[split][item.label] = counts[split].get(item.label, 0) + 1
            sizes[height, width] += 1
            channels[depth] += 1
            if item.person is not None and split == "train":
                persons.add(item.person)
    if not readable.get("train"):
        problems.append("has no readable image in train.")
    if sizes:
        problems += _refusal_of(_common_size, readable, declared.size)
    return Findings(
        name=name,
        counts=counts,
        sizes=dict(sizes.most_common()),
        channels=dict(channels),
        persons=len(persons) or None,
        problems=tuple(problems),
        broken=tuple(broken),
    )


def read_unlabelled(path: Path, *, size: tuple[int, int], channels: int, at_a_time: int) -> Iterator[Unlabelled]:
    """The images of a folder, or of one file, in batches; an unreadable file has the reason in its place."""
    sides = facts.declare(size=size).size
    assert sides is not None
    root, is_folder = os.path.realpath(path), path.is_dir()
    if is_folder:
        paths = list_images(root)
        reasons = [find_problem(root, name) for name in paths]
        if all(reasons):
            raise Refusal("contains no .png, .jpg or .jpeg file, nor do its subfolders.")
    else:  # links are followed here, because the user named this file
        root, name = os.path.split(root)
        paths, reasons = [name], [None]
    for start in range(0, len(paths), at_a_time):
        names, problems = paths[start : start + at_a_time], reasons[start : start + at_a_time]
        images = []
        for number, name in enumerate(names):
            if problems[number] is None:
                try:
                    images.append(_decode_file(root, name, size=sides, channels=channels)[0])
                except (Refusal, OSError) as exc:
                    problems[number] = _broken_file(name, exc).reason
        stacked = np.stack(images) if images else np.empty((0, *sides, channels), np.uint8)
        yield Unlabelled([printable(name) for name in names], problems, stacked, len(paths))


def _decode_files(
    listing: Listing, declared: facts.Declared, *, destination: Destination, progress: Progress | None
) -> tuple[dict[str, np.ndarray], dict[str, list[Item]], dict[str, np.ndarray], list[Broken]]:
    """Images, items and digests of the originals by split, and the broken files."""
    # Reading continues after a broken header, since the message states the number of all broken files.
    good, broken = _measure_files(listing)
    images: dict[str, np.ndarray] = {}
    kept: dict[str, list[Item]] = {}
    originals: dict[str, np.ndarray] = {}
    total = sum(len(pairs) for pairs in good.values())
    if not total:
        return images, kept, originals, broken
    height, width = _common_size(good, declared.size)
    # Images stay grey only if all of them are.
    depth = declared.channels or max(channels for _, (_, _, channels) in _flatten(good))
    destination.require(math.prod((total, height, width, depth)))
    done = 0
    for split, pairs in good.items():
        kept[split] = []
        digests: list[bytes] = []
        if pairs:
            name, shape = f"{split}_images", (len(pairs), height, width, depth)
            out = destination.create(name, shape=shape, dtype=np.dtype(np.uint8))
        for item, _ in pairs:
            try:
                picture, digest = _decode_file(listing.root, item.path, size=(height, width), channels=depth)
            except (Refusal, OSError) as exc:
                broken.append(_broken_file(item.path, exc))
            else:
                out[len(digests)] = picture
                kept[split].append(item)
                digests.append(digest)
            done += 1
            if progress is not None:
                progress(done, total)
        originals[split] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST)
        if digests:
            whole = len(digests) == len(pairs)
            images[split] = out if whole else destination.truncate(name, count=len(digests), array=out)
    return images, kept, originals, broken


def _decode_file(root: str, path: str, *, size: tuple[int, int], channels: int) -> tuple[np.ndarray, bytes]:
    with open_inside(root, path) as file:
        return decode(file, size=size, channels=channels)


def _index_persons(items: dict[str, list[Item]]) -> dict[str, np.ndarray]:
    """Indices in the sorted order of the ids, which are kept in a list: in an array, one long id would widen all."""
    ids = sorted({item.person for part in items.values() for item in part if item.person is not None})
    if not ids:
        return {}
    numbers = {person: number for number, person in enumerate(ids)}
    return {
        split: np.array([numbers[item.person] for item in part if item.person is not None], dtype=np.int64)
        for split, part in items.items()
    }


def _resolve_classes(listing: Listing, declared: facts.Declared) -> tuple[str, ...]:
    """The classes; a label of any split that is not among them is refused."""
    names = facts.resolve_named(listing.classes, declared)
    known = set(names)
    for split in SPLITS:
        for item in listing.items.get(split, ()):
            if item.label not in known:
                raise Refusal(f"in {split}, {facts.describe_unknown(item.label, names, numbered=declared.numbered)}")
    return names


def _require_distinct(listing: Listing) -> None:
    """Refuse one file under two names, by a symbolic or a hard link: two records, perhaps of two persons."""
    seen: dict[tuple[int, int], str] = {}
    for items in listing.items.values():
        for item in items:
            try:
                status = os.stat(resolve_inside(listing.root, item.path))
            except (Refusal, OSError, ValueError):
                continue  # reported with the other broken files
            first = seen.setdefault((status.st_dev, status.st_ino), item.path)
            if first != item.path:
                raise Refusal(
                    f"has one file under two names: {printable(item.path)} is a link to the same image as "
                    f"{printable(first)}. Fix: list every image once, under the person whose image it is."
                )


def _measure_files(listing: Listing) -> tuple[Measured, list[Broken]]:
    """(height, width, channels) of every readable file by split, from the headers alone; and the broken files."""
    good: Measured = {}
    broken = list(listing.broken)
    for split, items in listing.items.items():
        good[split] = []
        for item in items:
            try:
                with open_inside(listing.root, item.path) as file:
                    good[split].append((item, measure(file)))
            except (Refusal, OSError) as exc:
                broken.append(_broken_file(item.path, exc))
    return good, broken


def _common_size(good: Measured, declared: tuple[int, int] | None) -> tuple[int, int]:
    """The declared size, or the size that all images have; images of several sizes are refused."""
    if declared is not None:
        return declared
    counts = Counter((height, width) for _, (height, width, _) in _flatten(good))
    usual = max(counts, key=lambda size: counts[size])
    for item, (height, width, _) in _flatten(good):
        if (height, width) != usual:
            raise Refusal(
                f"has images of {len(counts):,} different sizes: {printable(item.path)} is {height}x{width}, the most "
                f"frequent is {usual[0]}x{usual[1]} (height x width). Fix: resize all of them to a square with a "
                f"number of pixels per side, such as --size {min(usual)}."
            )
    return usual


def _flatten(good: Measured) -> Iterator[tuple[Item, tuple[int, int, int]]]:
    for pairs in good.values():
        yield from pairs


def _refusal_of(function: Callable[..., object], *arguments: object) -> list[str]:
    """The message with which a function refuses its arguments, if it does."""
    try:
        function(*arguments)
    except Refusal as exc:
        return [str(exc)]
    return []


def _broken_file(path: str, exc: Exception) -> Broken:
    reason = str(exc) if isinstance(exc, Refusal) else f"cannot be read ({exc})."
    return Broken(printable(path), reason)


def _refuse_broken(source: Path, folder: Path, broken: list[Broken]) -> None:
    """Refuse with the first broken file, the number of broken files, and two ways to continue."""
    count = "It is the only broken file" if len(broken) == 1 else f"{len(broken):,} files are broken"
    raise DataError(
        f"{printable(folder / broken[0].path)}: {broken[0].reason} {count}. "
        f"Fix: `dpvision check {printable(source)}` lists all; --skip-broken leaves them out."
    )
