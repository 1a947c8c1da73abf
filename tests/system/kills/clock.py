"""The command line under a clock that is wrong: `clock:shifted SECONDS WORDS...` for the fork server."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, tzinfo

from tests.fork_server import command_line


def shifted(seconds: str, *words: str) -> None:
    """The wall clock cannot be set for one process alone, so all that asks for the time is answered otherwise."""
    shift, now = float(seconds), time.time

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Shifted:
            real = datetime.now(tz) + timedelta(seconds=shift)
            return cls.fromtimestamp(real.timestamp(), tz)

    from dpvision.core import ledger

    ledger.datetime = Shifted  # type: ignore[misc]
    time.time = lambda: now() + shift
    command_line(*words)
