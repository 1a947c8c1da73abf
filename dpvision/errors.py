"""All errors that dpvision raises deliberately.

    DPVisionError
    ├── ConfigError          a setting is unknown, missing or contradicts another     exit 2
    ├── DataError            an input file cannot be used                            exit 3
    ├── PrivacyError         continuing would break the guarantee                    exit 4
    │   ├── BudgetSpent      the data set's budget does not allow the event
    │   ├── LedgerMismatch   the ledger was edited or truncated, or belongs to other data
    │   └── UnsafeLayer      a layer mixes the examples of a batch
    └── RankLost             a worker process of a training run failed                    exit 5

    PrivacyWarning           a warning that something is revealed or charged that users may not expect

A message names what is wrong, the reason and the fix. Any other exception that reaches the user is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable


class DPVisionError(Exception):
    """The base class of all errors. `exit_code` is the exit code of the command line."""

    exit_code = 1


class ConfigError(DPVisionError):
    """A setting is unknown, missing or contradicts another."""

    exit_code = 2


class DataError(DPVisionError):
    """An input file cannot be used. The message starts with the name of the file."""

    exit_code = 3


class PrivacyError(DPVisionError):
    """Continuing would break the guarantee, so the operation is refused."""

    exit_code = 4


class BudgetSpent(PrivacyError):
    """The data set's budget does not allow the event."""


class LedgerMismatch(PrivacyError):
    """The ledger was edited or truncated, or it does not belong to this data."""


class UnsafeLayer(PrivacyError):
    """A layer mixes the examples of a batch, so clipping an example does not bound its influence."""


class RankLost(DPVisionError):
    """A worker process of a training run has exited, hangs or cannot be reached."""

    exit_code = 5


class PrivacyWarning(UserWarning):
    """The run continues, but something is revealed or charged that users may not expect."""


def did_you_mean(name: object, known: Iterable[str], fallback: str | None = None) -> str:
    """Return the end of a message about an unknown name: the closest known name, else `fallback`, else all names."""
    import difflib

    names = list(known)
    close = difflib.get_close_matches(str(name), names, 1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Available: {', '.join(names)}." if fallback is None else fallback
