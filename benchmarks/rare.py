"""Rare classes and persons: accuracy in the mean over the classes under both objectives, and releases by person.

DermaMNIST has 7 classes, two of which are 1% of the images each; `shirts-3900` (auto.py) has two, 90% and 10%. Every
result is one line of rare.jsonl, so the full form can be measured in several goes. Nothing was chosen on test images:
the objective `balanced` has no setting of its own, and those of the recipes were chosen before (auto.py, priors.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from benchmarks.auto import source_of
from benchmarks.results import Figure, main
from benchmarks.shared_data import at_hand, unpacked
from dpvision.data import Split, load
from dpvision.private.features.encoders import extract, load_encoder
from dpvision.private.statistics import head_run, release
from dpvision.private.training import train
from dpvision.released.evaluation import read_evaluation
from dpvision.released.folder import read_rows
from dpvision.released.learners import DiscriminantLearner
from dpvision.settings.recipes import recipe, release_recipe
from dpvision.settings.release import with_changes
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from dpvision.storage.home import home

KEPT = Path(__file__).with_name("rare.jsonl")
OBJECTIVES = ("accuracy", "balanced")
DERMA, SHIRTS = "dermamnist-7007", "shirts-3900"
# Persons of three images of one class each, as images and as persons, and one image of each person.
PERSONS = {"digits": 1437, "mnist": 12_000}
SEEDS = 5


@dataclass(frozen=True)
class Case:
    """One way to a classifier: `how` is train, head or release; `seeds` of it are made."""

    data: str
    how: str
    epsilon: float
    objective: str = "accuracy"
    unit: str = "image"
    seeds: int = SEEDS
    model: str | None = None  # of a training, if it is not that of `auto`

    @property
    def title(self) -> str:
        words = [
            self.data,
            self.how,
            *([self.model] if self.model else []),
            self.objective,
            f"epsilon {self.epsilon:g}",
        ]
        return ", ".join([*words, *([f"unit {self.unit}"] if self.unit == "person" else [])])


@dataclass(frozen=True)
class Done:
    """One classifier on the test images: accuracy, its mean over the classes, and that of each class."""

    case: str
    settings: str
    seed: int
    accuracy: float
    balanced: float
    recalls: list[float]
    majority: float
    seconds: float


CASES = (
    *(
        Case(DERMA, "head", epsilon, objective, seeds=2 if epsilon == 3 else 1)
        for epsilon in (3.0, 1.0, 8.0)
        for objective in OBJECTIVES
    ),
    *(Case(DERMA, "train", epsilon, objective, seeds=3) for epsilon in (3.0, 1.0, 8.0) for objective in OBJECTIVES),
    *(
        Case(SHIRTS, how, epsilon, objective, seeds=2 if how == "train" else SEEDS)
        for how in ("train", "head", "release")
        for epsilon in (1.0, 3.0)
        for objective in OBJECTIVES
    ),
    *(
        Case(f"{data}-{kind}", "release", epsilon, unit=unit)
        for data, epsilon in (("digits", 1.0), ("digits", 3.0), ("mnist", 1.0))
        for kind, unit in (("persons", "image"), ("persons", "person"), ("one each", "image"))
    ),
    *(Case(DERMA, "release", 3.0, objective, seeds=3) for objective in OBJECTIVES),
)
QUICK = (
    *(Case(SHIRTS, how, 3.0, objective, seeds=1) for how in ("train", "head", "release") for objective in OBJECTIVES),
    *(Case(DERMA, "train", 3.0, objective, seeds=1, model="patches-256") for objective in OBJECTIVES),
    *(Case("digits-persons", "release", 1.0, unit=unit, seeds=2) for unit in ("image", "person")),
)


class Rare:
    def measure(self, quick: bool) -> list[Figure]:
        scratch = os.environ.get("DPVISION_SCRATCH")
        self.found: dict[Case, list[Done]] = {}
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            folder = Path(scratch or place)
            os.environ["DPVISION_HOME"] = str(folder / "home")  # never the operator's own ledgers or weights
            only = tuple(options().parse_known_args()[0].only)
            for case in (case for case in (QUICK if quick else CASES) if case.title.startswith(only)):
                if not case.data.startswith("digits") and not at_hand():
                    print(f"left out: {case.title}: the shared data is not at hand", file=sys.stderr)
                    continue
                self.found[case] = list(results(case, folder, keep=not quick))
        return list(self._figures(quick))

    def _figures(self, quick: bool) -> Iterator[Figure]:
        for case, done in self.found.items():
            mean = "" if quick else f": mean of {len(done)}"
            goals = goals_of(case)
            yield Figure(f"{case.title}: accuracy{mean}", _mean([d.accuracy for d in done]), low=goals[0])
            yield Figure(f"{case.title}: balanced accuracy{mean}", _mean([d.balanced for d in done]), low=goals[1])
            if case.data == DERMA:
                rarest = _mean([min(d.recalls) for d in done])
                yield Figure(f"{case.title}: accuracy of the worst class{mean}", rarest)

    def table(self) -> str:
        rows = [
            "| case | accuracy | mean over the classes | each class | most frequent class |",
            "|---|---|---|---|---|",
        ]
        for case, done in self.found.items():
            each = " ".join(f"{100 * _mean(list(x)):.0f}" for x in zip(*(d.recalls for d in done), strict=True))
            values = (f"{_mean([getattr(d, name) for d in done]):.1%}" for name in ("accuracy", "balanced", "majority"))
            accuracy, balanced, majority = values
            rows.append(f"| {case.title} | {accuracy} | {balanced} | {each} | {majority} |")
        return "\n".join(rows)


def options() -> argparse.ArgumentParser:
    """The option --only, by which the full form can be measured in parts."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--only", nargs="*", default=[""], help="only cases whose titles begin with one of these words")
    return parser


