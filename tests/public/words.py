"""The command line in this process: exit code, output and errors of a verb."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpvision.cli import main

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """(exit code, output, errors) of a command."""

    def run(*words: str | Path | float) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dpvision", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as exc:
            code = int(exc.code or 0)
        return code, *capsys.readouterr()

    return run
