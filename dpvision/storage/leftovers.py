"""Removal of what killed processes leave behind: trials of a tuning, and keys of fits.

Trials: their keys are destroyed and their folders removed, since epsilon covers the best trial alone. A tuning does so
itself, also where it is interrupted or fails. If it is killed, `report` or `resume` does so when it opens the folder.

Keys of fits: the fit of an estimator cannot be resumed after a kill, since its images were in memory, so nothing would
ever use or destroy its key. A fit holds a lock next to its key while it runs; the next fit destroys every key whose
lock nobody holds, and those of fits of earlier versions, which had no lock.
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
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import home


def trials_of(tuning: run_folder.Run) -> Path:
    """The folder of a tuning's trials."""
    return tuning.operator / "trials"


def clear(run: run_folder.Run) -> None:
    """Remove what a killed tuning left. A tuning that is still running is a ConfigError."""
    if "tuning" in run.facts() and trials_of(run).is_dir():
        with run_folder.only_one(run):
            remove_trials(run)


def remove_trials(tuning: run_folder.Run) -> None:
    """Remove a tuning's trials, keys first: a kill in between leaves folders that cannot draw their noise again."""
    trials = trials_of(tuning)
    for state in trials.glob("*/operator/state.safetensors"):
        with suppress(DataError, PrivacyError):  # a trial that cannot be read cannot be resumed either
            _destroy_key_of(state)
    remove_folder(trials)


def remove_folder(folder: Path) -> None:
    """Remove a folder with its contents, if it exists. A link is a DataError, since it leads to other files."""
    if folder.is_symlink():
        raise DataError(f"{folder}: is a link, and its target is not removed. Fix: remove the link.")
    if folder.exists():
        shutil.rmtree(folder)
        files.sync_folder(folder.parent)


def _destroy_key_of(state: Path) -> None:
    """Destroy the key that signed the state, and no other: its name may come from a file that was written by hand."""
    header = safetensors.read(state).header
    path = run_folder.key_path(header.get("key", ""))
    key = Key.read(path)
    if key is not None and header.get("signature") == key.sign(header["digest"]):
        Key.destroy(path)


@contextmanager
def key_of_fit(name: str | None = None) -> Iterator[str]:
    """The name of a fit's key, which is destroyed at the end of the block, or by the next fit if this one is killed."""
    clear_fits()
    name = name or secrets.token_hex(8)
    key = run_folder.key_path(name)
    lock = key.with_suffix(".fit")
    files.make_folder(lock.parent)
    with ExitStack() as stack:
        stack.enter_context(files.locked(lock))
        while not lock.exists():  # another fit removed it as that of a dead one, before it was locked
            stack.close()
            stack.enter_context(files.locked(lock))
        try:
            yield name
        finally:
            Key.destroy(key)
            lock.unlink(missing_ok=True)


def clear_fits() -> None:
    """Destroy the keys of fits that were killed."""
    for lock in sorted((home() / "keys").glob("*.fit")):
        with suppress(BlockingIOError, DataError, PrivacyError), files.locked(lock, wait=False):
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
