"""The folder of a run: files that may be released are at the top, files that must not be are in `operator/`.

config.toml           all settings, completed
weights.safetensors   the released model, with the guarantee in its header
metrics.jsonl         steps, epsilon so far, accuracy on the test split
evaluation.json       confusion matrix and calibration on the test split; examples.json: test images, if requested
ledger.jsonl          account of the data set, without the fingerprint of the data
card.md, card.json    the guarantee, for people and for programs
report.html           the guarantee and the results on one page, with figures
audit.json, audit.svg lower bounds on epsilon, from `dpvision audit` or from canaries in the run
evidence.html         the document for a data protection officer; signature.json: who vouches for all these files
operator/             run.json (where the data is), state.safetensors (to resume), log.jsonl (values that depend on
                      private data), canaries.json, membership.json, lira.json. Never release this folder.

This module also removes what killed processes leave behind:

- The trials of a tuning run: their keys are destroyed and their folders removed, because epsilon covers only the best
  trial. A tuning run does this itself, even if it is interrupted or fails. After a kill, `report` or `resume` does it
  when opening the folder.
- The keys of fits: a killed fit of an estimator cannot be resumed, since its images were in memory, so nothing would
  ever use or destroy its key. A running fit holds a lock next to its key. The next fit destroys every key whose lock
  is not held, and the keys of killed fits of earlier versions, which had no lock.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.core.keys import Key
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.settings.setting import read_toml, write_toml
from dpvision.settings.training import Config, merge
from dpvision.storage import safetensors
from dpvision.storage.home import home

READABLE = 0o755  # mode of a run folder, before the umask: only its owner may write to it
MAX_BYTES = 1 << 30  # maximum size of a log, enough for millions of steps
# Statements in the header of weights that must not be released.
FIXED_KEY = "made with a fixed key, for tests only"
NOT_PRIVATE = f"NO: {FIXED_KEY}"
A_TRIAL = "NO: a trial of a tuning run, of which only the best may be released"


@dataclass(frozen=True)
class Run:
    """The paths of a run, and access to its settings and facts."""

    folder: Path

    @property
    def operator(self) -> Path:
        return self.folder / "operator"

    @property
    def state(self) -> Path:
        return self.operator / "state.safetensors"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def config(self) -> Config:
        """Return the completed settings of the run."""
        path = self.folder / "config.toml"
        if not path.exists():
            raise ConfigError(f"{self.folder}: this is not the folder of a run (it has no config.toml).")
        return merge(Config(), read_toml(path), source=str(path))

    def facts(self) -> dict[str, Any]:
        """Return the content of run.json: name, data, public inputs, whether the run is complete."""
        return read_json(self.operator / "run.json")

    def advise(self) -> str:
        """Return how to finish or replace a run without results: `dpvision resume`, if it can continue this run.

        It cannot continue a finished run, a tuning run, a trial of one, or a run whose data is no longer there.
        """
        try:
            facts = self.facts()
        except DataError:
            return "start a new run"
        data = facts.get("data")
        if "tuning" in facts:
            return "start a new tuning run; a tuning run cannot be resumed"
        is_there = isinstance(data, str) and (data == "digits" or Path(data).exists())
        if facts.get("complete") is not False or "trial_of" in facts or not is_there:
            return "start a new run"
        return f"run `dpvision resume {self.folder}`"

    def write_facts(self, facts: dict[str, Any]) -> None:
        files.write(self.operator / "run.json", json.dumps(facts, indent=1) + "\n")

    def write_config(self, config: Config) -> None:
        files.write(self.folder / "config.toml", write_toml(config.without_folders()))


@contextmanager
def only_one(run: Run) -> Iterator[None]:
    """Let only one process at a time work on a run; raise a ConfigError in a second one."""
    with ExitStack() as stack:
        try:
            stack.enter_context(files.locked(run.operator / "lock", wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"{run.folder}: another process is working on this run. Fix: wait until it ends."
            ) from None
        yield


def create(folder: Path, config: Config, facts: dict[str, Any], state: bytes) -> Run:
    """Create the whole folder atomically, by a rename, so that every existing run can be resumed."""
    folder = Path(os.path.abspath(folder))
    require_free(folder)
    with create_folder(folder, mode=READABLE) as place:
        partial = Run(place)
        partial.operator.mkdir(mode=0o700)
        partial.write_config(config)
        partial.write_facts(facts)
        files.write(partial.state, state)
    return Run(folder)


@contextmanager
def create_folder(folder: Path, *, mode: int) -> Iterator[Path]:
    """Yield a temporary folder to write to; without an error, rename it to `folder`, which must be free."""
    files.make_folder(folder.parent, mode=READABLE)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=mode)
    try:
        yield partial
        if folder.exists():
            folder.rmdir()  # it is empty
        os.rename(partial, folder)
        files.sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_free(folder: Path) -> None:
    """Refuse a folder that is not empty, so that a run never overwrites files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        advice = Run(folder).advise()
        resume = f", or {advice}" if "dpvision resume" in advice else ""
        raise ConfigError(f"{folder}: already exists. Fix: choose another --out{resume}.")


