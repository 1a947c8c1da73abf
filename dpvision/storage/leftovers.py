"""What killed processes leave behind: trials of a tuning, and keys of fits.

Trials: their keys are destroyed, their folders removed, for epsilon covers the best alone. A tuning does so itself,
also where it is interrupted or fails. One that is killed cannot: then whatever opens its folder next does, `report` or
`resume`.

Keys of fits: the fit of an estimator cannot go on after a kill, for its images were in memory, so nobody would ever use
or destroy its key. A fit holds a lock next to its key as long as it lives; the next fit destroys every key whose lock
nobody holds, and those of fits of earlier versions, which had no lock.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dpvision.core import files
from dpvision.core.keys import Key
from dpvision.core.ledger import home
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.storage import run_folder, safetensors


def trials_of(tuning: run_folder.Run) -> Path:
    return tuning.operator / "trials"


def clear(run: run_folder.Run) -> None:
    """Remove what a kill left. One that is under way is not touched: it is a ConfigError."""
    if "tuning" in run.facts() and trials_of(run).is_dir():
        with run_folder.only_one(run):
            remove_trials(run)


def remove_trials(tuning: run_folder.Run) -> None:
    """Keys first: a kill in between leaves folders that cannot go on with their noise."""
    trials = trials_of(tuning)
    for state in trials.glob("*/operator/state.safetensors"):
        with suppress(DataError, PrivacyError):  # one that cannot be read cannot be gone on with either
            _destroy_key_of(state)
    remove_folder(trials)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, where there is one. A link is a DataError: it leads to other things."""
    if folder.is_symlink():
        raise DataError(f"{folder}: is a link, and what it leads to is not removed. Fix: remove the link.")
    if folder.exists():
        shutil.rmtree(folder)
        files.sync_folder(folder.parent)


def _destroy_key_of(state: Path) -> None:
    """A key that signed the state, and no other: the name may come from a file that was made by hand."""
    header = safetensors.read(state).header
    path = run_folder.key_path(header.get("key", ""))
    key = Key.kept(path)
    if key is not None and header.get("signature") == key.sign(header["digest"]):
        Key.destroy(path)


@contextmanager
def key_of_fit(name: str | None = None) -> Iterator[str]:
    """A name for a fit's key, which is destroyed at the end, or by the next fit if this one is killed."""
    clear_fits()
    name = name or secrets.token_hex(8)
    place = run_folder.key_path(name)
    lock = place.with_suffix(".fit")
    files.make_folder(lock.parent)
    with ExitStack() as stack:
        stack.enter_context(files.alone(lock))
        while not lock.exists():  # another fit took it for that of a dead one, before it was locked
            stack.close()
            stack.enter_context(files.alone(lock))
        try:
            yield name
        finally:
            Key.destroy(place)
            lock.unlink(missing_ok=True)


def clear_fits() -> None:
    """Destroy the keys of fits that were killed."""
    for lock in sorted((home() / "keys").glob("*.fit")):
        with suppress(BlockingIOError, DataError, PrivacyError), files.alone(lock, wait=False):
            Key.destroy(run_folder.key_path(lock.stem))
            lock.unlink(missing_ok=True)
    for state in sorted((home() / "runs").glob("*/operator/state.safetensors")):
        run = run_folder.Run(state.parents[1])
        with suppress(DataError, PrivacyError, ConfigError, OSError):
            facts = run.facts()
            source = Path(run_folder.fact(facts, "data", str))
            if facts.get("complete") is False and source.name == "arrays" and not os.path.lexists(source):
                with run_folder.only_one(run):
                    _destroy_key_of(state)