def goals_of(case: Case) -> tuple[float | None, float | None]:
    """Return the least accuracy and the least balanced accuracy of a case."""
    if case.data == DERMA and case.objective == "balanced" and case.how == "train":
        return None, {1.0: 0.38, 3.0: 0.45}.get(case.epsilon)
    if case.data == SHIRTS and case.objective == "accuracy":
        return 0.9, 0.5
    if case.data == SHIRTS:
        return None, 0.695 if case.epsilon == 1 else 0.745
    return None, None


def results(case: Case, folder: Path, *, keep: bool) -> Iterator[Done]:
    """Yield the kept results of a case, and make those that are missing."""
    lines = KEPT.read_text().splitlines() if keep and KEPT.exists() else []
    old = {(d.case, d.settings, d.seed): d for d in (Done(**json.loads(line)) for line in lines)}
    make = {"train": _train, "head": _head, "release": _release}[case.how]
    settings, run = make(case, folder)
    for seed in range(case.seeds):
        began = time.monotonic()
        done = old.get((case.title, settings, seed))
        if done is None:
            guesses, labels = run()
            shutil.rmtree(home() / "ledgers", ignore_errors=True)  # the data is public: each has its own account
            recalls = [float((guesses[labels == k] == k).mean()) for k in range(labels.max() + 1)]
            done = Done(
                case=case.title,
                settings=settings,
                seed=seed,
                accuracy=float((guesses == labels).mean()),
                balanced=_mean(recalls),
                recalls=[round(x, 4) for x in recalls],
                majority=float(np.bincount(labels).max() / len(labels)),
                seconds=round(time.monotonic() - began, 1),
            )
            print(done, file=sys.stderr, flush=True)
            if keep:
                with KEPT.open("a") as file:
                    file.write(json.dumps(asdict(done)) + "\n")
        yield done


def _train(case: Case, folder: Path) -> tuple[str, Any]:
    given: dict[str, Any] = {"epsilon": case.epsilon, "budget": 1e4, "device": "cpu", "objective": case.objective}
    config = replace(recipe("auto" if case.model is None else "patches", epsilon=case.epsilon), **given)
    if case.model is not None:
        config = replace(config, model=case.model)
    prepared = train.prepare(source_of(case.data, folder), config)
    return prepared.config.hash(), lambda: _guesses_of_run(prepared, train.run)


