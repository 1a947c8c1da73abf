"""LiRA on a run: repeat its training several times, each time on a random half of the records (Carlini et al. 2022).

The records are those of the training split, which the run has seen, and of the test split, which it has not. A shadow
model is trained on half of them with the run's settings, sampling rate, steps, clipping, noise multiplier and device;
its expected batch size is the same share of its records. The shadow models are used in two attacks:

    this_model         attacks the run's model with all shadow models: training records against test records
    shadows_in_turn    attacks each shadow model with all others: its half against the other half. The halves are
                       random, so a difference between the splits cannot be mistaken for membership, and there are more
                       scores

Shadow models are not released. They are trained by the same function as a run, with fresh keys, and charge a temporary
ledger: they have their own DPVISION_HOME below operator/, which is removed at the end (or by the next audit, if this
one is killed). They are not charged to the data set's account, which is sound as long as no result leaves operator/:
results are computed without noise from the random halves and the private images.
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
import torch
from numpy.typing import NDArray

from dpvision.audit.canaries import ANY_BUDGET, OnProgress
from dpvision.audit.membership import (
    Curve,
    Floats,
    Membership,
    evaluate_attack,
    lira_scores,
    logit_confidences,
    require_classes,
    roc_curve,
    train_shadows,
)
from dpvision.core import files
from dpvision.data import Dataset, Split
from dpvision.errors import ConfigError, DataError
from dpvision.models.inputs import Inputs, predict_scores
from dpvision.private.training.prepare import prepare, prepare_read
from dpvision.private.training.private_sum import count_units
from dpvision.private.training.state import State
from dpvision.private.training.train import Display, Progress, rule_of
from dpvision.private.training.train import run as train_run
from dpvision.released.model import load_model
from dpvision.settings.training import Config
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import home, use_home

# Each shadow model is attacked with the others: every record must be in one of them and not in another.
FEWEST = 4
WARNING = (
    "NOT FOR RELEASE: computed from private images without noise. The shadow models were trained on these images "
    "without a charge to the data set's account. They were removed, and no part of this file may leave operator/."
)


@dataclass(frozen=True, eq=False)
class Lira:
    """The results of both attacks, and their ROC curves."""

    shadows: int
    unit: str
    classes: tuple[str, ...]
    this_model: Membership
    shadows_in_turn: Membership
    curves: dict[str, Curve]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for operator/lira.json."""
        return {
            "warning": WARNING,
            "shadows": self.shadows,
            "unit": self.unit,
            "this_model": self.this_model.as_json(self.classes),
            "shadows_in_turn": self.shadows_in_turn.as_json(self.classes),
        }


@dataclass(frozen=True, eq=False)
class Pool:
    """All records and their units; for each unit, its first record and whether the run has seen it."""

    records: Split
    of: NDArray[np.int64]
    first: NDArray[np.int64]
    seen: NDArray[np.bool_]

    def mean_by_unit(self, scores: Floats) -> Floats:
        """Return the mean score of each unit's records."""
        return np.asarray(np.bincount(self.of, scores) / np.bincount(self.of))

    def divide(self, scores: Floats, inside: NDArray[np.bool_]) -> tuple[NDArray[Any], ...]:
        """Return the scores of the units inside and outside, and then their classes."""
        classes = np.asarray(self.records.labels)[self.first]
        return scores[inside], scores[~inside], classes[inside], classes[~inside]


@dataclass(frozen=True, eq=False)
class ShadowPlan:
    """A checked plan of an attack: the run, its data and settings, and the number of shadow models."""

    run: run_folder.Run
    source: str
    count: int
    config: Config
    data: Dataset
    pool: Pool


def plan_shadows(
    run: run_folder.Run, source: str, *, count: int, device: torch.device | str | None = None
) -> ShadowPlan:
    """Check that a run can be attacked, before anything is trained or written.

    Shadow models are trained on `device`, by default that of the run.
    """
    if count < FEWEST or count % 2:
        raise ConfigError(f"--shadows {count}: it must be an even number of at least {FEWEST}, such as 8.")
    config = State.config_of(safetensors.read(run.state).header, run.state)  # with the folders of public inputs
    config = config if device is None else replace(config, device=str(device))
    require_classes(config.task)
    prepared = prepare(source, config, rule=rule_of(run.facts()))
    if prepared.fingerprint != run.facts().get("fingerprint"):
        raise DataError(
            f"{source}: these are not the images that the run was trained on, so its members are unknown. Fix: give "
            "the data set of the run."
        )
    return ShadowPlan(run, source, count, config, prepared.data, _pool(prepared.data, config.unit, source))


