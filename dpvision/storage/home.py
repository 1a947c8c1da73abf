"""The folder of ledgers and run keys, $DPVISION_HOME or ~/.dpvision: one place, to which nobody else may write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from dpvision.core.ledger import Ledger
from dpvision.errors import ConfigError, PrivacyError

# An account is charged for new images from this share on: of the new images that are on it, or of its images that are
# among the new ones.
CHARGED_SHARE = 0.02
# A home for the current thread only: that of shadow models, whose ledgers are deleted afterwards.
_temporary_home: ContextVar[Path | None] = ContextVar("home", default=None)


def home() -> Path:
    """Where ledgers and run keys live. A folder that other users may write to is a PrivacyError."""
    place = _temporary_home.get() or Path(os.environ.get("DPVISION_HOME") or Path.home() / ".dpvision")
    if not place.is_absolute():
        raise ConfigError(
            f"DPVISION_HOME is {str(place)!r}, a relative path: the same command would have another ledger, with a "
            f'whole budget, in every working directory. Fix: an absolute path, such as DPVISION_HOME="$PWD/{place}".'
        )
    for folder in (place, place / "ledgers", place / "keys"):
        _require_owned(folder)
    return place


def ledger_of(fingerprint: str) -> Ledger:
    """The ledger of the data set with this fingerprint, in the home folder."""
    return Ledger(home() / "ledgers", fingerprint)


@contextmanager
def use_home(place: Path) -> Iterator[None]:
    """Use another home folder within this block, in this thread."""
    token = _temporary_home.set(place)
    try:
        yield
    finally:
        _temporary_home.reset(token)


def _require_owned(folder: Path) -> None:
    """Whoever may write to the folder can replace ledgers, or keys by their own."""
    try:
        status = os.stat(folder)
    except OSError:
        return  # created later, for the owner only; or a clear error where it is used
    if status.st_uid not in (os.getuid(), 0):
        raise PrivacyError(
            f"{folder}: belongs to another user, who could replace ledgers or keys. Fix: a DPVISION_HOME of your own."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PrivacyError(
            f"{folder}: its group or all other users may write to it, so anybody could replace ledgers or keys. Fix: "
            f"`chmod go-w {folder}`, after checking who wrote there."
        )
