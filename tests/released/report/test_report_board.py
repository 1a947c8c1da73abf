"""The board: runs of the same settings are one point with a spread, names are text, and broken cards are refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from run_folder import card_of

from dpvision.errors import DataError
from dpvision.released.report import board
from dpvision.storage.run_folder import Run


def _copy(run: Run, folder: Path, *, accuracy: float, **settings: object) -> Path:
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("operator"))
    card = card_of(run)
    card["config"] |= settings
    card["accuracy"]["released_test_accuracy"] = accuracy
    (folder / "card.json").write_text(json.dumps(card))
    return folder


def test_runs_of_the_same_settings_are_one_point(tmp_path: Path, private_run: Run, fixed_key_run: Run) -> None:
    runs = tmp_path / "runs"
    _copy(private_run, runs / "a", accuracy=0.8, seed=1)
    _copy(private_run, runs / "b", accuracy=0.9, seed=2, checkpoint_every=7)
    _copy(private_run, runs / "c", accuracy=0.7, lr=1.0)
    entries = [board.read_entry(runs / name) for name in "abc"]
    entries.append(board.read_entry(fixed_key_run.folder))
    numbers = {text: i for i, text in enumerate(dict.fromkeys(e.settings for e in entries), 1)}
    first, second = board._groups(entries, numbers)  # a run without a guarantee is no point
    assert (first.accuracies, second.accuracies) == ((0.8, 0.9), (0.7,))
    assert first.mean == pytest.approx(0.85) and first.spread == pytest.approx(0.0707, abs=1e-4)
    assert second.spread is None
    assert board.write([runs, fixed_key_run.folder], tmp_path / "board.html") == 4
    text = (tmp_path / "board.html").read_text()
    assert "deviation 7.1 points of 2 runs" in text and "NOT PRIVATE" in text
    assert 'href="./runs/a/report.html"' in text


def test_a_public_data_set_is_named(tmp_path: Path, private_run: Run) -> None:
    folder = _copy(private_run, tmp_path / "run", accuracy=0.8)
    (folder / "card.json").write_text(json.dumps(card_of(private_run) | {"known_data_set": "cifar10"}))
    assert board.read_entry(folder).data == "CIFAR-10"


def test_names_are_text_and_only_our_script_runs(tmp_path: Path, private_run: Run) -> None:
    hostile = "javascript:alert(1) <img src=x onerror=alert(1)>"
    _copy(private_run, tmp_path / hostile, accuracy=0.5, recipe="<script>alert(2)</script>", model='"><b>')
    board.write([tmp_path / hostile], tmp_path / "board.html")
    text = (tmp_path / "board.html").read_text()
    assert text.count("<script>") == 1 and "<img" not in text and "<b>" not in text
    assert 'href="./javascript%3Aalert' in text
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert "script-src 'sha256-" in text and "unsafe-inline'; script" in text


@pytest.mark.parametrize(
    "edit",
    [
        {"format": "x"},
        {"config": 7},
        {"guarantee": {"epsilon": "3", "delta": 1e-5}},
        {"accuracy": {"released_test_accuracy": 2}},
    ],
)
def test_a_broken_card_is_refused(tmp_path: Path, private_run: Run, edit: dict[str, object]) -> None:
    folder = _copy(private_run, tmp_path / "run", accuracy=0.5)
    (folder / "card.json").write_text(json.dumps(card_of(private_run) | edit))
    with pytest.raises(DataError, match=r"card\.json"):
        board.write([folder], tmp_path / "board.html")
    assert not (tmp_path / "board.html").exists()


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no finished run"):
        board.write([tmp_path], tmp_path / "board.html")
