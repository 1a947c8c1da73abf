"""A source that is a list of image files: what folders and CSV tables have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpvision.data.classes import settle_names, unknown_name
from dpvision.data.dataset import SPLITS, Broken
from dpvision.data.picture import measure
from dpvision.data.refusal import Refusal, shown
from dpvision.data.regular_file import open_inside, resolve_inside
from dpvision.errors import DataError

Progress = Callable[[int, int], None]


def settle_classes(listing: Listing, declared: tuple[str, ...] | None, *, numbered: bool) -> tuple[str, ...]:
    """The classes, after every label of every split was found among them."""
    names = settle_names(listing.classes, declared, numbered=numbered)
    known = set(names)
    for split in SPLITS:
        for item in listing.items.get(split, ()):
            if item.label not in known:
                raise Refusal(f"in {split}, {unknown_name(item.label, names, numbered=numbered)}")
    return names


def require_distinct(listing: Listing) -> None:
    """One file under two names, by a symbolic or a hard link, would be two records, and maybe of two persons."""
    seen: dict[tuple[int, int], str] = {}
    for items in listing.items.values():
        for item in items:
            try:
                found = os.stat(resolve_inside(listing.root, item.path))
            except (Refusal, OSError, ValueError):
                continue  # told with the other broken files
            first = seen.setdefault((found.st_dev, found.st_ino), item.path)
            if first != item.path:
                raise Refusal(
                    f"has one file under two names: {shown(item.path)} is a link to the same image as {shown(first)}. "
                    "Fix: list every image once, under the person whose image it is."
                )


def survey(listing: Listing) -> tuple[dict[str, list[tuple[Item, tuple[int, int, int]]]], list[Broken]]:
    """(height, width, channels) of every readable file by split, and the broken ones."""
    good: dict[str, list[tuple[Item, tuple[int, int, int]]]] = {}
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
    reason = str(exc) if isinstance(exc, Refusal) else f"can not be read ({exc})."
    return Broken(shown(path), reason)


def refuse_broken(source: Path, folder: Path, broken: list[Broken]) -> None:
    """Stops with the first broken file, how many there are, and the two ways to go on."""
    if broken:
        count = "It is the only broken file" if len(broken) == 1 else f"{len(broken):,} files are broken"
        raise DataError(
            f"{shown(folder / broken[0].path)}: {broken[0].reason} {count}. "
            f"Fix: `dpvision check {shown(source)}` lists all; --skip-broken leaves them out."
        )


def common_size(
    good: dict[str, list[tuple[Item, tuple[int, int, int]]]], declared: tuple[int, int] | None
) -> tuple[int, int]:
    """The size that all images have or get."""
    if declared is not None:
        return declared
    counts: dict[tuple[int, int], int] = {}
    for _, (height, width, _) in flattened(good):
        counts[height, width] = counts.get((height, width), 0) + 1
    usual = max(counts, key=lambda size: counts[size])
    for item, (height, width, _) in flattened(good):
        if (height, width) != usual:
            advice = usual[0] if usual[0] == usual[1] else f"({usual[0]}, {usual[1]})"
            raise Refusal(
                f"has images of {len(counts):,} sizes: {shown(item.path)} is {height}x{width}, most are "
                f"{usual[0]}x{usual[1]} (height x width). Fix: give the size to resize all to, such as --size {advice}."
            )
    return usual


def flattened(
    good: dict[str, list[tuple[Item, tuple[int, int, int]]]],
) -> Iterator[tuple[Item, tuple[int, int, int]]]:
    for pairs in good.values():
        yield from pairs


@dataclass(frozen=True, slots=True)
class Item:
    """One image file: its path below the root, the name of its class, and whose image it is."""

    path: str
    label: str
    person: str | None = None


@dataclass(frozen=True)
class Listing:
    """The files of a source before any of them was opened."""

    root: str
    """The real path that all files lie below."""
    items: dict[str, list[Item]]
    """By split; a split without files is not there."""
    classes: frozenset[str]
    """The names of the classes in the training data."""
    shown_root: str
    """The same place as the user named it."""
    broken: tuple[Broken, ...] = ()
    """What can be told to be unusable from the listing alone."""
