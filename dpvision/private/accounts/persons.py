"""What data needs if the unit is a person: the person of each record, and no record under two persons."""

from __future__ import annotations

import numpy as np

from dpvision.data import Dataset, Split
from dpvision.errors import ConfigError, DataError
from dpvision.private.accounts.overlap import Sketch


def require_persons(data: Dataset, unit: str, source: str) -> None:
    """Refuse the unit person, before anything is charged, if the data does not name the person of each record."""
    if unit == "person" and data.train.persons is None:
        raise ConfigError(
            f"{source}: --unit person needs the person on each image. Fix: add a CSV column 'person', train_persons to "
            "an .npz file, or persons= to `fit`."
        )


def require_one_person_each(split: Split, sketch: Sketch, unit: str, source: str) -> None:
    """Require that no record appears under two persons, except blank images, which have no digest."""
    if unit != "person":
        return
    assert split.persons is not None
    digested = sketch.digests[:, 0] > 0
    pairs = np.unique(np.column_stack([sketch.digests[digested, 0], split.persons[digested].astype(np.uint64)]), axis=0)
    _, counts = np.unique(pairs[:, 0], return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"{source}: {int((counts > 1).sum()):,} images appear more than once, under different persons, so the "
            "guarantee for these persons would not hold. Fix: keep each of these images once, under one person, or "
            "give all persons on an image the same name."
        )


def count_in_both(data: Dataset) -> int:
    """Return the number of persons in both splits, whose guarantee does not cover the test accuracy."""
    train, test = data.train.persons, None if data.test is None else data.test.persons
    return 0 if train is None or test is None else len(np.intersect1d(train, test))
