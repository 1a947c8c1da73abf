"""Rows on their way to a file: whatever is killed or forged, the finished file has the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpvision.errors import DataError
from dpvision.private.features.resumable_file import ResumableFile
from tests.private.features.fill_worker import BLOCK, ROWS, fill


def _bytes(tmp_path: Path) -> bytes:
    np.save(tmp_path / "whole.npy", ROWS)
    return (tmp_path / "whole.npy").read_bytes()


def test_killed_at_every_system_call(tmp_path: Path) -> None:
    """What was noted is not computed again, and nothing else is believed."""
    folder = tmp_path / "rows"
    folder.mkdir()
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.private.features.fill_worker", str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    stages = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(stages) > 30 and all(stage["killed"] for stage in stages[:-1]) and not stages[-1]["killed"]
    assert {stage["whole"] for stage in stages} == {0, BLOCK, 2 * BLOCK, len(ROWS)}
    assert all(stage["whole"] + stage["computed"] == len(ROWS) for stage in stages)
    files = list(folder.glob("*.npy"))
    assert len(files) == len(stages) and {file.read_bytes() for file in files} == {_bytes(tmp_path)}
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert not list(folder.glob("*.partial"))


def _left_behind(folder: Path, *, noted: int = 2 * BLOCK) -> Path:
    """As a killed process leaves it; the last block is written, but not noted."""
    path = folder / "name.npy"
    with ResumableFile(path, ROWS.shape) as rows:
        assert rows.begin() == 0
        rows.write(0, ROWS)
        rows.record(noted)
    return path


def test_only_the_rest_is_computed(tmp_path: Path) -> None:
    path = _left_behind(tmp_path)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in tmp_path.iterdir())
    assert fill(path) == len(ROWS) - 2 * BLOCK
    assert path.read_bytes() == _bytes(tmp_path)


def _edit(text: str, **changes: object) -> str:
    return json.dumps({**json.loads(text), **changes})


PARTIAL: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[:-1],
    "too long": lambda data: data + b"\0",
    "rows edited": lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    "header edited": lambda data: data.replace(b"<f4", b">f4"),
    "pickled objects": lambda data: data.replace(b"'<f4'", b"'|O' "),
    "other rows": lambda data: bytes(len(data)),
}
PROGRESS: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "no json": lambda text: text[:-5],
    "deep": lambda text: "[" * 4000,
    "long": lambda text: text + " " * 5000,
    "a list": lambda text: f"[{text}]",
    "of another name": lambda text: _edit(text, of="other"),
    "of another shape": lambda text: _edit(text, shape=[11, 4]),
    "of another kind": lambda text: _edit(text, dtype="float64"),
    "of another format": lambda text: _edit(text, format="dpvision-rows-0"),
    "more": lambda text: _edit(text, more=1),
    "ahead": lambda text: _edit(text, rows=len(ROWS)),
    "too many rows": lambda text: _edit(text, rows=1 << 70),
    "less than none": lambda text: _edit(text, rows=-1),
    "no whole number": lambda text: _edit(text, rows=8.0),
    "true": lambda text: _edit(text, rows=True),
    "no digest": lambda text: _edit(text, digest=None),
}


@pytest.mark.parametrize("damage", PARTIAL)
def test_a_damaged_file_is_made_anew(damage: str, tmp_path: Path) -> None:
    path = _left_behind(tmp_path)
    partial = path.with_suffix(".partial")
    partial.write_bytes(PARTIAL[damage](partial.read_bytes()))
    assert fill(path) == len(ROWS)
    assert path.read_bytes() == _bytes(tmp_path)


@pytest.mark.parametrize("damage", PROGRESS)
def test_a_damaged_progress_is_not_believed(damage: str, tmp_path: Path) -> None:
    path = _left_behind(tmp_path)
    progress = path.with_suffix(".progress")
    progress.write_text(PROGRESS[damage](progress.read_text()))
    assert fill(path) == len(ROWS)
    assert path.read_bytes() == _bytes(tmp_path)


@pytest.mark.parametrize("which", [".partial", ".progress"])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_no_link_is_followed_and_nothing_waits(which: str, kind: str, tmp_path: Path) -> None:
    """A link to a file that would fit; what it points to is not touched."""
    path, elsewhere = _left_behind(tmp_path), tmp_path / "elsewhere"
    file = path.with_suffix(which)
    file.rename(elsewhere)
    before = elsewhere.read_bytes()
    if kind == "link":
        file.symlink_to(elsewhere)
    else:
        os.mkfifo(file)
    assert fill(path) == len(ROWS)
    assert path.read_bytes() == _bytes(tmp_path) and not path.is_symlink()
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("how", ["open to others", "hard link"])
def test_rows_that_others_can_reach_are_not_gone_on_with(how: str, tmp_path: Path) -> None:
    path = _left_behind(tmp_path)
    if how == "hard link":
        os.link(path.with_suffix(".partial"), tmp_path / "second name")
    else:
        path.with_suffix(".partial").chmod(0o644)
    assert fill(path) == len(ROWS)
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_nlink == 1


@pytest.mark.parametrize("which", [".partial", ".progress"])
def test_a_folder_in_the_way_is_named(which: str, tmp_path: Path) -> None:
    path = tmp_path / "name.npy"
    path.with_suffix(which).mkdir()
    with pytest.raises(DataError, match=r"name.partial: .*Fix: "):
        fill(path)


def test_another_rank_needs_the_file_that_the_first_made(tmp_path: Path) -> None:
    path = tmp_path / "name.npy"
    with pytest.raises(DataError, match="does not see the file"):
        ResumableFile(path, ROWS.shape).join()
    with ResumableFile(path, ROWS.shape) as first, ResumableFile(path, ROWS.shape) as second:
        first.begin()
        second.join()
        assert first.token == second.token != ""
        second.write(BLOCK, ROWS[BLOCK:])
        first.write(0, ROWS[:BLOCK])
        first.record(len(ROWS))
        first.finish()
    assert path.read_bytes() == _bytes(tmp_path)
    with ResumableFile(tmp_path / "name.npy", (11, 4)) as rows, pytest.raises(DataError, match="does not see"):
        rows.join()
