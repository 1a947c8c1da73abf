"""What is left of a tuning's trials: their keys are destroyed, their folders removed. Epsilon covers the best alone.

A tuning does so itself, also where it is interrupted or fails. One that is killed can not: then whatever opens its
folder next does, `report` or `resume`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dpvision import atomic, runs, sealed
from dpvision.errors import DataError, PrivacyError
from dpvision.mechanism.streams import Key


def trials_of(tuning: runs.Run) -> Path:
    return tuning.operator / "trials"


def clear(run: runs.Run) -> None:
    """Remove what a kill left. One that is under way is not touched: it is a ConfigError."""
    if "tuning" in run.facts() and trials_of(run).is_dir():
        with runs.only_one(run):
            remove_trials(run)


def remove_trials(tuning: runs.Run) -> None:
    """Keys first: a kill in between leaves folders that can not go on with their noise."""
    trials = trials_of(tuning)
    for state in trials.glob("*/operator/state.safetensors"):
        with suppress(DataError, PrivacyError):  # one that can not be read can not be gone on with either
            _destroy_key_of(state)
    atomic.remove_folder(trials)


def _destroy_key_of(state: Path) -> None:
    """A key that signed the state, and no other: the name may come from a file that was made by hand."""
    header = sealed.read(state).header
    path = runs.key_path(header.get("key", ""))
    key = Key.kept(path)
    if key is not None and header.get("signature") == key.sign(header["digest"]):
        Key.destroy(path)
