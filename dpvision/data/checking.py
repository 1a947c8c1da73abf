"""Looks through a source and reports what is in it to its owner; not for release."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from dpvision.data.dataset import SPLITS, Broken, Dataset, Findings
from dpvision.data.facts import Classes, Declared, Size, declare, sort_names
from dpvision.data.files import Refusal, named, open_inside
from dpvision.data.image_files import Measured, broken_file, common_size, require_distinct, settle_classes, survey
from dpvision.data.listing import Item, Listing
from dpvision.data.picture import decode
from dpvision.data.source import Source, kind_of, list_files, load


def check(source: Source, *, classes: Classes = None, size: Size = None) -> Findings:
    """Reads every image, one at a time, and never stops at a broken one.

    Raises a DataError only if the source cannot be read at all. What would make `load` refuse the source although
    its files are readable, such as different sizes, is in `Findings.problems`.
    """
    kind = kind_of(source)
    if kind not in ("folder", "csv"):
        return _describe(load(source, classes=classes, size=size))
    path = Path(source)
    listing, name = list_files(path, kind)
    with named(path):
        return _look_through(listing, name, declare(classes=classes, size=size))


def _describe(dataset: Dataset) -> Findings:
    parts = {split: part for split in SPLITS if (part := getattr(dataset, split)) is not None}
    total = sum(len(part) for part in parts.values())
    _, height, width, channels = dataset.train.images.shape
    counts = {}
    for split, part in parts.items():
        numbers = Counter(part.labels.tolist())
        counts[split] = {name: numbers[index] for index, name in enumerate(dataset.classes)}
    return Findings(
        name=dataset.name,
        counts=counts,
        sizes={(height, width): total},
        channels={channels: total},
        persons=None if dataset.train.persons is None else len(np.unique(dataset.train.persons)),
        problems=(),
        broken=(),
    )


def _look_through(listing: Listing, name: str, declared: Declared) -> Findings:
    good, broken = survey(listing)
    problems: list[str] = []
    try:
        settle_classes(listing, declared)
    except Refusal as exc:
        problems.append(str(exc))
    try:
        require_distinct(listing)
    except Refusal as exc:
        problems.append(str(exc))
    labels = {item.label for items in listing.items.values() for item in items} | listing.classes
    counts = {split: dict.fromkeys(declared.names or sort_names(labels), 0) for split in good}
    sizes: Counter[tuple[int, int]] = Counter()
    channels: Counter[int] = Counter()
    persons: set[str] = set()
    readable: Measured = {split: [] for split in good}
    for split, pairs in good.items():
        for item, found in pairs:
            fault = _fault(listing, item, found=found)
            if fault is not None:
                broken.append(fault)
                continue
            readable[split].append((item, found))
            counts[split][item.label] = counts[split].get(item.label, 0) + 1
            sizes[found[0], found[1]] += 1
            channels[found[2]] += 1
            persons.update((item.person,) if item.person is not None and split == "train" else ())
    if not readable.get("train"):
        problems.append("has no readable image in train.")
    if sizes:
        try:
            common_size(readable, declared.size)
        except Refusal as exc:
            problems.append(str(exc))
    return Findings(
        name=name,
        counts=counts,
        sizes=dict(sizes),
        channels=dict(channels),
        persons=len(persons) if persons else None,
        problems=tuple(problems),
        broken=tuple(broken),
    )


def _fault(listing: Listing, item: Item, *, found: tuple[int, int, int]) -> Broken | None:
    try:
        with open_inside(listing.root, item.path) as file:
            decode(file, size=(found[0], found[1]), channels=found[2])
    except (Refusal, OSError) as exc:
        return broken_file(item.path, exc)
    return None
