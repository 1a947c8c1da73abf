"""Cuts a data set into a small public part, whose owners consented, and the private rest.

Every image to train on is in exactly one part. The public part has equally many images of each class, drawn uniformly
among that class; the validation and test splits stay with the private part as they were. Where it is known who is on
which image, a person is wholly in one part: persons are drawn in a random order, and one is taken if no class gets more
images than it may have. Persons who are in the validation or test split too stay private.

    edge case                                  behaviour
    count is no multiple of the classes        the largest multiple below it is taken; the counts tell
    a class that would have no private image   refused: it could not be learned privately
    whole persons do not add up exactly        a class may get a few images less; the counts tell
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpvision import __version__
from dpvision.core import files
from dpvision.errors import ConfigError

FORMAT = "dpvision-split-1"
CONSENT = (
    "Whoever splits states that the owners of the images in the public part consented to publish them: nothing "
    "protects them, and whatever is made of them alone costs no epsilon. Guarantees hold for the private part, as it "
    "is after the split. This file has digests of the private part, so it is not to be released."
)

Rows = NDArray[np.int64]


class Records(Protocol):
    """Of one split: (N, H, W, C) images, (N,) labels and, where known, (N,) numbers of the persons on them."""

    @property
    def images(self) -> NDArray[Any]: ...
    @property
    def labels(self) -> NDArray[Any]: ...
    @property
    def persons(self) -> NDArray[Any] | None: ...


class Source(Protocol):
    """A data set as it was read."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def train(self) -> Records: ...
    @property
    def val(self) -> Records | None: ...
    @property
    def test(self) -> Records | None: ...


@dataclass(frozen=True, eq=False)
class Part:
    """Some records of a split."""

    images: NDArray[Any]
    labels: Rows
    persons: Rows | None
    originals: None = None


