"""Split a data set into a small public part, whose owners have consented, and the private rest.

Every training image goes to exactly one part. The public part has the same number of images of each class, drawn
uniformly from that class; the validation and test splits stay with the private part. If persons are known, all images
of a person go to the same part: persons are considered in random order, and each becomes public unless some class would
then have too many images. Persons who are also in the validation or test split stay private.

    edge case                                          behaviour
    the count is not a multiple of the classes         it is rounded down to a multiple; split.json has the counts
    a class would have no private image                refused, because it could not be learned privately
    whole persons do not add up to the exact number    a class may get a few images fewer; split.json has the counts
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision import __version__
from dpvision.core import files
from dpvision.data import Dataset, Split, identify
from dpvision.errors import ConfigError

FORMAT = "dpvision-split-1"
CONSENT = (
    "By making a split you state that the owners of the images in the public part consented to their publication: "
    "these images are not protected, and results computed from them alone cost no epsilon. Guarantees hold for the "
    "private part as it is after the split. This file contains digests of the private part: do not release it."
)

Rows = NDArray[np.int64]


def split(source: Dataset, out: Path, *, public: int, seed: int) -> dict[str, Any]:
    """Write public.npz, private.npz and split.json into a new folder; return the contents of split.json."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: has other files in it. Fix: use a new folder for --out.")
    train, others = source.train, {"val": source.val, "test": source.test}
    other_persons = [s.persons for s in others.values() if s is not None and s.persons is not None]
    rows = choose(
        train.labels,
        classes=source.classes,
        count=public,
        seed=seed,
        persons=train.persons,
        staying=np.concatenate(other_persons) if other_persons else None,
    )
    rest = np.setdiff1d(np.arange(len(train.labels)), rows)
    parts: dict[str, dict[str, Split]] = {"public": {"train": take(train, rows)}}
    other_splits = {name: take(s, slice(None)) for name, s in others.items() if s is not None}
    parts["private"] = {"train": take(train, rest), **other_splits}
    summary: dict[str, Any] = {
        "format": FORMAT,
        "dpvision": __version__,
        "consent": CONSENT,
        "seed": seed,
        "asked": public,
        "classes": list(source.classes),
        "source": {"name": source.name, "images": len(train.labels), "digest": identify(train)[1]},
    }
    files.make_folder(out)
    for name, splits in parts.items():
        splits = renumber_persons(splits)
        data = encode_npz(splits)
        files.write(out / f"{name}.npz", data)
        summary[name] = {
            "file": f"{name}.npz",
            "images": len(splits["train"].labels),
            "of_each_class": np.bincount(splits["train"].labels, minlength=len(source.classes)).tolist(),
            "digest": identify(splits["train"])[1],
            "blake2b": hashlib.blake2b(data, digest_size=32).hexdigest(),
        }
    summary["public_rows"] = rows.tolist()
    files.write(out / "split.json", json.dumps(summary) + "\n")
    return summary


def choose(
    labels: NDArray[Any],
    *,
    classes: Sequence[str],
    count: int,
    seed: int,
    persons: NDArray[Any] | None = None,
    staying: NDArray[Any] | None = None,
) -> Rows:
    """Return the sorted rows of the public part. Persons in `staying` are never chosen."""
    if seed < 0:
        raise ConfigError(f"seed is {seed}: it must be at least 0.")
    per_class, labels = count // len(classes), np.asarray(labels, dtype=np.int64)
    if per_class < 1:
        raise ConfigError(
            f"{count} public images are too few for {len(classes)} classes: each needs at least one. "
            f"Fix: use --public {len(classes)} or more."
        )
    eligible = np.ones(len(labels), dtype=np.bool_)
    if persons is not None and staying is not None:
        eligible = ~np.isin(persons, staying)
    counts = np.bincount(labels[eligible], minlength=len(classes))
    _require_enough(counts, per_class, classes, all_eligible=bool(eligible.all()))
    rng = np.random.default_rng(seed)
    if persons is None:
        rows = [rng.choice(np.flatnonzero(labels == c), per_class, replace=False) for c in range(len(classes))]
        return np.sort(np.concatenate(rows)).astype(np.int64)
    return _choose_persons(labels, np.asarray(persons), eligible, per_class=per_class, classes=classes, rng=rng)


def hold_out(labels: Rows, *, share: float, seed: int, persons: NDArray[Any] | None = None) -> NDArray[np.bool_]:
    """Return a mask of the rows to hold out: a share of each class or, if persons are known, of whole persons."""
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
            f"--hold-out {share:g} of {len(labels):,} public images leaves no image to evaluate on, or a class without "
            "training images. Fix: use another share."
        )
    return chosen


def take(records: Split, rows: Rows | slice) -> Split:
    """Return the records in these rows."""
    persons = None if records.persons is None else np.asarray(records.persons[rows], dtype=np.int64)
    return Split(np.asarray(records.images[rows]), np.asarray(records.labels[rows], dtype=np.int64), persons)


def renumber_persons(splits: dict[str, Split]) -> dict[str, Split]:
    """Renumber persons from 0 in the order of their old numbers, as a reader of the file would."""
    ids = [part.persons for part in splits.values() if part.persons is not None]
    if not ids:
        return splits
    order = np.unique(np.concatenate(ids))
    return {
        name: Split(p.images, p.labels, None if p.persons is None else np.searchsorted(order, p.persons))
        for name, p in splits.items()
    }


def encode_npz(splits: dict[str, Split]) -> bytes:
    """Return the bytes of an .npz with train_images, train_labels and so on; they depend only on the arrays."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, part in splits.items():
        arrays |= {f"{name}_images": part.images, f"{name}_labels": part.labels}
        if part.persons is not None:
            arrays[f"{name}_persons"] = part.persons
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _choose_persons(
    labels: Rows,
    persons: NDArray[Any],
    eligible: NDArray[np.bool_],
    *,
    per_class: int,
    classes: Sequence[str],
    rng: np.random.Generator,
) -> Rows:
    """Choose persons in random order, skipping those who would give a class more than `per_class` images."""
    ids, number = np.unique(persons, return_inverse=True)
    counts = np.zeros((len(ids), len(classes)), dtype=np.int64)
    np.add.at(counts, (number, labels), 1)
    candidates = np.zeros(len(ids), dtype=np.bool_)
    candidates[number[eligible]] = True
    public, total = np.zeros(len(ids), dtype=np.bool_), np.zeros(len(classes), dtype=np.int64)
    for person in rng.permutation(np.flatnonzero(candidates)):
        if (total + counts[person] <= per_class).all():
            public[person], total = True, total + counts[person]
    empty = [name for name, count in zip(classes, total, strict=True) if not count]
    if empty:
        raise ConfigError(
            f"class {empty[0]!r}: no person fits into {per_class} public images per class, because all images of a "
            "person must be in one part. Fix: use a larger --public."
        )
    return np.flatnonzero(public[number])


def _require_enough(counts: Rows, per_class: int, classes: Sequence[str], *, all_eligible: bool) -> None:
    smallest = int(counts.argmin())
    if counts[smallest] > per_class:
        return
    whose = "" if all_eligible else " from persons who are in no other split"
    limit = max(0, int(counts[smallest]) - 1) * len(classes)
    fix = f"use --public {limit} or less" if limit else "use more images of it, or other classes"
    raise ConfigError(
        f"class {classes[smallest]!r} has {counts[smallest]:,} training images{whose}: making {per_class:,} per class "
        f"public would leave none private. Fix: {fix}."
    )
