"""Whole runs as functions from records to everything that they publish: image files in, released files out.

training           `train.prepare`, `begin` and `proceed`, for every kind of clipping, views and assistance
release, tuning    the same for `release.making` and `tune`
estimators         the scikit-learn classes, from arrays

Public images, the test split and the validation split are the same for all records, so results may depend on nothing but
noisy sums. The state of a run is also compared: the guarantee covers every intermediate state.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from dpvision.audit.recording import patched
from dpvision.estimators import PrivateImageClassifier, PrivateRelease
from dpvision.private.features import public_map
from dpvision.private.statistics import head_run, release
from dpvision.private.statistics.baselines import synthesis
from dpvision.private.training import train, tune
from dpvision.private.training.stopping import Stopping
from dpvision.public import dictionary
from dpvision.released import report
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import with_changes
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from tests.private.statistics.releases.small import FEW_STEPS
from tests.system.replay.neighbours import Records

CLASSES, SIDE, N = 4, 12, 12
SETTINGS = Config(epsilon=3.0, n=N, batch=6, steps=4, budget=1e4, classes=CLASSES, lr=0.1)
TRIALS = 2
CARD = (
    "accuracy",
    "status",
    "unit",
    "guarantee",
    "events",
    "read_off",
    "tuning",
    "not_covered",
    "mechanism",
    "features",
    "config",
)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@contextmanager
def fewer_random_images() -> Iterator[None]:
    """Make dictionaries, whitening and the networks of published methods fast."""
    init: Any = dictionary.DictionarySettings.__init__
    few = {"images": 40, "patches": 2000}
    with ExitStack() as stack:
        short = lambda self, *shape, **more: init(self, *shape, **{**few, **more})  # noqa: E731
        stack.enter_context(patched(dictionary.DictionarySettings, "__init__", short))
        stack.enter_context(patched(public_map, "IMAGES", 100))
        stack.enter_context(patched(synthesis, "METHODS", FEW_STEPS))
        yield


@cache
def priors() -> str:
    made = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, made)
    return made


def public_records(count: int, *, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, 0xAB])
    return {
        "images": rng.integers(0, 256, (count, SIDE, SIDE, 1), dtype=np.uint8),
        "labels": np.arange(count) % CLASSES,
    }


def write(path: Path, records: Records, *, held_out: int | None = 0) -> str:
    """Write a file of the records with the test and validation split that `held_out` selects, or none; and public images."""
    arrays = {"train_images": records.x, "train_labels": records.labels}
    others = {} if held_out is None else {"val": 12, "test": 40}
    for number, (split, count) in enumerate(others.items()):
        split_records = public_records(count, seed=10 * (held_out or 0) + number + 1)
        arrays |= {f"{split}_{name}": values for name, values in split_records.items()}
        if records.persons is not None:
            arrays[f"{split}_persons"] = 1000 * (number + 1) + np.arange(count) // 2
    if records.persons is not None:
        arrays["train_persons"] = records.persons
    np.savez(path / "data.npz", **arrays)
    public = public_records(3 * CLASSES, seed=77)
    np.savez(path / "public.npz", train_images=public["images"], train_labels=public["labels"])
    return str(path / "data.npz")


@contextmanager
def home() -> Iterator[Path]:
    """A folder with its own $DPVISION_HOME; priors from random images are shared."""
    with folder() as path, fewer_random_images():
        (path / "home").mkdir()
        (path / "home" / "priors").symlink_to(priors())
        before = os.environ.get("DPVISION_HOME")
        os.environ["DPVISION_HOME"] = str(path / "home")
        try:
            yield path
        finally:
            os.environ.pop("DPVISION_HOME") if before is None else os.environ.update(DPVISION_HOME=before)


def files(path: Path) -> dict[str, object]:
    return {p.name: p.read_bytes() for p in sorted(path.iterdir()) if p.is_file()}


@dataclass(frozen=True)
class Run:
    """A training; with `stop_after`, it is stopped after that number of steps and resumed."""

    changes: dict[str, Any]
    held_out: int | None = 0
    stop_after: int | None = None
    resumed_with: tuple[tuple[str, Any], ...] = ()

    def __call__(self, records: Records) -> dict[str, object]:
        with home() as path:
            source = write(path, records, held_out=self.held_out)
            prepared = train.prepare(source, self.config(path))
            run = train.begin(prepared, path / "run")
            if self.stop_after is not None:
                stops = iter([False] * self.stop_after + [True])
                train.proceed(run, prepared, stop=lambda: next(stops))
                before = load_file(run.state)
                prepared = train.reopen(run, dict(self.resumed_with))
                train.proceed(run, prepared)
                return {**files(run.folder), "state": load_file(run.state), "state before": before}
            train.proceed(run, prepared)
            return {**files(run.folder), "state": load_file(run.state)}

    def config(self, path: Path) -> Config:
        changes = dict(self.changes)
        if changes.get("assist") or changes.get("k_diff"):
            changes["synthetic"] = str(path / "public.npz")
        return replace(SETTINGS, **changes)


@dataclass(frozen=True)
class ReleaseRun:
    """A released data set."""

    recipe: str
    changes: dict[str, Any]
    held_out: int | None = 0

    def __call__(self, records: Records) -> dict[str, object]:
        asked = {"n": N, "classes": CLASSES, "epsilon": 3.0, "budget": 1e4, "rows": 16, "encoder": "pixels", "rank": 0}
        settings = with_changes(release_recipe(self.recipe), {**asked, **self.changes})
        with home() as path, patched(report, "write_release", _card):
            prepared = release.prepare(write(path, records, held_out=self.held_out), settings)
            card = release.make(prepared, path / "out")
            return {**files(path / "out"), "card.json": card}


def _card(_folder: Path, facts: dict[str, Any], _account: object) -> dict[str, Any]:
    """The facts on the card; accounts are named by the images of the data set, and no card states them."""
    return {name: value for name, value in facts.items() if name not in ("run", "accounts")}


def features(source: str, *, columns: int) -> str:
    """Write some pixels of each image of a file as rows of features, with the same labels and splits."""
    place = Path(source).with_name(f"features of {Path(source).name}")
    with np.load(source) as arrays:
        kept = {name: arrays[name] for name in arrays if name.endswith(("labels", "persons"))}
        kept.pop("val_persons", None)
        for name in (name for name in arrays if name.endswith("images")):
            rows = arrays[name].reshape(len(arrays[name]), -1)[:, :columns]
            kept[name.replace("images", "features")] = (rows / 255).astype(np.float32)
    np.savez(place, **kept)
    return str(place)


@dataclass(frozen=True)
class HeadRun:
    """A head on features; lda has so few columns that by a true count of records it would release a covariance."""

    head: str
    columns: int = 20
    unit: str = "image"
    held_out: int | None = 0

    def __call__(self, records: Records) -> dict[str, object]:
        with home() as path:
            source = features(write(path, records, held_out=self.held_out), columns=self.columns)
            public = features(str(path / "public.npz"), columns=self.columns) if self.head == "newton" else None
            asked = {"epsilon": 3.0, "n": N, "classes": CLASSES, "budget": 1e4}
            prepared = head_run.prepare(source, Config(**asked, head=self.head, unit=self.unit, synthetic=public))
            head_run.run(prepared, path / "run")
            return files(path / "run")


@dataclass(frozen=True)
class TuningRun:
    """The best of two trials of two candidates, with fixed draws."""

    changes: dict[str, Any]
    held_out: int | None = 0

    def __call__(self, records: Records) -> dict[str, object]:
        turns = itertools.count()
        with home() as path, ExitStack() as stack:
            stack.enter_context(patched(Stopping, "draw", lambda _: TRIALS))
            stack.enter_context(patched(tune.secrets, "randbelow", lambda most: next(turns) % most))
            stack.enter_context(patched(tune.secrets, "randbits", lambda _: 0))
            source = write(path, records, held_out=self.held_out)
            settings, grid = replace(SETTINGS, **self.changes), {"lr": [0.05, 0.2]}
            prepared = tune.prepare(source, settings, grid, score=str(path / "public.npz"), trials=2.0)
            run = tune.proceed(prepared, path / "run")
            facts = run.facts()["tuning"]
            trials = run_folder.read_lines(run.operator / "trials.jsonl")
            return {**files(run.folder), "facts": facts, "trials": trials}


@dataclass(frozen=True)
class Estimator:
    """A scikit-learn class, fitted."""

    kind: Any
    settings: dict[str, Any]
    held_out: int = 0  # estimators have no held-out split

    def __call__(self, records: Records) -> dict[str, object]:
        with home() as path:
            estimator = self.kind(epsilon=3.0, n=N, classes=CLASSES, budget=1e4, out=path / "out", **self.settings)
            estimator.fit(records.x, records.labels, persons=records.persons)
            content = files(estimator.run_folder_)
            content.pop("card.json", None)  # it names the account and the release, which follow from the data and a key
            if "report.html" in content:
                content["report.html"] = re.sub(rb"(release|Account) [0-9a-f]{8,16}", rb"\1", content["report.html"])
            card = {name: value for name, value in estimator.card_.items() if name in CARD}
            return {**content, "card": card, "epsilon": estimator.epsilon_, "classes": estimator.classes_}


LINEAR = {"model": "linear"}
# Clipping norms from far below to far above usual gradients: clipping would hide a factor on the loss.
CLIPS = (6.0, 20.0)
ASSISTED: dict[str, dict[str, Any]] = {
    "weights": {"augment": ("crop", "flip"), "k_base": 2},
    "dope": {},
    "mirror": {},
    "adadps": {},
}
TRAINED: dict[str, Any] = {
    "train": Run(LINEAR),
    **{f"train, clip {clip:g}": Run({**LINEAR, "clip": clip}) for clip in CLIPS},
    "train, all defaults": Run({"model": None, "batch": None, "steps": None, "lr": 4.0, "clip": 6.0}),
    "train, full batch, last weights": Run(
        {**LINEAR, "full_batch": True, "batch": None, "clip": 6.0, "momentum": 0.5, "release": "last"}
    ),
    "train, nothing held out": Run({**LINEAR, "clip": 6.0}, held_out=None),
    "train, automatic": Run({**LINEAR, "clip_style": "automatic", "final_noise": 0.1}),
    "train, stopped and resumed": Run({**LINEAR, "clip": 6.0, "checkpoint_every": 1}, stop_after=2),
    "train, resumed with another batch": Run({**LINEAR, "clip": 6.0}, stop_after=2, resumed_with=(("batch", 3),)),
    "train, with canaries": Run({**LINEAR, "canaries": 30, "clip": 6.0}),
    "train, the head and then all": Run({"model": "wrn-10-1", "probe_steps": 2, "probe_lr": 1.0}),
    "train, the mean and then the head": Run({"model": "patches-256", "part": "centred-head"}),
    "train, balanced": Run({**LINEAR, "objective": "balanced", "clip": 6.0}),
    "train, balanced, the mean and then the head": Run(
        {"model": "patches-256", "part": "centred-head", "objective": "balanced"}
    ),
    "train, the head": Run({"model": "small-cnn", "part": "head", "clip": 2.0}),
    "train, views": Run({**LINEAR, "augment": ("crop", "flip"), "k_base": 2, "k_self": 1, "k_diff": 1, "clip": 6.0}),
    **{
        f"train, assisted by {method}": Run({**LINEAR, "clip": 6.0, "assist": method, "public_batch": 6, **more})
        for method, more in ASSISTED.items()
    },
    "tune": TuningRun({**LINEAR, "clip": 6.0}),
    "estimator, classifier": Estimator(
        PrivateImageClassifier, {"model": "linear", "batch": 6, "steps": 4, "lr": 0.1, "clip": 6.0}
    ),
}
OF_PERSONS: dict[str, Any] = {
    "train, persons": Run({**LINEAR, "unit": "person", "clip": 6.0}),
    "train, persons, balanced": Run({**LINEAR, "unit": "person", "objective": "balanced", "clip": 3.0}),
    "train, persons, views": Run({**LINEAR, "unit": "person", "augment": ("flip",), "k_base": 2, "clip": 3.0}),
    "train, persons, assisted": Run({**LINEAR, "unit": "person", "assist": "dope", "public_batch": 6, "clip": 6.0}),
    "train, persons, the head": Run({"model": "small-cnn", "part": "head", "unit": "person", "clip": 2.0}),
    "train, persons, with canaries": Run({**LINEAR, "unit": "person", "canaries": 30, "clip": 6.0}),
    "release, persons, moments": ReleaseRun("moments", {"unit": "person"}),
    "release, persons, mixtures": ReleaseRun("neuromix", {"unit": "person", "delta": 1e-6, "degree": 2.0}),
    "estimator, persons, release": Estimator(PrivateRelease, {"encoder": "pixels", "rank": 0, "rows": 16}),
    "head run, persons, descent": HeadRun("descent", unit="person"),
    "head run, persons, lda": HeadRun("lda", columns=2, unit="person"),
}
RELEASED: dict[str, Any] = {
    "release, moments": ReleaseRun("moments", {}),
    "release, moments, nothing held out": ReleaseRun("moments", {}, held_out=None),
    "release, moments of whitened features": ReleaseRun("moments", {"rank": 6}),
    "release, moments of scattering": ReleaseRun("moments", {"encoder": "scattering"}),
    "release, moments, balanced": ReleaseRun("moments", {"objective": "balanced"}),
    "release, mixtures": ReleaseRun("neuromix", {"delta": 1e-6, "degree": 2.0}),
    "release, DP-MERF": ReleaseRun("dp-merf", {}),
    "release, DP-HP": ReleaseRun("dp-hp", {}),
    "release, P3GM": ReleaseRun("p3gm", {}),
    "estimator, release": Estimator(PrivateRelease, {"encoder": "pixels", "rank": 0, "rows": 16}),
    "head run, descent": HeadRun("descent"),
    "head run, newton": HeadRun("newton"),
    "head run, lda": HeadRun("lda", columns=2),
}
