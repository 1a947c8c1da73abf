"""Output of the verbs: lines, tables and JSON on stdout, and the progress of long operations on stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

# In a log: seconds until the first line about a task, and between lines.
FIRST_LINE, NEXT_LINE = 3.0, 15.0


def say(text: str = "") -> None:
    """Print one line and flush, so that it is not held back in a pipe."""
    print(text, flush=True)


def as_json(value: Any) -> None:
    """Print a value as JSON."""
    say(json.dumps(value, indent=1))


def table(rows: Mapping[str, Any], *, title: str | None = None) -> None:
    """Print a table with two columns, names and values."""
    if title:
        say(title)
    width = max((len(k) for k in rows), default=0)
    for key, value in rows.items():
        say(f"  {key:<{width}}  {value}")


def grid(header: list[str], rows: list[list[str]]) -> None:
    """Print a table with a header and a line below it."""
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * w for w in widths], *rows]:
        say("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


class Show(Protocol):
    """Show the progress of a task; without a total, only that it is running."""

    def __call__(self, what: str, done: int = 0, total: int = 0, note: str = "") -> None: ...


@contextmanager
def progress(what: str) -> Iterator[Show]:
    """Show the progress of several tasks in a row, of which `what` is the first.

    On a terminal, each task has a progress bar. Elsewhere, as in the log of a batch system, a line is printed from time
    to time. With several worker processes, only the first one prints.
    """
    if os.environ.get("RANK", "0") != "0":
        yield lambda what, done=0, total=0, note="": None
    elif sys.stderr.isatty():
        with _bars(what) as show:
            yield show
    else:
        with _Lines(what) as lines:
            yield lines.show


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a single task; call the yielded function with the amount done and the total."""
    with progress(what) as show:
        yield lambda done, total: show(what, done, total)


def in_percent(show: Show) -> Callable[[str, int, int], None]:
    """Return `show` in per cent, for tasks on private records: a log must not reveal how many there are."""
    return lambda what, done, total: show(f"{what}, per cent", round(100 * done / max(total, 1)), 100)


def stop(state: object) -> NoReturn:
    """Report that the work was stopped on request and can be continued, and exit."""
    say(f"stopped; run the same command again to continue (its state is in {state})")
    sys.exit(130)


@contextmanager
def _bars(what: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int = 0, total: int = 0, note: str = "") -> None:
            if what not in tasks:
                for name in [name for name, task in tasks.items() if bar.tasks[bar.task_ids.index(task)].total is None]:
                    bar.remove_task(tasks.pop(name))  # a task without a total has ended
                tasks[what] = bar.add_task(what, total=None, note=note)
            bar.update(tasks[what], total=total or None, completed=done, note=note)

        show(what)
        yield show


@dataclass(frozen=True)
class _Task:
    """A task: when it began, how much was done when it was first counted, and how much is done now."""

    what: str
    began: float
    counted: tuple[float, int] | None = None
    done: int = 0
    total: int = 0
    note: str = ""

    def line(self, now: float) -> str:
        """Describe how much of the task is done, how fast it runs, and how much time is left."""
        if not self.total or self.counted is None:
            return f"{self.what}: {duration(now - self.began)} so far"
        text = f"{self.what}: {self.done:,} of {self.total:,}"
        since, first = self.counted
        if self.done > first and now > since:
            rate = (self.done - first) / (now - since)
            text += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.1f}/s" if rate >= 1 else f", {1 / rate:.1f} s each"
            text += f", about {duration((self.total - self.done) / rate)} left" if self.done < self.total else ""
        return text + (f", {self.note}" if self.note else "")


class _Lines:
    """Print a line about the current task after FIRST_LINE seconds, and then one every NEXT_LINE seconds.

    A thread prints them, so that a task that reports no progress for minutes is visibly running.
    """

    def __init__(self, what: str) -> None:
        self._began = self._last = time.monotonic()
        self._task, self._named = _Task(what, self._began), set[str]()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def show(self, what: str, done: int = 0, total: int = 0, note: str = "") -> None:
        task, now = self._task, time.monotonic()
        if what != task.what or done < task.done or (task.total and total != task.total):
            task = _Task(what, now)
        counted = task.counted or ((now, done) if total else None)
        self._task = replace(task, counted=counted, done=done, total=total, note=note)

    def _run(self) -> None:
        while not self._end.wait(min(0.5, FIRST_LINE / 4)):
            task, now = self._task, time.monotonic()
            new = task.what not in self._named and now - task.began >= FIRST_LINE
            if new or now - self._last >= NEXT_LINE:
                self._named.add(task.what)
                self._last = now
                print(task.line(now), file=sys.stderr, flush=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C or SIGTERM request a stop after the current step; a second signal stops immediately."""
    requests: list[int] = []

    def request(number: int, _frame: object) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    previous = {s: signal.signal(s, request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(requests)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
