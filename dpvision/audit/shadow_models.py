"""LiRA on a run: its own training, again and again, each time on a random half of the records (Carlini et al. 2022).

The records are those of the training split, which the run has seen, and of the test split, which it has not. A shadow
model gets half of all of them, and has the run's settings, rate, steps, clipping and noise multiplier; as it learns
from other numbers of records, its expected batch is the same share of them. Two attacks come of it:

    this_model         the run's model, by all shadow models: training records against test records
    shadows_in_turn    each shadow model, by all others: its half against the other half. Which half is chance, so no
                       difference between the splits can pass for membership; and there are many more scores

What is trained here is no release. It is trained by the same function, with fresh keys, and charges a ledger that is
thrown away with them: a DPVISION_HOME of its own below operator/, which is removed at the end (or by the next audit, if
this one is killed). The data set's account does not tell of it, and need not as long as nothing of it leaves operator/:
no noise protects what is found here, as there is none on what decides who is in which half.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.audit.auditing import answers, of_membership
from dpvision.audit.canaries import ANY_BUDGET
from dpvision.audit.membership import Floats, Membership, attack_success, confidences, lira, roc, shadows
from dpvision.core import files
from dpvision.core.ledger import home, home_is
from dpvision.data import Dataset, Split
from dpvision.errors import ConfigError, DataError
from dpvision.private.training.prepare import prepare, prepare_read
from dpvision.private.training.state import State
from dpvision.private.training.train import Face
from dpvision.private.training.train import Progress as Seen
from dpvision.private.training.train import run as train_run
from dpvision.private.training.units import units
from dpvision.released.model import load_model
from dpvision.settings.training import Config
from dpvision.storage import leftovers, run_folder, safetensors

# In turn, each shadow model is attacked by the others: everybody must be in one of them and out of one.
FEWEST = 4
WARNING = (
    "FOR THE OPERATOR'S EYES ONLY: computed from private images without noise. The shadow models were trained on these "
    "images and are not on the data set's account. They were removed, and nothing of this file may leave operator/."
)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Lira:
    """What both attacks found, and their curves."""

    shadows: int
    unit: str
    classes: tuple[str, ...]
    this_model: Membership
    shadows_in_turn: Membership
    curves: dict[str, tuple[Floats, Floats]]

    def told(self) -> dict[str, Any]:
        """As plain values, for operator/lira.json."""
        attacks = {name: of_membership(getattr(self, name), self.classes) for name in ("this_model", "shadows_in_turn")}
        return {"warning": WARNING, "shadows": self.shadows, "unit": self.unit, **attacks}


@dataclass(frozen=True, eq=False)
class Pool:
    """All records, and of each unit: its number by record, its first record, and whether the run has seen it."""

    records: Split
    of: NDArray[np.int64]
    first: NDArray[np.int64]
    seen: NDArray[np.bool_]

    def by_unit(self, scores: Floats) -> Floats:
        """The mean score of a unit's records."""
        return np.asarray(np.bincount(self.of, scores) / np.bincount(self.of))

    @property
    def classes(self) -> NDArray[np.int64]:
        return np.asarray(self.records.labels)[self.first]


@dataclass(frozen=True, eq=False)
class Planned:
    """An attack that can be made: of which run, with how many shadow models, on whose records."""

    run: run_folder.Run
    source: str
    count: int
    config: Config
    data: Dataset
    pool: Pool


def plan(run: run_folder.Run, source: str, *, count: int) -> Planned:
    """Refuse what cannot be attacked; nothing is done yet."""
    if count < FEWEST or count % 2:
        raise ConfigError(f"--shadows {count}: it must be an even number, {FEWEST} at least, such as 8.")
    config = State.config_of(safetensors.read(run.state).header, run.state)  # with the folders of public inputs
    prepared = prepare(source, config)
    if prepared.fingerprint != run.facts().get("fingerprint"):
        raise DataError(f"{source}: these are not the images that the run was trained on, so who was in is not known.")
    return Planned(run, source, count, config, prepared.data, _pool(prepared.data, config.unit, source))


def attack_by_shadows(planned: Planned, *, progress: Progress = lambda *_: None) -> Lira:
    """Train the shadow models, remove them, and tell what they find."""
    run, config, data, pool, count = planned.run, planned.config, planned.data, planned.pool, planned.count
    with run_folder.only_one(run), throw_away_home(run.operator / "shadows") as place:
        fit = _training(data, pool.records, config, planned.source, place, count, progress)
        seed = secrets.randbits(63)
        phi, inside = shadows(fit, pool.records.labels, count=count, units=pool.of, seed=seed)
    target = confidences(answers(load_model(run.folder), pool.records), pool.records.labels)
    return _found(pool, target, phi, inside, unit=config.unit, classes=tuple(data.classes))


