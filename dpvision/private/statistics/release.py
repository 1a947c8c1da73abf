"""Makes a release: features, charge, noise, rows, card.

To add a kind of release, write a module with a mechanism and list it in MECHANISMS here and in settings/release.py.

Formal guarantee: for two data sets that differ by one additional unit (an image, or a person with all of their images),
and an encoder and a map that are public functions of each image alone, everything in the released folder satisfies the
guarantee of the event on its card. The event is in the data set's ledger, on disk, before the first noise is drawn.
Only the mechanism reads private rows, and it does what the charge states and no more. If there is a test split, the
accuracy on it is reported without noise: it reveals information about the test images, and the card states this.

If the process is killed after the charge, the key still exists: the same command makes the same bits, with the numbers
of threads that it started with, and is not charged again. When the folder is complete, the key is destroyed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.core import accountant, files
from dpvision.core.events import Budget, Event, to_json
from dpvision.core.keys import Key
from dpvision.core.rows import Preparation, Rows
from dpvision.data import RULE, Dataset, Split, identify, load
from dpvision.errors import ConfigError, PrivacyError
from dpvision.models import build, digest_file
from dpvision.models.device import CPU
from dpvision.private.accounts import overlap
from dpvision.private.accounts.accounts import Accounts, choose, require_not_in_provenance
from dpvision.private.accounts.persons import require_one_person_each, require_persons
from dpvision.private.features.encoders import extract, load_encoder
from dpvision.private.features.public_map import PROCESS, load_or_compute_whitening
from dpvision.private.statistics.baselines.synthesis import Synthesis
from dpvision.private.statistics.mechanism import Description, Mechanism, Output
from dpvision.private.statistics.mixtures import Mixtures
from dpvision.private.statistics.moments import MomentsMechanism
from dpvision.private.training.choice import choose_encoder
from dpvision.private.training.private_sum import count_units
from dpvision.released import folder as folders
from dpvision.released import report
from dpvision.released.learners import DiscriminantLearner, Learner, LinearLearner
from dpvision.settings.figures import upper
from dpvision.settings.release import Release
from dpvision.settings.setting import reading_options, to_dict, with_share
from dpvision.storage import run_folder, safetensors
from dpvision.storage import weights as public_weights
from dpvision.storage.home import count_threads, use_threads

Progress = Callable[[str, int, int], None]
Labelled = tuple[NDArray[np.float32], NDArray[np.int64]]
# What the card of a release calls a record, if the unit is a person.
A_PERSON = "a person, who adds the mean of what each of their images would add"
MAX_DESCENT = 20_000_000  # numbers; larger releases skip the learner that needs many passes over the rows

MECHANISMS: dict[str, Callable[[Rows, Release], Mechanism]] = {
    "moments": MomentsMechanism.of_settings,
    "mixtures": Mixtures.of_settings,
    "merf": Synthesis.of_settings,
    "hermite": Synthesis.of_settings,
    "p3gm": Synthesis.of_settings,
}


def mechanism_of(rows: Rows, config: Release) -> Mechanism:
    """Build the mechanism for these rows and complete settings."""
    return MECHANISMS[config.kind](rows, config)


@dataclass(frozen=True)
class PreparedRelease:
    """The data, the complete settings, and the names of the public facts that were read from the data."""

    data: Dataset
    config: Release
    read_off: tuple[str, ...]
    fingerprint: str  # identifies the records in any order, and so the ledger
    in_order: str  # identifies the records in this order
    sketch: overlap.Sketch

    @property
    def shape(self) -> tuple[int, int, int]:
        height, width, channels = self.data.train.images.shape[1:]
        return channels, height, width

    @property
    def of_rows(self) -> tuple[Any, ...]:
        """Everything that the private rows depend on."""
        config = self.config
        weights = None if config.weights is None else digest_file(Path(config.weights))
        features = config.encoder, weights, config.rank, config.bound, self.shape
        return self.in_order, config.unit, *features, tuple(self.data.classes)

    @property
    def sigma(self) -> float:
        assert self.config.sigma  # complete
        return self.config.sigma

    def event(self) -> Event:
        return self.config.event(self.sigma, len(self.data.classes))


def prepare(source: str, settings: Release) -> PreparedRelease:
    """Read the data and complete the settings from public numbers. Nothing is drawn, written or charged."""
    read = load(source, **reading_options(settings))
    return prepare_read(read, settings, source=source)


def prepare_read(data: Dataset, settings: Release, *, source: str) -> PreparedRelease:
    """Prepare a release of data in memory."""
    require_persons(data, settings.unit, source)
    units = count_units(data.train, settings.unit)
    if settings.encoder is None and settings.weights is None:
        encoder, reason = choose_encoder(data, n=settings.public_number(units), epsilon=settings.epsilon)
        settings = replace(settings, encoder=encoder, chosen_by=f"auto: {reason}")
    if settings.weights is not None or public_weights.is_name(settings.encoder or ""):
        settings = replace(settings, weights=str(public_weights.resolve(settings.weights or str(settings.encoder))))
    known = settings.n or settings.class_counts or (not data.inferred and source == "digits")
    read_off = data.inferred if known else (*data.inferred, f"number of {settings.unit}s")
    settings = with_share(settings, data.test_share, source=source)
    channels = data.train.images.shape[3]
    complete = settings.complete(units, len(data.classes), channels)
    if settings.weights is not None:
        learned_from = safetensors.verified_header(Path(settings.weights)).get("learned_from", "")
        require_not_in_provenance(data, learned_from, f"{settings.weights}: was trained without privacy on")
    fingerprint, in_order, digests = identify(data.train)
    sketch = overlap.sketch_images(data.train.images, digests)
    require_one_person_each(data.train, sketch, settings.unit, source)
    return PreparedRelease(data, complete, read_off, fingerprint, in_order, sketch)


class Encoded:
    """The private rows, of norm at most 1, with the encoder and the preparation that computed each from one image.

    Features are computed on `device`. The name of the charge and the noise covers every bit of the rows.
    """

    def __init__(
        self, prepared: PreparedRelease, progress: Progress = lambda *_: None, *, device: torch.device = CPU
    ) -> None:
        config, self.classes, self.of = prepared.config, len(prepared.data.classes), prepared.of_rows
        assert config.encoder  # complete
        self._progress = progress
        self.encoder = load_encoder(
            config.encoder,
            prepared.shape,
            config.weights,
            progress=lambda *done: progress("dictionary", *done),
            device=device,
        )
        self.preparation = Preparation(unit=True) if config.bound is None else Preparation(bound=config.bound)
        if config.rank:
            white = load_or_compute_whitening(
                self.encoder, rank=config.rank, progress=lambda *done: progress("random images", *done)
            )
            self.preparation = Preparation(whitening=white)
        train, test = prepared.data.train, prepared.data.test
        persons = train.persons if config.unit == "person" else None
        rows = self._features(train), train.labels
        self.rows = Rows.of(*rows, self.preparation, classes=self.classes, persons=persons)
        self.test: Labelled | None = None
        if test is not None:
            self.test = self.preparation.apply(self._features(test))[0], np.asarray(test.labels)

    def _features(self, split: Split) -> NDArray[np.float32]:
        """Compute the features of a split, shared among all worker processes."""
        return extract(self.encoder, split, lambda *done: self._progress("features", *done))


def make(
    prepared: PreparedRelease,
    out: Path,
    *,
    encoded: Encoded | None = None,
    test_key: str | None = None,
    accounts: Accounts | None = None,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Charge the ledger, add noise and write the released folder at `out`; return its card.

    `encoded` can be reused from an earlier release of the same data with the same features. `accounts` are the accounts
    to charge; by default those that already have some of the images, or a new one.
    """
    out, config = Path(os.path.abspath(out)), prepared.config
    accounts = accounts or choose(prepared.fingerprint, prepared.sketch)
    key_path = require_possible(prepared, out, test_key, accounts)
    encoded = encoded or Encoded(prepared, progress)
    if encoded.of != prepared.of_rows:
        raise PrivacyError("the rows do not come from the data and features that would be charged.")
    mechanism = mechanism_of(encoded.rows, config)
    description = mechanism.describe(config)

    with _lock(key_path, out):
        _require_free(out, key_path)
        # The folder comes before the charge: if it cannot be made, nothing is charged.
        with folders.create_folder(out) as folder, _load_or_create_key(key_path, test_key) as key:
            charge, accounts = accounts.charge(
                prepared.event(),
                Budget(config.budget or config.epsilon, config.delta),
                fingerprint=prepared.fingerprint,
                sketch=prepared.sketch,
                id=mechanism.name(key, prepared.event()),
                run=f"release {secrets.token_hex(4)}",
                unit=config.unit,
                private=key.private,
            )
            # From here on, the charge is on disk.
            status = "private" if charge.private else "NOT PRIVATE"
            mark = {"status": status}  # a single entry, as the order of several header entries is not fixed
            output = mechanism.make(charge, key, config)
            for name, arrays in output.files.items():
                folders.write_arrays(folder / name, arrays, mark)
            folders.write_rows(folder, _with_progress(output.blocks, config, progress), mark)
            if encoded.preparation.whitening is not None:
                white = encoded.preparation.whitening
                folders.write_arrays(folder / "map.safetensors", {"mean": white.mean, "matrix": white.matrix})
            schema = _schema(prepared, encoded.rows, folder, description)
            folders.write_json(folder / "schema.json", {**schema, **mark, "status_means": folders.STATUS[status]})
            facts = _facts(prepared, encoded, description)
            facts["accounts"] = accounts.to_facts()
            facts |= {"run": charge.run, "event": to_json(charge.event), "private": charge.private}
            facts["files"] = folders.digest_files(folder)
            if encoded.test is not None:
                facts |= accuracies(folder, encoded.test, encoded.classes, output, description, config.objective)
            card = report.write_release(folder, facts, accounts.first.account())
        _destroy_key(key_path)
    return card


