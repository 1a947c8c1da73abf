"""Show a training's released figures elsewhere: any object with `log(figures, step)`, or a program by name.

A tracker gets what a line of metrics.jsonl holds, and of that only RELEASED: epsilon, the test accuracies and on how
many images they are. The training loss, true batch sizes and clipped shares never get here. What it can see besides is
when it is called, at 20 steps at most; running time is outside the guarantee.

A tracker that raises does not stop the training: the figures are in metrics.jsonl whatever it does. It is said once.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dpvision.errors import ConfigError

RELEASED = ("epsilon", "test_accuracy_ema", "test_accuracy_last", "test_images")


class Tracker(Protocol):
    """What a training needs of a tracker."""

    def log(self, figures: dict[str, float], /, step: int) -> object: ...


def told_to(trackers: Sequence[Tracker]) -> Callable[[Mapping[str, Any]], None]:
    """A function that gives a line of metrics.jsonl to every tracker."""
    failed: set[int] = set()

    def tell(line: Mapping[str, Any]) -> None:
        for number, tracker in enumerate(trackers):
            figures = {key: float(line[key]) for key in RELEASED if key in line}
            try:
                tracker.log(figures, step=int(line["step"]))
            except Exception as exc:  # whatever a program of others raises
                if number not in failed:
                    failed.add(number)
                    _note(f"{type(tracker).__name__} failed at step {line['step']}", exc)

    return tell


def require(names: Iterable[str]) -> None:
    """Before anything is begun: they are installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"--track {name}: {name} is not installed. Fix: pip install -c constraints.txt -e '.[{name}]'."
            )


@contextmanager
def opened(names: Iterable[str], folder: Path) -> Iterator[list[Tracker]]:
    """The trackers of these names for the run in `folder`, closed at the end."""
    there: dict[str, Any] = {}
    for name in names:
        try:
            there[name] = NAMED[name](folder)
        except Exception as exc:
            _note(f"{name} does not begin", exc)
    try:
        yield list(there.values())
    finally:
        for name, tracker in there.items():
            try:
                tracker.close()
            except Exception as exc:
                _note(f"{name} does not end well", exc)


class TensorBoard:
    """A curve for each figure, in operator/tensorboard: names of its files hold the name of this machine."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "operator" / "tensorboard"))

    def log(self, figures: dict[str, float], /, step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """A run of project dpvision, of the folder's name."""

    def __init__(self, folder: Path) -> None:
        self._trackio = importlib.import_module("trackio")
        self._trackio.init(project="dpvision", name=folder.name)

    def log(self, figures: dict[str, float], /, step: int) -> None:
        self._trackio.log(figures, step=step)

    def close(self) -> None:
        self._trackio.finish()


NAMED = {"tensorboard": TensorBoard, "trackio": Trackio}


def _note(what: str, exc: Exception) -> None:
    print(f"note: {what} ({exc!r}); the training goes on, and metrics.jsonl has it all.", file=sys.stderr, flush=True)