def _found(
    pool: Pool,
    target: Floats,
    phi: Floats,
    inside: NDArray[np.bool_],
    *,
    unit: str,
    classes: tuple[str, ...],
) -> Lira:
    scores = pool.by_unit(lira(target, phi, inside, online=True))
    this = _split(scores, pool.seen, pool.classes)
    turns = []
    for number in range(len(phi)):
        rest = np.arange(len(phi)) != number
        own = pool.by_unit(lira(phi[number], phi[rest], inside[rest], online=True))
        turns.append(_split(own, inside[number, pool.first], pool.classes))
    pooled = [np.concatenate([turn[i] for turn in turns]) for i in range(4)]
    return Lira(
        len(phi),
        unit,
        classes,
        attack_success(this[0], this[1], classes=(this[2], this[3])),
        attack_success(pooled[0], pooled[1], classes=(pooled[2], pooled[3])),
        {"LiRA on this model": roc(this[0], this[1]), "on each shadow model": roc(pooled[0], pooled[1])},
    )


def _split(scores: Floats, there: NDArray[np.bool_], classes: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    return scores[there], scores[~there], classes[there], classes[~there]


def _pool(data: Dataset, unit: str, source: str) -> Pool:
    if data.test is None:
        raise DataError(f"{source}: it has no test split, so there are no images to compare with.")
    train, test, persons = data.train, data.test, None
    if unit == "person":
        if train.persons is None or test.persons is None:
            raise DataError(
                f"{source}: it does not say whose the test images are, and the run counts persons, so who was in is "
                "not known. Fix: data with persons in both splits, or leave --shadows out."
            )
        persons = np.concatenate([train.persons, test.persons])
    images, labels = (np.concatenate([getattr(s, name) for s in (train, test)]) for name in ("images", "labels"))
    who = np.arange(len(labels)) if persons is None else persons
    _, first, of = np.unique(who, return_index=True, return_inverse=True)
    seen = np.bincount(of, np.arange(len(labels)) < len(train)) > 0
    if seen.all():
        raise DataError(f"{source}: everybody of the test split is in the training split too: nobody is left outside.")
    return Pool(Split(images, labels, persons), of, first, seen)


class _Counting(Face):
    """Counts the steps of all shadow models together."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count

    @contextmanager
    def training(self) -> Iterator[tuple[Callable[[Seen], None], Callable[[], bool]]]:
        yield (lambda seen: self._count(seen.step)), (lambda: False)


def _training(
    data: Dataset, records: Split, config: Config, source: str, place: Path, count: int, progress: Progress
) -> Callable[[NDArray[np.int64]], Floats]:
    """A function that trains on some of the records and gives the model's scores of all of them."""
    assert config.batch and config.n and config.steps
    rate, steps, done = config.batch / config.n, config.steps, 0

    def fit(rows: NDArray[np.int64]) -> Floats:
        nonlocal done
        persons = None if records.persons is None else records.persons[rows]
        half = Split(records.images[rows], records.labels[rows], persons)
        n = units(half, config.unit)
        batch = n if config.full_batch else max(1, round(rate * n))
        # Whatever their rounded rate tells: nothing of this is released.
        own = replace(config, n=n, batch=batch, canaries=0, study=False, budget=ANY_BUDGET.epsilon)
        prepared = prepare_read(replace(data, train=half, val=None, test=None), own, source=source)
        run = train_run(prepared, place / "run", face=_Counting(lambda step: progress(done + step, count * steps))).run
        found = answers(load_model(run.folder), records)
        shutil.rmtree(run.folder)
        done += steps
        return found

    return fit


@contextmanager
def throw_away_home(place: Path) -> Iterator[Path]:
    """Ledgers, keys and features in a folder of their own, which is removed; priors, which are public, are shared.

    A link in its place is refused: keys would be kept, and things removed, wherever it leads.
    """
    priors = home().absolute() / "priors"
    leftovers.remove_folder(place)  # of one that was killed
    files.make_folder(place)
    if priors.is_dir():
        (place / "priors").symlink_to(priors)
    try:
        with home_is(place):
            yield place
    finally:
        shutil.rmtree(place)
