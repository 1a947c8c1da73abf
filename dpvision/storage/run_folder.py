"""The folder of one run: what may be released at its top, what is for the operator's eyes only in `operator/`.

config.toml           every setting, complete
weights.safetensors   the released model, with its guarantee in the header
metrics.jsonl         step, epsilon so far, accuracy on the test split
evaluation.json       confusions and calibration on the test split; examples.json: pictures of it, where asked for
ledger.jsonl          the data set's account, without the fingerprint of the data
card.md, card.json    the guarantee, for people and for programs
report.html           one page to look at
audit.json, audit.svg what `dpvision audit`, or the canaries that the run carried, showed from below
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
from dpvision.core.ledger import home
from dpvision.errors import ConfigError, DataError
from dpvision.settings.setting import read_toml, write_toml
from dpvision.settings.training import Config, merged

READABLE = 0o755  # the most that a umask leaves of the mode of a run folder: others never write there
MOST_LINES = 1 << 30  # bytes of a log: some millions of steps
# What the header of weights says of those that must not leave.
FIXED_KEY = "made with a fixed key, for tests only"
NOT_PRIVATE = f"NO: {FIXED_KEY}"
A_TRIAL = "NO: a trial of a tuning, of which the best alone may leave"


@dataclass(frozen=True)
class Run:
    """Paths of a run."""

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
        path = self.folder / "config.toml"
        if not path.exists():
            raise ConfigError(f"{self.folder}: not the folder of a run (it has no config.toml).")
        return merged(Config(), read_toml(path), source=str(path))

    def facts(self) -> dict[str, Any]:
        """What the run knows of itself: name, data, public inputs, whether it is complete."""
        return read_json(self.operator / "run.json")

    def write_facts(self, facts: dict[str, Any]) -> None:
        files.write(self.operator / "run.json", json.dumps(facts, indent=1) + "\n")

    def write_config(self, config: Config) -> None:
        files.write(self.folder / "config.toml", write_toml(config.without_folders()))


@contextmanager
def only_one(run: Run) -> Iterator[None]:
    """Let one process at a time work on a run; a second one is told so."""
    with ExitStack() as stack:
        try:
            stack.enter_context(files.alone(run.operator / "lock", wait=False))
        except BlockingIOError:
            raise ConfigError(f"{run.folder}: another process is working on this run. Fix: wait for it.") from None
        yield


def create(folder: Path, config: Config, facts: dict[str, Any], state: bytes) -> Run:
    """Make the whole folder at once, by a rename: a run that exists can be resumed."""
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
    """A run never writes into a folder that holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        state = Run(folder).state
        begun = f", or `dpvision resume {folder}`" if state.is_file() and state.stat().st_size else ""  # no tuning
        raise ConfigError(f"{folder}: exists already. Fix: another --out{begun}.")


def next_free() -> Path:
    """runs/1, runs/2 and so on. Ranks have to agree on a folder, so they are told."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--out is missing: several ranks need to know the folder of the run.")
    return next(p for p in (Path("runs") / str(i) for i in itertools.count(1)) if not p.exists())


def key_path(name: str) -> Path:
    """Where a run's key is kept: never in the run folder. The name may come from a file, so it cannot be a path."""
    if not re.fullmatch(r"[0-9a-f]{16}", name):
        raise DataError(f"{name!r} is not the name of a key: the state of the run was made by other means.")
    return home() / "keys" / f"{name}.key"


def append_json(path: Path, line: dict[str, Any]) -> None:
    with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; a last half line, from a crash, is left out."""
    if not path.exists():
        return []
    lines = []
    try:
        texts = files.read(path, most=MOST_LINES).decode(errors="replace").split("\n")
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
    """One fact of run.json, of the kind it must have."""
    value = facts.get(name)
    if type(value) is not kind or (type(value) is int and not 0 < value <= 4096):
        raise DataError(f"operator/run.json: {name} is missing or is not what a run writes.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(files.read(path, most=16 << 20).decode())
    except (OSError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}: cannot be read as JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds {type(value).__name__}, not a JSON object.")
    return value
