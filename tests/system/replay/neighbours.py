"""Neighbouring data sets: one additional unit of a kind that breaks mechanisms.

Each kind is one unit, an image or a row of features, or a person with several: huge, tiny, zero, not a number, a copy of
another one, the same under another label, or the only one of its class. The images of a person have several labels, and
in half of the cases only the first is unusual. `one_more` appends it to the others, so that the
random draws of all others stay the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError

# Kinds that pixels of 8 bits can have.
OF_BYTES = ("usual", "huge", "tiny", "zero", "duplicate", "opposite", "one number", "wrong label", "last of its class")
KINDS = (*OF_BYTES, "out of range", "denormal", "nan", "inf", "minus inf")


@dataclass(frozen=True)
class Records:
    """Images (N, H, W, C) or rows (N, d), their classes, and their persons if units are persons."""

    x: NDArray[Any]
    labels: NDArray[np.int64]
    persons: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)


def make_records(
    count: int, shape: tuple[int, ...], *, classes: int, seed: int = 0, dtype: Any = np.float64
) -> Records:
    """Random records of all classes except the last."""
    rng = np.random.default_rng(seed)
    if dtype == np.uint8:
        x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    else:
        x = rng.normal(size=(count, *shape)).astype(dtype)
    return Records(x, rng.integers(0, classes - 1, count))


def one_more(records: Records, kind: str, *, classes: int, seed: int = 0, at: int | None = None) -> Records:
    """The records and one more unit of this kind, as the last or (if random draws do not depend on places) before `at`."""
    if kind not in KINDS or (records.x.dtype == np.uint8 and kind not in OF_BYTES):
        raise ConfigError(f"{kind!r} is not a kind of {records.x.dtype} record. Known kinds: {', '.join(OF_BYTES)} ...")
    rng = np.random.default_rng([seed, 7])
    count = 1 if records.persons is None else _image_count(records.persons, rng)
    among_others = count > 1 and bool(rng.integers(2))
    x = np.stack([_unusual(records.x, "usual" if among_others and i else kind, rng) for i in range(count)])
    label = int(rng.integers(classes - 1))
    if kind == "wrong label" and len(records):
        label = (int(records.labels[0]) + 1) % (classes - 1)
    if kind == "last of its class":
        label = classes - 1
    places = [len(records) if at is None else at] * count
    labels = np.where(np.arange(count) % 3 == 2, (label + np.arange(count)) % (classes - 1), label)
    more = Records(np.insert(records.x, places, x, axis=0), np.insert(records.labels, places, labels))
    if records.persons is None:
        return more
    return replace(more, persons=np.insert(records.persons, places, records.persons.max(initial=-1) + 1))


def _image_count(persons: NDArray[np.int64], rng: np.random.Generator) -> int:
    """One image, the number of an existing person, or more than any person has: statistics of these numbers change."""
    counts = np.unique(persons, return_counts=True)[1]
    most = int(counts.max(initial=1))
    return int(rng.choice([1, int(counts[0]) if len(counts) else 1, most + 1, 3 * most, 50]))


def _unusual(others: NDArray[Any], kind: str, rng: np.random.Generator) -> NDArray[Any]:
    shape, first = others.shape[1:], others[0] if len(others) else None
    if others.dtype == np.uint8:
        constant = {"huge": np.full(shape, 255), "tiny": np.ones(shape), "zero": np.zeros(shape)}
        if kind in constant:
            return constant[kind].astype(np.uint8)
        if kind == "one number":
            return np.where(np.arange(math.prod(shape)).reshape(shape) == 1, 255, 0).astype(np.uint8)
        if kind in ("duplicate", "wrong label", "opposite") and first is not None:
            return 255 - first if kind == "opposite" else first.copy()
        return rng.integers(0, 256, shape, dtype=np.uint8)
    usual = rng.normal(size=shape)
    with np.errstate(over="ignore"):
        match kind:
            case "huge":
                return usual * 1e12
            case "out of range":
                return np.sign(usual) * np.finfo(others.dtype).max
            case "tiny":
                return usual * 1e-12
            case "zero":
                return np.zeros(shape)
            case "denormal":
                return np.full(shape, np.finfo(others.dtype).smallest_subnormal)
            case "nan" | "inf" | "minus inf":
                usual.reshape(-1)[usual.size // 2] = {"nan": np.nan, "inf": np.inf, "minus inf": -np.inf}[kind]
            case "one number":
                return np.where(np.arange(usual.size).reshape(shape) == 1, 50.0, 0.0)
            case "duplicate" | "wrong label" if first is not None:
                return first.copy()
            case "opposite" if first is not None:
                return -7 * first
    return usual