def _head(case: Case, folder: Path) -> tuple[str, Any]:
    """Fit a head to features by a public encoder: scattering of grey images, patches of colour images."""
    path = folder / f"features of {case.data}.npz"
    if not path.exists():
        data = load(source_of(case.data, folder))
        height, width, channels = data.train.images.shape[1:]
        name = "scatter-linear" if channels == 1 else "patches-256"
        encoder, arrays = load_encoder(name, (channels, height, width)), {}
        for name in ("train", "test"):
            split: Split = getattr(data, name)
            arrays |= {f"{name}_features": np.asarray(extract(encoder, split)), f"{name}_labels": split.labels}
        np.savez(path, **arrays)
    classes = 7 if case.data == DERMA else 2
    config = Config(epsilon=case.epsilon, budget=1e4, objective=case.objective, classes=classes)
    prepared = head_run.prepare(str(path), config)
    return prepared.config.hash(), lambda: _guesses_of_run(prepared, head_run.run)


def _guesses_of_run(prepared: Any, run: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Make a run, and return guesses and labels with the confusions of its evaluation."""
    with tempfile.TemporaryDirectory() as place:
        made = run(prepared, Path(place) / "run").run
        weights = safetensors.read(made.weights).header["digest"]
        figures = read_evaluation(made, classes=len(prepared.data.classes), weights=weights)
    assert figures is not None
    table = np.array(figures["confusion"])
    labels, guesses = (place.repeat(table.reshape(-1)) for place in np.indices(table.shape).reshape(2, -1))
    return guesses, labels


def _release(case: Case, folder: Path) -> tuple[str, Any]:
    source = source_of(case.data, folder) if case.data in (DERMA, SHIRTS) else _persons(case.data, folder)
    given: dict[str, Any] = {"epsilon": case.epsilon, "objective": case.objective, "unit": case.unit, "budget": 1e4}
    prepared = release.prepare(source, with_changes(release_recipe("moments"), given))

    def run() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        encoded = release.Encoded(prepared)
        assert encoded.test is not None
        with tempfile.TemporaryDirectory() as place:
            release.make(prepared, Path(place) / "out", encoded=encoded)
            rows, labels = read_rows(Path(place) / "out")
        learner = DiscriminantLearner(classes=encoded.classes, balanced=case.objective == "balanced").fit(rows, labels)
        return learner.predict(encoded.test[0]).astype(np.int64), encoded.test[1].astype(np.int64)

    settings = repr(replace(prepared.config, chosen_by=None, weights=None))
    return hashlib.blake2b(settings.encode(), digest_size=16).hexdigest(), run


def _persons(name: str, folder: Path) -> str:
    """Write images of persons with three images of one class each, or the first image of each person."""
    path = folder / f"{name}.npz"
    kind, _, which = name.partition("-")
    if not path.exists():
        if kind == "digits":
            x, y = (load_digits().images * 15).astype(np.uint8), load_digits().target.astype(np.int64)
            arrays = {
                "train_images": x[:1437],
                "train_labels": y[:1437],
                "test_images": x[1437:],
                "test_labels": y[1437:],
            }
        else:
            arrays = dict(np.load(unpacked(kind, folder)))
        count = PERSONS[kind]
        x, y = arrays["train_images"][:count], arrays["train_labels"][:count].reshape(-1)
        order = np.argsort(y, kind="stable")
        place = np.concatenate([np.arange((y == k).sum()) for k in np.unique(y)])  # within its class
        persons = np.unique(y[order] * count + place // 3, return_inverse=True)[1]
        taken = np.unique(persons, return_index=True)[1] if which == "one each" else np.arange(count)
        arrays |= {"train_images": x[order][taken], "train_labels": y[order][taken], "train_persons": persons[taken]}
        np.savez(path, **{key: value for key, value in arrays.items() if not key.startswith("val")})
    return str(path)


def _mean(values: list[float]) -> float:
    return statistics.fmean(values)


if __name__ == "__main__":
    rare = Rare()
    main(
        "rare",
        rare.measure,
        about="Test accuracy and its mean over the classes (balanced accuracy) at delta 1e-5, under both objectives, "
        "on unbalanced data; and of releases by image and by person, where each person has three images of one class.",
        below=rare.table,
        more=options(),
    )