def require_possible(
    prepared: PreparedRelease, out: Path, test_key: str | None = None, accounts: Accounts | None = None
) -> Path:
    """Raise any error that is already foreseeable, before hours of computing features; return the path of the key.

    A release that was killed after its charge finds its key at this path and is not charged again, so its budget is not
    checked; nor is that of a release with a fixed key.
    """
    key_path = run_folder.key_path(name_of_key(prepared, out))
    _require_free(out, key_path)
    mechanism_of(Rows.none(len(prepared.data.classes)), prepared.config)  # validates its settings
    epsilon = accountant.epsilon(prepared.event(), prepared.config.delta)
    if epsilon > prepared.config.epsilon:
        raise ConfigError(
            f"sigma {prepared.sigma:g} gives epsilon {upper(epsilon, 4)}, more than the requested "
            f"{prepared.config.epsilon:g}. Fix: leave sigma out, and the smallest sufficient sigma is computed."
        )
    if not key_path.exists() and not test_key:
        accounts = accounts or choose(prepared.fingerprint, prepared.sketch)
        accounts.require_room(prepared.event(), prepared.config)
    return key_path


def require_encoder(prepared: PreparedRelease) -> None:
    """Raise the errors of `Encoded`, without the minutes that building a dictionary of patches takes."""
    name, shape, weights = str(prepared.config.encoder), prepared.shape, prepared.config.weights
    if weights is None and name.startswith("patches"):
        build("patches-1024" if name == "patches" else name, shape, classes=2, seed=0)
    else:
        load_encoder(name, shape, weights)


