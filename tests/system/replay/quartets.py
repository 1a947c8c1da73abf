"""Four data sets with two units in two versions each: does one unit change the contribution of the other?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dpvision.audit.recording import Recording, record
from tests.system.replay.mechanisms import CLASSES, Mechanism
from tests.system.replay.neighbours import Records

Unit = tuple[np.ndarray, np.ndarray]  # images or rows, and their labels
SIZE = 10
# Sums are exact on their grid, or in float64: anything smaller is rounding.
ROUNDING = 1e-8


def interactions(mechanism: Mechanism, *, seed: int = 0, turns: int = 1) -> Iterator[float]:
    """The largest influence of one unit on the contribution of another, for each of several quartets."""
    for turn in range(turns):
        data = quartet(mechanism, seed + 7 * turn)
        first = record(mechanism.run, data[0])
        others = [record(mechanism.run, records, like=first) for records in data[1:]]
        for recording in (first, *others):
            if recording.error is not None:
                raise recording.error
        yield interaction((first, others[0]), (others[1], others[2]))


def interaction(first_pair: tuple[Recording, Recording], second_pair: tuple[Recording, Recording]) -> float:
    """How much one unit changes the contribution of another, as a share of the sensitivity: the maximum over all sums.

    The recordings are of ((x, y), (x', y)) and ((x, y'), (x', y')): the same data, in which two units at two places
    have two versions each. If a sum adds up what each unit contributes alone, both differences are equal. Whether
    contributions are clipped does not matter: an influence that clipping bounds is also an influence.
    """
    (one, changed), (other, both) = first_pair, second_pair
    totals_by_use = [{call.use: call.total for call in recording.calls} for recording in (changed, other, both)]
    largest = 0.0
    for call in one.calls:
        totals = [call.total, *(by_use[call.use] for by_use in totals_by_use if call.use in by_use)]
        if len(totals) < 4 or len({total.shape for total in totals}) > 1:
            return math.inf
        moved = np.abs(totals[0] - totals[1] - totals[2] + totals[3]).max(initial=0.0) / call.sensitivity
        largest = max(largest, float(moved) if math.isfinite(moved) else math.inf)
    return largest


def quartet(mechanism: Mechanism, seed: int) -> list[Records]:
    """(x, y), (x', y), (x, y'), (x', y'): other images and labels, and other numbers of images of persons."""
    rng, records = np.random.default_rng([seed, 0x4]), mechanism.records(SIZE, seed)
    units = _units(records)
    classes = [int(labels[0]) for _, labels in units]
    x, y = next((i, j) for i in range(1, SIZE) for j in range(SIZE - 1, 0, -1) if classes[i] != classes[j])
    versions = {}
    for place in (x, y):
        count = int(rng.integers(1, 6)) if mechanism.persons else 1
        label = (classes[place] + 1 + int(rng.integers(CLASSES - 1))) % CLASSES
        if mechanism.dtype == np.uint8:
            x_new = rng.integers(0, 256, (count, *mechanism.shape), dtype=np.uint8)
        else:
            x_new = (rng.normal(size=(count, *mechanism.shape)) * rng.choice([0.3, 3.0])).astype(mechanism.dtype)
        versions[place] = (x_new, np.full(count, label))
    data_sets = []
    for changed in ((), (x,), (y,), (x, y)):
        present = [versions[i] if i in changed else unit for i, unit in enumerate(units)]
        data_sets.append(_join(present, persons=mechanism.persons))
    return data_sets


def _units(records: Records) -> list[Unit]:
    owners = np.arange(len(records)) if records.persons is None else records.persons
    return [(records.x[owners == who], records.labels[owners == who]) for who in np.unique(owners)]


def _join(units: Sequence[Unit], *, persons: bool) -> Records:
    x, all_labels = (np.concatenate(parts) for parts in zip(*units, strict=True))
    owners = np.repeat(np.arange(len(units)), [len(labels) for _, labels in units]) if persons else None
    return Records(x, all_labels, owners)
