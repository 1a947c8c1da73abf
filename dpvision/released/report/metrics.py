"""What metrics.jsonl says: epsilon so far and test accuracy, at a few steps of the training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpvision.errors import DataError
from dpvision.storage.run_folder import Run, read_lines

MOST = 2**53  # of whole numbers that are numbers of steps


@dataclass(frozen=True)
class Point:
    """One line of the file. Accuracies are None where the data has no test split."""

    step: int
    epsilon: float
    ema: float | None
    last: float | None


def read(run: Run) -> list[Point]:
    """The points in the order of their steps; keys that a page has no use for are left where they are."""
    points = []
    for number, line in enumerate(read_lines(run.metrics), 1):
        step, epsilon = line.get("step"), line.get("epsilon")
        if not (type(step) is int and 0 <= step <= MOST and isinstance(epsilon, int | float) and epsilon >= 0):
            raise DataError(f"{run.metrics}: line {number} has no step or no epsilon.")
        ema, last = (_share(line.get(f"test_accuracy_{name}")) for name in ("ema", "last"))
        points.append(Point(step, float(epsilon) if epsilon <= MOST else math.inf, ema, last))
    return sorted(points, key=lambda p: p.step)


def last_accuracy(points: list[Point], *, release: str) -> dict[str, Any] | None:
    """Test accuracy at the end, of both sets of weights; which one is released was fixed before the training."""
    if not points or points[-1].ema is None or points[-1].last is None:
        return None
    test = {"ema": points[-1].ema, "last": points[-1].last}
    return {"test": test, "released": release, "released_test_accuracy": test[release]}


def _share(value: Any) -> float | None:
    if not isinstance(value, int | float) or not 0 <= value <= 1:  # nor is what is no number
        return None
    return float(value)