def _require_free(out: Path, key_path: Path) -> None:
    """Refuse an existing folder; if it is a complete release whose key was not destroyed yet, destroy the key first."""
    if (out / "card.json").is_file() and key_path.exists():
        _destroy_key(key_path)
    folders.require_free(out)


def accuracies(
    folder: Path, test: Labelled, classes: int, output: Output, description: Description, objective: str
) -> dict[str, dict[str, float]]:
    """Compute accuracies on the test split of classifiers that anyone can train from the released folder."""
    features, targets = folders.read_rows(folder)
    balanced = objective == "balanced"
    learners: dict[str, Learner] = {
        "linear discriminant of the rows": DiscriminantLearner(
            classes=classes, balanced=balanced, **description.noise
        ).fit(features, targets)
    }
    if not output.learners and features.size <= MAX_DESCENT:  # with few rows, a covariance is inaccurate
        descent = LinearLearner(classes=classes, balanced=balanced)
        learners["softmax regression on the rows"] = descent.fit(features, targets)
    guesses = {name: np.asarray(fitted.predict(test[0])) for name, fitted in (learners | dict(output.learners)).items()}
    return {
        "accuracy": {name: float((guess == test[1]).mean()) for name, guess in guesses.items()},
        "balanced_accuracy": {name: mean_recall(guess, test[1]) for name, guess in guesses.items()},
    }


