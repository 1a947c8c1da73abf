"""Data sets in which two units stand at two places, each in two versions: does one change what the other contributes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpvision.audit.recording import record
from dpvision.audit.replay import interaction
from tests.system.replay.mechanisms import CLASSES, Mechanism
from tests.system.replay.neighbours import Records

Unit = tuple[np.ndarray, np.ndarray]  # images or rows, and their labels
SIZE = 10
# Sums are exact on their grid, or of float64: what is left is rounding.
LEAST = 1e-8


def interactions(mechanism: Mechanism, *, seed: int = 0, turns: int = 1) -> Iterator[float]:
    """Of several quartets: the largest influence of one unit on another's contribution."""
    for turn in range(turns):
        data = quartet(mechanism, seed + 7 * turn)
        first = record(mechanism.run, data[0])
        others = [record(mechanism.run, each, like=first) for each in data[1:]]
        for one in (first, *others):
            if one.error is not None:
                raise one.error
        yield interaction((first, others[0]), (others[1], others[2]))


def quartet(mechanism: Mechanism, seed: int) -> list[Records]:
    """(x, y), (x', y), (x, y'), (x', y'): other images, labels, and numbers of images where units are persons."""
    rng, records = np.random.default_rng([seed, 0x4]), mechanism.records(SIZE, seed)
    units = _units(records)
    classes = [int(labels[0]) for _, labels in units]
    x, y = next((i, j) for i in range(1, SIZE) for j in range(SIZE - 1, 0, -1) if classes[i] != classes[j])
    versions = {}
    for place in (x, y):
        count = int(rng.integers(1, 6)) if mechanism.persons else 1
        label = (classes[place] + 1 + int(rng.integers(CLASSES - 1))) % CLASSES
        if mechanism.dtype == np.uint8:
            made = rng.integers(0, 256, (count, *mechanism.shape), dtype=np.uint8)
        else:
            made = (rng.normal(size=(count, *mechanism.shape)) * rng.choice([0.3, 3.0])).astype(mechanism.dtype)
        versions[place] = (made, np.full(count, label))
    found = []
    for changed in ((), (x,), (y,), (x, y)):
        there = [versions[i] if i in changed else unit for i, unit in enumerate(units)]
        found.append(_joined(there, persons=mechanism.persons))
    return found


def _units(records: Records) -> list[Unit]:
    owners = np.arange(len(records)) if records.persons is None else records.persons
    return [(records.x[owners == who], records.labels[owners == who]) for who in np.unique(owners)]


def _joined(units: Sequence[Unit], *, persons: bool) -> Records:
    x, labels = (np.concatenate(parts) for parts in zip(*units, strict=True))
    owners = np.repeat(np.arange(len(units)), [len(each) for _, each in units]) if persons else None
    return Records(x, labels, owners)
