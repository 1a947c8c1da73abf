"""The examples in the help of every verb, found in the application itself and run in this process."""

from __future__ import annotations

import inspect
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

MAX_SECONDS = 300  # by the clock, on a busy machine: a verb that serves or waits must not hang the tests


def examples() -> dict[str, list[str]]:
    """Verb to command lines, for every verb and sub-verb there is; none where its help has none."""
    from dpvision.cli.app import app

    return {verb: _in(text) for verb, text in sorted(_walk(app, ()))}


def _walk(app: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in app:
        if not name.startswith("-"):
            below = app[name]
            yield from _walk(below, (*path, name))
            if below.default_command is not None:
                yield " ".join((*path, name)), inspect.getdoc(below.default_command) or ""


def _in(text: str) -> list[str]:
    """What stands in backticks in the paragraph that begins with "Example:"."""
    match = re.search(r"^Example: (.*?)(\n\n|\Z)", text, flags=re.M | re.S)
    return [" ".join(line.split()) for line in re.findall(r"`(dpvision [^`]+)`", match[1])] if match else []


def words_of(example: str, smaller: Mapping[str, str]) -> list[str]:
    """The words after `dpvision`, with these values instead of those that are given; "" is a flag without a value."""
    words = shlex.split(example)[1:]
    for option, value in smaller.items():
        if option in words:
            place = words.index(option)
            del words[place : place + (2 if value else 1)]
        words += [option, *([value] if value else [])]
    return words


def call(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command line, in this process."""
    from dpvision.cli import main

    monkeypatch.setattr(sys, "argv", ["dpvision", *words])
    with _limited(words):
        try:
            main()
        except SystemExit as exc:
            return exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
    return 0


@contextmanager
def _limited(words: list[str]) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        pytest.fail(f"dpvision {shlex.join(words)}: still at work after {MAX_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
