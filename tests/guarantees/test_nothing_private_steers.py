"""What depends on private values neither stops a run nor is on what leaves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpvision import report, runs, train
from dpvision.config import Config
from dpvision.privacy.ledger import ledger_of
from dpvision.report import wording
from tests.guarantees.commands import write_data

SETTINGS = Config(epsilon=3.0, model="linear", batch=20, steps=4)


def _finished(source: Path, folder: Path, config: Config, key: str | None = None) -> tuple[runs.Run, dict[str, object]]:
    prepared = train.prepare(str(source), config)
    run = train.begin(prepared, folder, test_key=key)
    assert train.proceed(run, prepared).complete
    return run, report.card(run, ledger_of(prepared.fingerprint).account())


def test_losses_that_are_not_finite_stop_nothing(tmp_path: Path) -> None:
    """An error that depends on private losses would tell of them. Their units contribute zero."""
    config = replace(SETTINGS, lr=3e38, steps=20, momentum=0.9)
    run, _ = _finished(write_data(tmp_path / "data.npz"), tmp_path / "run", config, key="the same each time")
    losses = [line["mean_loss"] for line in runs.read_lines(run.operator / "log.jsonl")]
    assert len(losses) == 20 and not np.isfinite(losses).all(), "there were such losses"


def test_without_a_test_split_there_is_no_accuracy(tmp_path: Path) -> None:
    """Not even that of the training images."""
    source = write_data(tmp_path / "data.npz")
    with np.load(source) as arrays:
        np.savez(source, **{name: arrays[name] for name in ("train_images", "train_labels")})
    run, card = _finished(source, tmp_path / "run", SETTINGS)
    assert all(set(line) == {"step", "epsilon"} for line in runs.read_lines(run.metrics))
    assert card["accuracy"] is None and card["evaluation"] is None


@pytest.mark.parametrize("unit", ["image", "person"])
@pytest.mark.parametrize("declared", [False, True])
def test_neighbours_are_those_that_follow_from_where_n_came_from(unit: str, declared: bool, tmp_path: Path) -> None:
    source = write_data(tmp_path / "data.npz")
    with np.load(source) as arrays:
        persons = np.arange(len(arrays["train_labels"])) // 2
        test_persons = 10_000 + np.arange(len(arrays["test_labels"]))
        np.savez(source, **arrays, train_persons=persons, test_persons=test_persons)
    config = replace(SETTINGS, unit=unit, n=(200 if unit == "image" else 100) if declared else None)
    _, card = _finished(source, tmp_path / "run", config)
    assert card["adjacency"] == (wording.ADD_OR_REMOVE if declared else wording.ZERO_OUT)
    assert any(f"number of {unit}s" in line for line in card["not_covered"]) is not declared  # type: ignore[attr-defined]