def mean_recall(guesses: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return the mean over the classes of the share of their records that are classified correctly."""
    return float(np.mean([(guesses[labels == k] == k).mean() for k in np.unique(labels)]))


def name_of_key(prepared: PreparedRelease, out: Path) -> str:
    """Return a name that depends only on the command, so that a killed release finds its key again."""
    everything = json.dumps([prepared.in_order, os.path.abspath(out), to_dict(prepared.config)], sort_keys=True)
    return hashlib.blake2b(everything.encode(), digest_size=8).hexdigest()


@contextmanager
def _load_or_create_key(key_path: Path, test_key: str | None) -> Iterator[Key]:
    """Yield the key; a resumed release uses the same numbers of threads as before."""
    stored, numbers = Key.read(key_path), run_folder.threads_path(key_path)
    resumed = not test_key and stored is not None and stored.private
    if resumed and stored is not None:
        key = stored  # not written again: a kill would leave a copy that is never destroyed
    elif test_key:
        key = Key.for_tests(test_key)  # not stored: it must not replace a secret key
    else:
        key = Key.fresh()
        files.write(numbers, json.dumps(count_threads()))
        key.write(key_path)  # on disk before it is used
    threads = count_threads() if test_key else run_folder.read_json(numbers) if numbers.exists() else None
    try:
        stack = ExitStack()
        stack.enter_context(use_threads(threads, resumed=resumed))
    except PrivacyError as exc:
        raise PrivacyError(f"{key_path}: {exc}") from exc
    with stack:
        yield key


def _destroy_key(key_path: Path) -> None:
    Key.destroy(key_path)
    run_folder.threads_path(key_path).unlink(missing_ok=True)


@contextmanager
def _lock(key_path: Path, out: Path) -> Iterator[None]:
    """Let only one process at a time make this release; a second one gets an error."""
    files.make_folder(key_path.parent)
    with ExitStack() as stack:
        try:
            stack.enter_context(files.locked(key_path.with_suffix(".lock"), wait=False))
        except BlockingIOError:
            raise ConfigError(f"{out}: another process is making this release. Fix: wait for it to finish.") from None
        yield


def _with_progress(blocks: Iterable[folders.Block], config: Release, progress: Progress) -> Iterator[folders.Block]:
    done = 0
    assert config.rows
    for features, labels in blocks:
        done += len(features)
        yield features, labels
        progress("rows", done, config.rows)


def _schema(prepared: PreparedRelease, rows: Rows, folder: Path, description: Description) -> dict[str, Any]:
    shares = {"dtype": "float32", "shape": ["rows", rows.classes]}
    labels = {"dtype": "int64", "shape": ["rows"]} if description.hard else shares
    return {
        "format": folders.FORMAT,
        "rows": prepared.config.rows,
        "width": rows.width,
        "classes": list(prepared.data.classes),
        "files": sorted(path.name for path in folder.glob("rows-*.safetensors")),
        "features": {"dtype": "float32", "shape": ["rows", rows.width]},
        "labels": {**labels, "meaning": description.labels},
    }


def _facts(prepared: PreparedRelease, encoded: Encoded, description: Description) -> dict[str, Any]:
    """Collect the facts of a card. Only those that `read_off` lists depend on the private records."""
    config, encoder, width = prepared.config, encoded.encoder, encoded.rows.width
    public: dict[str, dict[str, Any]] = {}
    if config.weights:
        public["encoder"] = {"file": Path(config.weights).name, "digest": digest_file(Path(config.weights))}
    return {
        "class_names": list(prepared.data.classes),
        "image_shape": list(prepared.data.train.images.shape[1:]),
        "read_off": list(prepared.read_off),
        "config": to_dict(config.without_folders()),
        "public": public,
        "features": {
            "encoder": encoder.name,
            "origin": encoder.origin,
            "weights": encoder.weights,
            "reading_rule": RULE,
            "map": f"whitened by random images ({PROCESS}), {width} directions, each row scaled to norm 1"
            if config.rank
            else "each row scaled to norm 1"
            if config.bound is None
            else f"each row clipped to norm {config.bound:g}, then divided by it",
        },
        "mechanism": description.on_card() | ({"record": A_PERSON} if config.unit == "person" else {}),
        "persons": prepared.data.train.persons is not None,
        "skipped_broken": config.skip_broken or prepared.data.skipped_broken,
    }
