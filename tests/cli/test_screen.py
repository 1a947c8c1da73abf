"""Progress of long work: lines in a log, bars on a terminal, nothing from other worker processes."""

from __future__ import annotations

import inspect
import io
import sys
import threading
import time

import pytest

from dpvision.cli import screen
from dpvision.cli.screen import _Task
from dpvision.cli.tune import tune


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "FIRST_LINE", 0.05)


class Clock:
    """The time for the lines, which passes only when the test advances it, so that the load of the machine does not matter."""

    def __init__(self) -> None:
        self._now, self._looks, self._test = 0.0, 0, threading.current_thread()

    def monotonic(self) -> float:
        self._looks += threading.current_thread() is not self._test
        return self._now

    def pass_by(self, seconds: float) -> None:
        """Let time pass after the printing thread has seen what was shown, and wait until it has printed."""
        self._wait_for_the_thread()
        self._now += seconds
        self._wait_for_the_thread()

    def _wait_for_the_thread(self) -> None:
        looks, deadline = self._looks, time.monotonic() + 60
        while self._looks < looks + 2:
            assert time.monotonic() < deadline, "the thread that prints does not run"
            time.sleep(0.001)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(screen, "time", clock)
    return clock


def test_work_without_a_count_is_seen_to_run(soon: None, capsys: pytest.CaptureFixture[str]) -> None:
    with screen.progress("reading images"):
        time.sleep(0.5)
    assert capsys.readouterr().err == "reading images: 1 s so far\n", "one line; the next would come much later"


def test_each_part_has_its_own_first_line(soon: None, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with screen.progress("reading images") as show:
        show("computing features", 1, 8)
        for done in range(2, 9):
            clock.pass_by(0.03)
            show("computing features", done, 8)
        show("training", 1, 3, "epsilon 2.99 charged")
        clock.pass_by(0.04)
        first = capsys.readouterr().err
        assert first == "computing features: 2 of 8, 17/s, about 1 s left\n", "too early for a line about training"
        clock.pass_by(0.04)
        clock.pass_by(screen.NEXT_LINE - 5)
        assert capsys.readouterr().err == "training: 1 of 3, epsilon 2.99 charged\n", "one line; the next is due later"


def test_lines_are_repeated(soon: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(screen, "NEXT_LINE", 0.1)
    with screen.counting("packing") as progress:
        for done in range(10):
            progress(done, 10)
            time.sleep(0.05)
    assert len(capsys.readouterr().err.splitlines()) >= 2


def test_work_on_private_records_is_shown_in_per_cent(soon: None, capsys: pytest.CaptureFixture[str]) -> None:
    with screen.progress("preparing") as show:
        progress = screen.in_percent(show)
        for done in (0, 700, 1437):
            progress("features", done, 1437)
            time.sleep(0.2)
    err = capsys.readouterr().err
    assert "features, per cent: " in err and " of 100" in err and "437" not in err


def test_quick_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.counting("packing") as progress:
        progress(1, 2)
        progress(2, 2)
    assert capsys.readouterr().err == ""


def test_a_tuning_shows_neither_a_count_nor_a_time() -> None:
    """Its number of trials is secret, and lines with times in a log would reveal it."""
    assert "progress(" not in inspect.getsource(tune).split("show_tuning(prepared")[1]


def test_one_of_several_processes_shows_it(
    soon: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    with screen.progress("reading images") as show:
        show("training", 1, 2)
        time.sleep(0.3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("done", "seconds", "line"),
    [
        (11, 1.0, "fitting: 11 of 1,000, 10/s, about 2 min left"),
        (1000, 10.0, "fitting: 1,000 of 1,000, 100/s"),
        (5, 2.0, "fitting: 5 of 1,000, 2.0/s, about 8 min left"),
        (2, 60.0, "fitting: 2 of 1,000, 60.0 s each, about 16.6 h left"),
        (1, 60.0, "fitting: 1 of 1,000"),
    ],
)
def test_lines_state_rate_and_time_left(done: int, seconds: float, line: str) -> None:
    """By what was done since the first count: a part that was resumed or loaded from a cache has no early rate."""
    part = _Task("fitting", began=0.0, counted=(100.0, 1), done=done, total=1000)
    assert part.line(100.0 + seconds) == line


def test_a_terminal_has_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with screen.progress("reading images") as show:
        show("training", 2, 4, "epsilon 2.99 charged")
    text = terminal.getvalue()
    assert "training" in text and "2/4" in text and "epsilon 2.99 charged" in text
