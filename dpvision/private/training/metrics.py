"""Writes the lines of metrics.jsonl, all of which may be released, and forwards them to trackers.

A line has the test accuracy after one of a few steps of a training run, and the epsilon of the whole run: the whole run
is charged before the first step, and stopping early because of an accuracy does not reduce what is revealed.

A tracker is any object with `log(figures, step)`, or a program by name. It receives only the RELEASED entries of a line
of metrics.jsonl: epsilon, the test accuracies and the number of images that they are measured on. It never receives the
training loss, true batch sizes or shares of clipped units. It can also observe when it is called, at 20 steps at most;
running time is outside the guarantee. An exception in a tracker does not stop training: it is reported once, and all
figures are still written to metrics.jsonl.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from dpvision.core import accountant
from dpvision.core.events import Capped, Event
from dpvision.errors import ConfigError
from dpvision.models.inputs import Inputs, accuracy
from dpvision.private.training.prepare import Prepared
from dpvision.private.training.state import State, load_weights, trainable

POINTS = 20
RECORDS = 2000  # test records at every point except the last, which uses the whole test split
RELEASED = ("epsilon", "test_accuracy_ema", "test_accuracy_last", "test_images")


def stated_epsilon(event: Event, delta: float) -> float:
    """Return the epsilon of all charges of the run; that of the budget if settings changed during the run."""
    return accountant.epsilon(event, max(delta, event.delta) if isinstance(event, Capped) else delta)


def measured_steps(prepared: Prepared) -> set[int]:
    """Return the steps after which accuracy is measured, so few that this takes at most about a quarter of the time.

    Training on one view costs about three times as much as evaluating one image. Only public numbers are used.
    """
    steps, points = prepared.sampler.steps, POINTS
    if prepared.data.test is not None:
        evaluated = 2 * min(len(prepared.data.test), RECORDS)
        points = min(points, max(1, 3 * prepared.sampler.batch * steps * prepared.config.views // (4 * evaluated)))
    return {max(1, round(i * steps / points)) for i in range(1, points + 1)}


def measure(state: State, prepared: Prepared, model: nn.Module, test: Inputs | None, epsilon: float) -> dict[str, Any]:
    """Measure the test accuracy of averaged and last weights: on all records at the end, on the first ones before."""
    line: dict[str, Any] = {"step": state.step, "epsilon": epsilon}
    if test is not None:
        most = None if state.step == prepared.sampler.steps else RECORDS
        line["test_images"] = min(len(test), most or len(test))
        for name, weights in (("ema", state.ema), ("last", state.weights)):
            load_weights(weights, trainable(model))
            line[f"test_accuracy_{name}"] = accuracy(
                prepared.network.learner(model)[0], test, prepared.network.task, most=most
            )
    return line


class Tracker(Protocol):
    """The interface of a tracker."""

    def log(self, figures: dict[str, float], /, step: int) -> object: ...


def send_to(trackers: Sequence[Tracker]) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that sends a line of metrics.jsonl to every tracker."""
    failed: set[int] = set()

    def send(line: Mapping[str, Any]) -> None:
        for number, tracker in enumerate(trackers):
            figures = {key: float(line[key]) for key in RELEASED if key in line}
            try:
                tracker.log(figures, step=int(line["step"]))
            except Exception as exc:  # a tracker may raise anything
                if number not in failed:
                    failed.add(number)
                    _print_note(f"{type(tracker).__name__} failed at step {line['step']}", exc)

    return send


def require_installed(names: Iterable[str]) -> None:
    """Require that these trackers are installed, before the run starts."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"--track {name}: {name} is not installed. Fix: pip install -c constraints.txt -e '.[{name}]'."
            )


@contextmanager
def open_trackers(names: Iterable[str], folder: Path) -> Iterator[list[Tracker]]:
    """Open the named trackers for the run in `folder`, and close them at the end."""
    trackers: dict[str, Any] = {}
    for name in names:
        try:
            trackers[name] = NAMED[name](folder)
        except Exception as exc:
            _print_note(f"{name} did not start", exc)
    try:
        yield list(trackers.values())
    finally:
        for name, tracker in trackers.items():
            try:
                tracker.close()
            except Exception as exc:
                _print_note(f"{name} did not close", exc)


class TensorBoard:
    """Writes TensorBoard curves to operator/tensorboard; the names of the files contain the host name."""

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
    """Logs to a Trackio run in the project dpvision, named after the folder."""

    def __init__(self, folder: Path) -> None:
        self._trackio = importlib.import_module("trackio")
        self._trackio.init(project="dpvision", name=folder.name)

    def log(self, figures: dict[str, float], /, step: int) -> None:
        self._trackio.log(figures, step=step)

    def close(self) -> None:
        self._trackio.finish()


NAMED = {"tensorboard": TensorBoard, "trackio": Trackio}


def _print_note(what: str, exc: Exception) -> None:
    print(
        f"note: {what} ({exc!r}); training continues, and metrics.jsonl has all figures.",
        file=sys.stderr,
        flush=True,
    )
