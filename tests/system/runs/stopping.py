"""A training that is stopped after some steps."""

from __future__ import annotations

from collections.abc import Callable


def until(step: int) -> Callable[[], bool]:
    """Return a `stop` that allows `step` steps."""
    left = [step]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return stop