def split(source: Source, out: Path, *, public: int, seed: int, digest: Callable[[Any], str]) -> dict[str, Any]:
    """Write public.npz, private.npz and split.json into a new folder; what split.json says is returned.

    `digest` names a split's records: their images, labels and persons, in their order.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: has other files in it. Fix: a new folder for --out.")
    train, others = source.train, {"val": source.val, "test": source.test}
    known = [s.persons for s in others.values() if s is not None and s.persons is not None]
    rows = choose(
        train.labels,
        classes=source.classes,
        count=public,
        seed=seed,
        persons=train.persons,
        staying=np.concatenate(known) if known else None,
    )
    rest = np.setdiff1d(np.arange(len(train.labels)), rows)
    parts: dict[str, dict[str, Part]] = {"public": {"train": taken(train, rows)}}
    kept = {name: taken(s, slice(None)) for name, s in others.items() if s is not None}
    parts["private"] = {"train": taken(train, rest), **kept}
    said: dict[str, Any] = {
        "format": FORMAT,
        "dpvision": __version__,
        "consent": CONSENT,
        "seed": seed,
        "asked": public,
        "classes": list(source.classes),
        "source": {"name": source.name, "images": len(train.labels), "digest": digest(train)},
    }
    files.make_folder(out)
    for name, splits in parts.items():
        splits = numbered_anew(splits)
        data = as_npz(splits)
        files.write(out / f"{name}.npz", data)
        said[name] = {
            "file": f"{name}.npz",
            "images": len(splits["train"].labels),
            "of_each_class": np.bincount(splits["train"].labels, minlength=len(source.classes)).tolist(),
            "digest": digest(splits["train"]),
            "blake2b": hashlib.blake2b(data, digest_size=32).hexdigest(),
        }
    said["public_rows"] = rows.tolist()
    files.write(out / "split.json", json.dumps(said) + "\n")
    return said


def choose(
    labels: NDArray[Any],
    *,
    classes: Sequence[str],
    count: int,
    seed: int,
    persons: NDArray[Any] | None = None,
    staying: NDArray[Any] | None = None,
) -> Rows:
    """The rows of the public part, sorted. Persons among `staying` are not taken."""
    if seed < 0:
        raise ConfigError(f"seed is {seed}: it must be 0 or more.")
    each, labels = count // len(classes), np.asarray(labels, dtype=np.int64)
    if each < 1:
        raise ConfigError(
            f"{count} public images are less than one of each of {len(classes)} classes. Fix: --public {len(classes)} "
            "or more."
        )
    able = np.ones(len(labels), dtype=np.bool_)
    if persons is not None and staying is not None:
        able = ~np.isin(persons, staying)
    _require_enough(np.bincount(labels[able], minlength=len(classes)), each, classes, whole=bool(able.all()))
    rng = np.random.default_rng(seed)
    if persons is None:
        some = [rng.choice(np.flatnonzero(labels == c), each, replace=False) for c in range(len(classes))]
        return np.sort(np.concatenate(some)).astype(np.int64)
    return _whole_persons(labels, np.asarray(persons), able, each=each, classes=classes, rng=rng)


def aside(labels: Rows, *, share: float, seed: int, persons: NDArray[Any] | None = None) -> NDArray[np.bool_]:
    """Which rows to keep aside for a look afterwards: this share of each class, or of whole persons where known."""
    rng, chosen = np.random.default_rng(seed), np.zeros(len(labels), dtype=np.bool_)
    if persons is None:
        for c in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == c))
            chosen[members[: round(share * len(members))]] = True
    else:
        _, number, images = np.unique(persons, return_inverse=True, return_counts=True)
        order = rng.permutation(len(images))
        chosen = np.isin(number, order[np.cumsum(images[order]) <= share * len(labels)])
    if share and (not chosen.any() or len(np.unique(labels[~chosen])) < len(np.unique(labels))):
        raise ConfigError(
            f"--hold-out {share:g} of {len(labels):,} public images leaves none to look at, or a class without one to "
            "learn from. Fix: another share."
        )
    return chosen


def taken(records: Records, rows: Rows | slice) -> Part:
    """The same records, but these rows only."""
    persons = None if records.persons is None else np.asarray(records.persons[rows], dtype=np.int64)
    return Part(np.asarray(records.images[rows]), np.asarray(records.labels[rows], dtype=np.int64), persons)


def numbered_anew(splits: dict[str, Part]) -> dict[str, Part]:
    """With persons numbered from 0 in the order of their old numbers, as a reader of the file will number them."""
    ids = [part.persons for part in splits.values() if part.persons is not None]
    if not ids:
        return splits
    order = np.unique(np.concatenate(ids))
    return {
        name: Part(p.images, p.labels, None if p.persons is None else np.searchsorted(order, p.persons))
        for name, p in splits.items()
    }


def as_npz(splits: dict[str, Part]) -> bytes:
    """The bytes of an .npz with train_images, train_labels and so on; the same for the same arrays."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, part in splits.items():
        arrays |= {f"{name}_images": part.images, f"{name}_labels": part.labels}
        if part.persons is not None:
            arrays[f"{name}_persons"] = part.persons
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return file.getvalue()


def _whole_persons(
    labels: Rows,
    persons: NDArray[Any],
    able: NDArray[np.bool_],
    *,
    each: int,
    classes: Sequence[str],
    rng: np.random.Generator,
) -> Rows:
    """Persons in a random order, each taken if no class then has more than `each` images."""
    who, number = np.unique(persons, return_inverse=True)
    has = np.zeros((len(who), len(classes)), dtype=np.int64)
    np.add.at(has, (number, labels), 1)
    free = np.zeros(len(who), dtype=np.bool_)
    free[number[able]] = True
    public, so_far = np.zeros(len(who), dtype=np.bool_), np.zeros(len(classes), dtype=np.int64)
    for person in rng.permutation(np.flatnonzero(free)):
        if (so_far + has[person] <= each).all():
            public[person], so_far = True, so_far + has[person]
    without = [name for name, got in zip(classes, so_far, strict=True) if not got]
    if without:
        raise ConfigError(
            f"class {without[0]!r}: no person fits into {each} public images of each class, as a person is wholly in "
            "one part. Fix: a larger --public."
        )
    return np.flatnonzero(public[number])


def _require_enough(counts: Rows, each: int, classes: Sequence[str], *, whole: bool) -> None:
    least = int(counts.argmin())
    if counts[least] > each:
        return
    whose = "" if whole else " of persons who are in no other split"
    most = max(0, int(counts[least]) - 1) * len(classes)
    fix = f"--public {most} at most" if most else "more images of it, or other classes"
    raise ConfigError(
        f"class {classes[least]!r} has {counts[least]:,} images{whose} to train on: {each:,} public ones of each class "
        f"would leave none that is private. Fix: {fix}."
    )
