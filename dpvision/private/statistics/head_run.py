"""A run that fits a private head to features from an .npz file: `dpvision train FEATURES.npz`.

    prepare    read the rows and complete the settings from public numbers; nothing is charged
    run        create the run folder and its key, charge the accounts, fit (setup.py), write the files for release

Each row is scaled to norm 1. The first noisy sum gives the mean row, which is subtracted from every row; then the
method of `fit_head` runs. The result has the same files as any run, so report, eval, predict and board can read it.

Formal guarantee: the same as in head.py. Every account that has some of these rows, found by digests of each row
(accounts.py), is charged, on disk, before the first noise is drawn. The id of the charge, which also names the noise,
is a secret function of rows, settings and software. A run that was killed is fitted again from the start with the same
key: the id and the noise are the same, so nothing is charged twice. It uses the same numbers of threads as before,
because other numbers would round sums differently. Changed rows are refused.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.core import accountant, files
from dpvision.core.account import Charge
from dpvision.core.events import Budget, Gaussian, to_json
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.rows import Rows
from dpvision.core.sampling import EveryRecord
from dpvision.data import Dataset, Split, identify, load_rows
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.models.device import find_device
from dpvision.models.head_on_features import HeadOnFeatures
from dpvision.models.inputs import Inputs, predict
from dpvision.models.tasks import Task
from dpvision.private.accounts import overlap
from dpvision.private.accounts.accounts import Accounts, choose, read_accounts, require_not_private
from dpvision.private.accounts.persons import require_one_person_each, require_persons
from dpvision.private.statistics.charge import name_fit
from dpvision.private.statistics.setup import HeadSetup
from dpvision.private.training.private_sum import count_units
from dpvision.private.training.public_inputs import PublicInputs, require_every_class
from dpvision.private.training.state import State
from dpvision.private.training.train import Outcome, facts_of, name_task, require_same_data
from dpvision.released import evaluation, report
from dpvision.released.measures import measure
from dpvision.settings import auto
from dpvision.settings.recipes import recipe
from dpvision.settings.setting import to_dict
from dpvision.settings.training import HEAD_ON_FEATURES, Config
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import computing, count_threads, use_threads

# The settings that a user can choose; everything else about a head follows from these and from public numbers.
SETTABLE = {
    "head",
    "objective",
    "epsilon",
    "delta",
    "unit",
    "n",
    "classes",
    "task",
    "group",
    "steps",
    "clip",
    "release",
    "synthetic",
    "budget",
}
SETTABLE |= {
    "chosen_by",
    "licence",
    "public_licence",
    "device",
}  # the device is only checked: heads are computed on the CPU
NAMES = {"descent": "gd", "newton": "newton", "moments": "moments", "lda": "lda"}
# lda uses a private covariance if the number of images times epsilon exceeds this value times the number of columns.
# (Accuracy with and without one, on pixels of MNIST, 784 columns: 84% and 82% at 8, 87% and 82% at 38; on pixels of
# digits, 64 columns: 87% and 90% at 22, 93% and 91% at 67.)
ENOUGH_FOR_COVARIANCE = 30


@dataclass(frozen=True)
class PreparedHead:
    """A head before it is fitted: the private rows, the complete settings, and the public rows, if any."""

    source: str
    data: Dataset
    config: Config
    read_off: tuple[str, ...]
    fingerprint: str
    in_order: str
    sketch: overlap.Sketch
    public: PublicInputs

    @property
    def shape(self) -> tuple[int, int, int]:
        return 1, 1, self.data.train.images.shape[2]

    @property
    def task(self) -> Task:
        """What the head answers about a row."""
        return Task(self.config.task, len(self.data.classes))

    @property
    def setup(self) -> HeadSetup:
        """The method with its settings, all of which follow from public numbers."""
        config, own = self.config, dict[str, Any]()
        assert config.head and config.steps and config.n  # complete
        if config.head in ("descent", "newton"):
            keep = "last" if config.release == "last" else "average"
            counted = config.objective == "balanced"  # by one of the sums
            own = {"steps": config.steps - 1 - counted, "clip": config.clip, "keep": keep, "task": config.task}
        elif config.head == "lda":
            enough = config.n * config.epsilon > ENOUGH_FOR_COVARIANCE * self.shape[2]
            own = {"covariance": "public" if self.public.images else "private" if enough else "none"}
        if config.objective != "accuracy":
            own["objective"] = config.objective  # refused by a method that has no such setting
        return HeadSetup.of(NAMES[config.head], {"unit": True, "centre": True, **own})

    def event(self) -> Gaussian:
        assert self.config.sigma and self.config.steps  # complete
        return Gaussian(self.config.sigma, self.config.steps)


def prepare(source: str, config: Config) -> PreparedHead:
    """Read the rows and complete the settings. Facts that were not declared are read from the data and listed."""
    if config.recipe == auto.AUTO:
        config = replace(config, recipe="default")
    if config.model != HEAD_ON_FEATURES:  # not the complete settings of an existing run
        usual = vars(recipe("default", epsilon=config.epsilon))
        for name in sorted(k for k, v in vars(config).items() if k not in SETTABLE and v != usual[k]):
            raise ConfigError(f"{name.replace('_', '-')}: does not apply to a head on features. Fix: leave it out.")
    find_device(config.device)  # refuses a missing device, although heads are computed on the CPU
    config = replace(config, device="cpu")
    data = load_rows(source, classes=config.classes, task=config.task, group=config.group)
    require_persons(data, config.unit, source)
    read_off = (*data.inferred, "number of features", *(() if config.n else (f"number of {config.unit}s",)))
    complete = replace(config, head=config.head or "auto").complete(count_units(data.train, config.unit))
    require_every_class(data.train, data.classes, data.name, "Fix: leave it out of the classes, or add rows")
    fingerprint, in_order, digests = identify(data.train)
    sketch = overlap.sketch_rows(data.train.images, digests)
    require_one_person_each(data.train, sketch, config.unit, source)
    public = _read_public(complete, data, sketch)
    return PreparedHead(source, data, complete, read_off, fingerprint, in_order, sketch, public)


def _read_public(config: Config, data: Dataset, private: overlap.Sketch) -> PublicInputs:
    """Read the public rows, none of which may be among the private rows or on an account."""
    if not config.synthetic:
        return PublicInputs()
    split = load_rows(config.synthetic, classes=list(data.classes), task=data.task).train
    if split.images.shape[2] != data.train.images.shape[2]:
        raise DataError(
            f"{config.synthetic}: its rows have {split.images.shape[2]:,} columns, and those of {data.name} "
            f"{data.train.images.shape[2]:,}. Fix: use features from the same encoder."
        )
    _, in_order, digests = identify(split)
    fix = "use features of images that were made or collected without the private data"
    if overlap.has_some_of(overlap.sketch_rows(split.images, digests), private):
        raise ConfigError(f"{config.synthetic}: some of its rows are private here, so they are not public. Fix: {fix}.")
    require_not_private(config.synthetic, [split], fix=fix, rows=True)
    entry = {"file": Path(config.synthetic).name, "digest": in_order, "images": len(split)}
    return PublicInputs({"synthetic": entry}, split, config.synthetic)


def rows_of(split: Split) -> NDArray[np.float32]:
    """Return the (N, d) rows of a split of features."""
    return np.asarray(split.images).reshape(len(split), -1)


def run(
    prepared: PreparedHead,
    to: Path | run_folder.Run,
    *,
    test_key: str | None = None,
    accounts: Accounts | None = None,
) -> Outcome:
    """Charge, fit and release in a new folder, or finish an interrupted run."""
    run = to if isinstance(to, run_folder.Run) else _begin(prepared, to, test_key, accounts)
    with run_folder.only_one(run):
        return _proceed(run, prepared, resumed=run is to)


def reopen(run: run_folder.Run) -> PreparedHead:
    """Prepare an interrupted run again, with its original settings and data."""
    header = safetensors.read(run.state).header
    return prepare(run_folder.fact(run.facts(), "data", str), State.config_of(header, run.state))


def _begin(prepared: PreparedHead, folder: Path, test_key: str | None, accounts: Accounts | None) -> run_folder.Run:
    """Create the run folder. The key is on disk before the folder exists, and nothing is charged yet."""
    run_folder.require_free(folder)
    accounts = accounts or choose(prepared.fingerprint, prepared.sketch)
    accounts.require_room(prepared.event(), prepared.config)
    private_rows(prepared)  # raises an error if the rows cannot be fitted
    key, name = Key.for_tests(test_key) if test_key else Key.fresh(), secrets.token_hex(8)
    key.write(run_folder.key_path(name))
    facts = {**facts_of(prepared, secrets.token_hex(6), accounts), "head": True, "complete": False}
    facts["head_threads"] = count_threads()
    header = {"key": name, "config": json.dumps(to_dict(prepared.config), sort_keys=True)}
    state = safetensors.dump({"none": torch.zeros(1)}, header, sign=key.sign)
    return run_folder.create(folder, prepared.config, facts, state)


def private_rows(prepared: PreparedHead) -> tuple[Rows, Rows | None]:
    """Return the prepared private rows, and the public rows if the method needs them."""
    setup, public = prepared.setup, prepared.public.images
    rows = Rows.of(
        rows_of(prepared.data.train),
        prepared.data.train.labels,
        setup.preparation,
        classes=len(prepared.data.classes),
        persons=prepared.data.train.persons if prepared.config.unit == "person" else None,
        several=prepared.config.task == "labels",
    )
    return rows, setup.public_rows(None if public is None else rows_of(public), width=rows.width)


def _proceed(run: run_folder.Run, prepared: PreparedHead, *, resumed: bool) -> Outcome:
    began, facts, config = time.monotonic(), run.facts(), prepared.config
    require_same_data(facts, prepared)
    header = safetensors.read(run.state).header
    key_path = run_folder.key_path(header.get("key", ""))
    if facts.get("complete") is True:
        Key.destroy(key_path)
        return _outcome(run, prepared, private=facts.get("private") is True, seconds=0.0)
    key = Key.read(key_path)
    if key is None or header.get("signature") != key.sign(header["digest"]):
        raise PrivacyError(
            f"{run.folder}: its key is missing, or its state belongs to another run. Fix: start a new run."
        )
    with use_threads(facts.get("head_threads"), resumed=resumed):
        rows, public = private_rows(prepared)
        event, setup, n = prepared.event(), prepared.setup, int(config.n or 0)
        # The settings of the method, and so the task, are part of the name as well.
        numbers = f"{n} {rows.classes} {computing()}".rstrip()
        id = name_fit(setup, key, event, purpose="name of a head", numbers=numbers, rows=rows, public=public)
        charged, accounts = read_accounts(facts).charge(
            event,
            Budget(config.budget or config.epsilon, config.delta),
            fingerprint=prepared.fingerprint,
            sketch=prepared.sketch,
            id=id,
            run=run_folder.fact(facts, "run", str),
            unit=config.unit,
            private=key.private,
        )
        # From here on, the charge is on disk.
        facts["accounts"] = accounts.to_facts()
        run.write_facts(facts)
        gate = Gate(charged, key, EveryRecord(event.count), name=id)
        weight, bias, centre = setup.fit(rows, n=n, sigma=gate.sigma, add_noise=gate.next, public=public)
    model = HeadOnFeatures(rows.width, prepared.task.outputs)
    for name, values in {"weight": weight, "bias": bias, "centre": centre}.items():
        if values is not None:
            model.get_parameter(name).copy_(torch.from_numpy(values))
    _release(run, prepared, model, charged, facts)
    Key.destroy(key_path)
    return _outcome(run, prepared, private=charged.private, seconds=time.monotonic() - began)


def _release(
    run: run_folder.Run, prepared: PreparedHead, model: HeadOnFeatures, charged: Charge, facts: dict[str, Any]
) -> None:
    """Write the files for release, then mark the run complete."""
    config, classes, test = prepared.config, prepared.data.classes, prepared.data.test
    done = {"complete": True, "event": to_json(charged.event), "private": charged.private}
    header = {
        "format": "dpvision-weights-1",
        "model": HEAD_ON_FEATURES,
        "shape": json.dumps(list(prepared.shape)),
        "classes": json.dumps(list(classes)),
        **name_task(config.task),
        "config": config.hash(),
        "unit": config.unit,
        "event": json.dumps(to_json(charged.event)),
        "delta": repr(config.delta),
        "private": "yes" if charged.private else run_folder.NOT_PRIVATE,
        "card": json.dumps(
            report.on_weights({**facts, **done}, config.without_folders()), sort_keys=True, allow_nan=False
        ),
    }
    files.write(run.weights, safetensors.dump(model.state_dict(), header), mode=0o644)
    line: dict[str, Any] = {"step": config.steps, "epsilon": accountant.epsilon(charged.event, config.delta)}
    if test is not None:
        predictions = predict(model, Inputs(test, rows_of(test)), prepared.task)
        digest = safetensors.read(run.weights).header["digest"]
        evaluation.write(run.folder, test, predictions, prepared.task, weights=digest, examples=0)
        accuracy = evaluation.share_right(measure(predictions, np.asarray(test.labels), prepared.task))
        line |= {"test_accuracy_ema": accuracy, "test_accuracy_last": accuracy}  # a head has one set of weights
    files.write(run.metrics, json.dumps(line) + "\n", mode=0o644)
    run.write_config(config)
    run.write_facts({**facts, **done})


def _outcome(run: run_folder.Run, prepared: PreparedHead, *, private: bool, seconds: float) -> Outcome:
    last: dict[str, Any] = next(reversed(run_folder.read_lines(run.metrics)), {})
    return Outcome(run, True, prepared.event(), last.get("test_accuracy_ema"), seconds, private)
