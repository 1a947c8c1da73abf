"""Every error that dpvision raises on purpose.

    DPVisionError
    ├── ConfigError          a setting is unknown, missing or contradicts another     exit 2
    ├── DataError            an input file cannot be used                            exit 3
    ├── PrivacyError         going on would break the guarantee                       exit 4
    │   ├── BudgetSpent      the data set's budget does not allow the event
    │   ├── LedgerMismatch   the ledger was edited, cut or does not belong here
    │   └── UnsafeLayer      a layer mixes the examples of a batch
    └── RankLost             one of the worker processes of a training run failed         exit 5

    PrivacyWarning           a warning: something is revealed or charged that users may not expect

A message names the thing, the reason and the fix. Anything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable


class DPVisionError(Exception):
    """The root of the tree. `exit_code` is the exit code of the command line."""

    exit_code = 1


class ConfigError(DPVisionError):
    """A setting is unknown, missing or contradicts another."""

    exit_code = 2


class DataError(DPVisionError):
    """An input file cannot be used. The message starts with its name."""

    exit_code = 3


class PrivacyError(DPVisionError):
    """Going on would break the guarantee, so the run refuses."""

    exit_code = 4


class BudgetSpent(PrivacyError):
    """The data set's budget does not allow the event."""


class LedgerMismatch(PrivacyError):
    """The ledger was edited, cut short, or does not belong to this data."""


class UnsafeLayer(PrivacyError):
    """A layer mixes the examples of a batch, so clipping one does not bound its influence."""


class RankLost(DPVisionError):
    """One of the worker processes of a training run ended, hangs or cannot be reached."""

    exit_code = 5


class PrivacyWarning(UserWarning):
    """The run continues, and something is revealed or charged that users may not expect."""


def did_you_mean(name: object, known: Iterable[str], otherwise: str | None = None) -> str:
    """The end of a message about an unknown name: the nearest known one, else `otherwise`, else all known names."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"There are: {', '.join(names)}." if otherwise is None else otherwise
