"""The board shows what is kept for exactly these settings, next to goals and papers, and draws it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import board, trainings
from benchmarks.trainings import Case, Done

TRAINED = board.Task(Case("cifar10", "patches", 1.0, seeds=2, settings=(("release", "last"),)), 0.724, 0.723, "a paper")
RELEASED = board.Task(replace(board._release("mnist", 1.0), seeds=2), 0.98)


def done(title: str, settings: str, seed: int, accuracy: float) -> Done:
    return Done(title, settings, seed, accuracy, accuracy, 0.9998, 60.0, "2026-11-19", "here")


def test_board_of_kept_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        *(done(TRAINED.case.title, trainings.named(TRAINED.case.config(s)), s, 0.70 + 0.02 * s) for s in (0, 1, 2)),
        *(done(RELEASED.case.title, board.named(board.complete(RELEASED.case)), s, 0.985) for s in (0, 1)),
        done(RELEASED.case.title, "other settings", 1, 0.1),
    ]
    kept = tmp_path / "kept.jsonl"
    kept.write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines))
    monkeypatch.setattr(trainings, "KEPT", kept)
    monkeypatch.setattr(board, "PICTURE", tmp_path / "board.png")
    earlier = done("cifar10, patches, epsilon 8", "settings of earlier code", 0, 0.79)
    kept.write_text(kept.read_text() + json.dumps(asdict(replace(earlier, day="2026-11-16"))) + "\n")
    former = replace(TRAINED, case=replace(TRAINED.case, epsilon=8.0))
    missing = replace(TRAINED, case=replace(TRAINED.case, epsilon=2.0))
    monkeypatch.setattr(board, "TASKS", (TRAINED, missing, RELEASED, former))
    shown = board.Board(train=False)
    figures = {f.name: f for f in shown.measure(quick=False)}
    assert figures["cifar10, patches, epsilon 1: mean of 2"].value == pytest.approx(0.71)
    assert figures["mnist, moments, epsilon 1: mean of 2"].value == pytest.approx(0.985)
    assert len(figures) == 6 and all(f.good for f in figures.values())
    first, second, third = shown.table().splitlines()[2:5]
    assert "| 8 | 79.0% | 79.0% | 1 | 1.0 | 2026-11-16 |" in third
    assert "| 71.0% | 70.0% | 2 | 1.0 | 2026-11-19 | 72.4% | no, 1.4 points below | 72.3% | a paper |" in first
    assert "release of features" in second and "| 98.0% | yes |" in second
    assert (tmp_path / "board.png").stat().st_size > 1000 and kept.read_text().count("\n") == len(lines) + 1


def test_other_settings_of_a_release_have_another_name() -> None:
    cases = [RELEASED.case, replace(RELEASED.case, epsilon=2.0), replace(RELEASED.case, settings=(("share", 0.3),))]
    assert len({board.named(board.complete(case)) for case in cases}) == 3