def next_free() -> Path:
    """Return the first of runs/1, runs/2, ... that does not exist. With several ranks, require --out instead."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--out is missing: several ranks must agree on the folder of the run. Fix: use --out FOLDER.")
    return next(p for p in (Path("runs") / str(i) for i in itertools.count(1)) if not p.exists())


def key_path(name: str) -> Path:
    """Return the path of a run's key, which is never in the run folder; refuse names that could be paths."""
    if not re.fullmatch(r"[0-9a-f]{16}", name):
        raise DataError(f"{name!r} is not the name of a key, so the state of the run was not written by dpvision.")
    return home() / "keys" / f"{name}.key"


def threads_path(key: Path) -> Path:
    """Return the path of the file with the numbers of threads of a release, next to its key."""
    return key.with_suffix(".threads")


def append_json(path: Path, line: dict[str, Any]) -> None:
    """Append one line to a JSONL file."""
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSONL file, without an incomplete last line left by a crash."""
    if not path.exists():
        return []
    lines = []
    try:
        texts = files.read(path, most=MAX_BYTES).decode(errors="replace").split("\n")
    except (OSError, ValueError) as exc:
        raise DataError(f"{path}: cannot be read ({exc}).") from exc
    for number, text in enumerate(texts[:-1], 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            raise DataError(f"{path}: line {number} is not a JSON object.")
        lines.append(line)
    return lines


def fact(facts: dict[str, Any], name: str, kind: type) -> Any:
    """Return a fact of run.json; raise a DataError if it is missing or has the wrong type."""
    value = facts.get(name)
    if type(value) is not kind or (type(value) is int and not 0 < value <= 4096):
        raise DataError(f"operator/run.json: {name} is missing or invalid.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise a DataError if the file has none."""
    try:
        value = json.loads(files.read(path, most=16 << 20).decode())
    except (OSError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}: cannot be read as JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise DataError(f"{path}: contains {type(value).__name__}, not a JSON object.")
    return value


def hide_times(run: Run) -> None:
    """Set the time of every releasable file of a tuning run to midnight: the true time reveals how long trials took."""
    if not (run.operator / "run.json").exists() or "tuning" not in run.facts():
        return
    midnight = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC).timestamp()
    for path in run.folder.iterdir():
        if path.is_file() and not path.is_symlink():
            os.utime(path, (midnight, midnight))
    os.utime(run.folder, (midnight, midnight))


def trials_of(tuning: Run) -> Path:
    """Return the folder of the trials of a tuning run."""
    return tuning.operator / "trials"


def clear(run: Run) -> None:
    """Remove the trials that a killed tuning run left; raise a ConfigError if it is still running."""
    if "tuning" in run.facts() and trials_of(run).is_dir():
        with only_one(run):
            remove_trials(run)


def remove_trials(tuning: Run) -> None:
    """Remove the trials of a tuning run, keys first: after a kill in between, no trial can regenerate its noise."""
    trials = trials_of(tuning)
    for state in trials.glob("*/operator/state.safetensors"):
        with suppress(DataError, PrivacyError):  # a trial that cannot be read cannot be resumed either
            _destroy_key_of(state)
    remove_folder(trials)


def remove_folder(folder: Path) -> None:
    """Remove a folder with its contents, if it exists; raise a DataError for a link, which leads to other files."""
    if folder.is_symlink():
        raise DataError(f"{folder}: is a link, whose target is not removed. Fix: remove the link.")
    if folder.exists():
        shutil.rmtree(folder)
        files.sync_folder(folder.parent)


def _destroy_key_of(state: Path) -> None:
    """Destroy the key that signed the state, and no other: the name of the key may come from a forged file."""
    header = safetensors.read(state).header
    path = key_path(header.get("key", ""))
    key = Key.read(path)
    if key is not None and header.get("signature") == key.sign(header["digest"]):
        Key.destroy(path)


@contextmanager
def key_of_fit(name: str | None = None) -> Iterator[str]:
    """Yield the name of a fit's key, which is destroyed at the end of the block or, after a kill, by the next fit."""
    clear_fits()
    name = name or secrets.token_hex(8)
    key = key_path(name)
    lock = key.with_suffix(".fit")
    files.make_folder(lock.parent)
    with ExitStack() as stack:
        stack.enter_context(files.locked(lock))
        while not lock.exists():  # another fit removed it as stale before it was locked
            stack.close()
            stack.enter_context(files.locked(lock))
        try:
            yield name
        finally:
            Key.destroy(key)
            threads_path(key).unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


def clear_fits() -> None:
    """Destroy the keys of fits that were killed."""
    for lock in sorted((home() / "keys").glob("*.fit")):
        with suppress(BlockingIOError, DataError, PrivacyError), files.locked(lock, wait=False):
            Key.destroy(key_path(lock.stem))
            threads_path(lock).unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
    for state in sorted((home() / "runs").glob("*/operator/state.safetensors")):
        run = Run(state.parents[1])
        with suppress(DataError, PrivacyError, ConfigError, OSError):
            facts = run.facts()
            source = Path(fact(facts, "data", str))
            if facts.get("complete") is False and source.name == "arrays" and not os.path.lexists(source):
                with only_one(run):
                    _destroy_key_of(state)
