"""The folder of one run: what may be released at its top, what is not for release in `operator/`.

config.toml           every setting, complete
weights.safetensors   the released model, with its guarantee in the header
metrics.jsonl         step, epsilon so far, accuracy on the test split
evaluation.json       confusions and calibration on the test split; examples.json: pictures of it, if asked for
ledger.jsonl          the data set's account, without the fingerprint of the data
card.md, card.json    the guarantee, for people and for programs
report.html           the same on one page, with figures
audit.json, audit.svg lower bounds on epsilon, by `dpvision audit` or by the canaries of the run
operator/             run.json (where the data is), state.safetensors (to resume), log.jsonl (values that depend on
                      private data), canaries.json, membership.json, lira.json. Never release this folder.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.settings.setting import read_toml, write_toml
from dpvision.settings.training import Config, merge
from dpvision.storage.home import home

READABLE = 0o755  # mode of a run folder, before the umask: others never write there
MOST_BYTES = 1 << 30  # of a log: some millions of steps
# What the header of weights states where they must not be released.
FIXED_KEY = "made with a fixed key, for tests only"
NOT_PRIVATE = f"NO: {FIXED_KEY}"
A_TRIAL = "NO: a trial of a tuning, of which the best alone may leave"


@dataclass(frozen=True)
class Run:
    """The paths of a run, and its settings and facts."""

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
        """The settings of the run, complete."""
        path = self.folder / "config.toml"
        if not path.exists():
            raise ConfigError(f"{self.folder}: not the folder of a run (it has no config.toml).")
        return merge(Config(), read_toml(path), source=str(path))

    def facts(self) -> dict[str, Any]:
        """The content of run.json: name, data, public inputs, whether the run is complete."""
        return read_json(self.operator / "run.json")

    def write_facts(self, facts: dict[str, Any]) -> None:
        files.write(self.operator / "run.json", json.dumps(facts, indent=1) + "\n")

    def write_config(self, config: Config) -> None:
        files.write(self.folder / "config.toml", write_toml(config.without_folders()))


@contextmanager
def only_one(run: Run) -> Iterator[None]:
    """Let one process at a time work on a run; for a second one it is a ConfigError."""
    with ExitStack() as stack:
        try:
            stack.enter_context(files.locked(run.operator / "lock", wait=False))
        except BlockingIOError:
            raise ConfigError(f"{run.folder}: another process is working on this run. Fix: wait for it.") from None
        yield


def create(folder: Path, config: Config, facts: dict[str, Any], state: bytes) -> Run:
    """Make the whole folder at once, by a rename, so that a run that exists can be resumed."""
    folder = Path(os.path.abspath(folder))
    require_free(folder)
    files.make_folder(folder.parent, mode=READABLE)
    partial = Run(folder.with_name(f".{folder.name}.{os.getpid()}.partial"))
    shutil.rmtree(partial.folder, ignore_errors=True)
    partial.folder.mkdir(mode=READABLE)
    partial.operator.mkdir(mode=0o700)
    partial.write_config(config)
    partial.write_facts(facts)
    files.write(partial.state, state)
    if folder.exists():
        folder.rmdir()  # empty, see above
    os.rename(partial.folder, folder)
    files.sync_folder(folder.parent)
    return Run(folder)


def require_free(folder: Path) -> None:
    """Refuse a folder that holds something: a run never writes into it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        state = Run(folder).state
        begun = f", or `dpvision resume {folder}`" if state.is_file() and state.stat().st_size else ""  # no tuning
        raise ConfigError(f"{folder}: exists already. Fix: another --out{begun}.")


def next_free() -> Path:
    """The first free one of runs/1, runs/2 and so on. Several ranks need --out, since they must agree on a folder."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--out is missing: several ranks must agree on the folder of the run.")
    return next(p for p in (Path("runs") / str(i) for i in itertools.count(1)) if not p.exists())


def key_path(name: str) -> Path:
    """Where a run's key is kept: never in the run folder. The name may come from a file, so it cannot be a path."""
    if not re.fullmatch(r"[0-9a-f]{16}", name):
        raise DataError(f"{name!r} is not the name of a key: the state of the run was not written by dpvision.")
    return home() / "keys" / f"{name}.key"


def append_json(path: Path, line: dict[str, Any]) -> None:
    """Append one line to a JSONL file."""
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; a last half line, from a crash, is left out."""
    if not path.exists():
        return []
    lines = []
    try:
        texts = files.read(path, most=MOST_BYTES).decode(errors="replace").split("\n")
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
    """One fact of run.json, of the type it must have, or a DataError."""
    value = facts.get(name)
    if type(value) is not kind or (type(value) is int and not 0 < value <= 4096):
        raise DataError(f"operator/run.json: {name} is missing or is not what a run writes.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or a DataError that names it."""
    try:
        value = json.loads(files.read(path, most=16 << 20).decode())
    except (OSError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}: cannot be read as JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds {type(value).__name__}, not a JSON object.")
    return value