def train_shadows_and_attack(plan: ShadowPlan, *, progress: OnProgress = lambda *_: None) -> Lira:
    """Train the shadow models (each takes as long as a run), attack with them, and remove them."""
    run, pool = plan.run, plan.pool
    with run_folder.only_one(run), temporary_home(run.operator / "shadows") as home_folder:
        fit = _fit_function(plan, home_folder / "run", progress)
        seed = secrets.randbits(63)
        phi, inside = train_shadows(fit, pool.records.labels, count=plan.count, units=pool.of, seed=seed)
    target = _confidences(run.folder, pool.records, plan.config.device)
    this_model = pool.divide(pool.mean_by_unit(lira_scores(target, phi, inside)), pool.seen)
    turns = []
    for number in range(len(phi)):
        others = np.arange(len(phi)) != number
        scores = pool.mean_by_unit(lira_scores(phi[number], phi[others], inside[others]))
        turns.append(pool.divide(scores, inside[number, pool.first]))
    in_turn = [np.concatenate(parts) for parts in zip(*turns, strict=True)]
    return Lira(
        len(phi),
        plan.config.unit,
        tuple(plan.data.classes),
        evaluate_attack(*this_model[:2], classes=(this_model[2], this_model[3])),
        evaluate_attack(*in_turn[:2], classes=(in_turn[2], in_turn[3])),
        {"LiRA on this model": roc_curve(*this_model[:2]), "on each shadow model": roc_curve(*in_turn[:2])},
    )


def _confidences(folder: Path, records: Split, device: torch.device | str) -> Floats:
    """Return phi of each record under the model of a run."""
    scores = predict_scores(load_model(folder, device=device).model, Inputs(records))
    return logit_confidences(scores, records.labels)


def _pool(data: Dataset, unit: str, source: str) -> Pool:
    if data.test is None:
        raise DataError(f"{source}: it has no test split, so there are no images to compare with.")
    train, test, persons = data.train, data.test, None
    if unit == "person":
        if train.persons is None or test.persons is None:
            raise DataError(
                f"{source}: the unit of the run is a person, and a split does not state whose images it has, so the "
                "members are unknown. Fix: use data with persons in both splits, or omit --shadows."
            )
        persons = np.concatenate([train.persons, test.persons])
    images, labels = (np.concatenate([getattr(s, name) for s in (train, test)]) for name in ("images", "labels"))
    units_of = np.arange(len(labels)) if persons is None else persons
    _, first, of = np.unique(units_of, return_index=True, return_inverse=True)
    seen = np.bincount(of, np.arange(len(labels)) < len(train)) > 0
    if seen.all():
        raise DataError(
            f"{source}: every person of the test split is also in the training split, so there are no non-members."
        )
    return Pool(Split(images, labels, persons), of, first, seen)


class _ShadowDisplay(Display):
    """Reports the steps of a shadow model."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report

    @contextmanager
    def training(self) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
        yield (lambda progress: self._report(progress.step)), (lambda: False)


def _fit_function(plan: ShadowPlan, folder: Path, progress: OnProgress) -> Callable[[NDArray[np.int64]], Floats]:
    """Return a function that trains on the given records in `folder` and returns phi of all records."""
    config, records = plan.config, plan.pool.records
    assert config.batch and config.n and config.steps
    rate, steps, done = config.batch / config.n, config.steps, 0

    def fit(rows: NDArray[np.int64]) -> Floats:
        nonlocal done
        persons = None if records.persons is None else records.persons[rows]
        half = Split(records.images[rows], records.labels[rows], persons)
        n = count_units(half, config.unit)
        batch = n if config.full_batch else max(1, round(rate * n))
        # The epsilon of the rounded rate does not matter: no result is released.
        shadow_config = replace(config, n=n, batch=batch, canaries=0, study=False, budget=ANY_BUDGET.epsilon)
        data = replace(plan.data, train=half, val=None, test=None)
        prepared = prepare_read(data, shadow_config, source=plan.source)
        display = _ShadowDisplay(lambda step: progress(done + step, plan.count * steps))
        run = train_run(prepared, folder, display=display).run
        phi = _confidences(run.folder, records, config.device)
        shutil.rmtree(run.folder)
        done += steps
        return phi

    return fit


@contextmanager
def temporary_home(folder: Path) -> Iterator[Path]:
    """Use a DPVISION_HOME for ledgers, keys and features that is removed at the end; public priors are shared.

    A symbolic link in its place is refused, because keys would be written, and files removed, at its target.
    """
    priors = home().absolute() / "priors"
    run_folder.remove_folder(folder)  # left behind by an audit that was killed
    files.make_folder(folder)
    if priors.is_dir():
        (folder / "priors").symlink_to(priors)
    try:
        with use_home(folder):
            yield folder
    finally:
        shutil.rmtree(folder)
