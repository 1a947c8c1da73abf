"""What depends on private values neither stops a run nor is on what leaves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvision.private.engine import Tally
from dpvision.private.training import train
from dpvision.released import report
from dpvision.released.report import wording
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from dpvision.storage.home import ledger_of
from tests.system.runs.commands import write_data

SETTINGS = Config(epsilon=3.0, model="linear", batch=20, steps=4)


def _finished(
    source: Path, folder: Path, config: Config, key: str | None = None
) -> tuple[run_folder.Run, dict[str, object]]:
    prepared = train.prepare(str(source), config)
    run = train.begin(prepared, folder, test_key=key)
    assert train.proceed(run, prepared).complete
    return run, report.card(run, ledger_of(prepared.fingerprint).account())


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -1e30, 0.0])
def test_losses_steer_nothing(loss: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and shares that were clipped are private: whatever they are, the run ends with the same weights."""
    prepared = train.prepare(str(write_data(tmp_path / "data.npz")), SETTINGS)
    usual, odd = (train.begin(prepared, tmp_path / name, test_key="the same each time") for name in ("usual", "odd"))
    assert train.proceed(usual, prepared).complete
    flush = Tally.flush
    monkeypatch.setattr(Tally, "flush", lambda self: {**flush(self), "mean_loss": loss, "clipped_share": abs(loss)})
    assert train.proceed(odd, prepared).complete
    assert len(run_folder.read_lines(odd.operator / "log.jsonl")) == SETTINGS.steps
    assert load_file(odd.weights).keys() == load_file(usual.weights).keys()
    assert all(torch.equal(x, load_file(usual.weights)[name]) for name, x in load_file(odd.weights).items())


def test_without_a_test_split_there_is_no_accuracy(tmp_path: Path) -> None:
    """Not even that of the training images."""
    source = write_data(tmp_path / "data.npz")
    with np.load(source) as arrays:
        np.savez(source, **{name: arrays[name] for name in ("train_images", "train_labels")})
    run, card = _finished(source, tmp_path / "run", SETTINGS)
    assert all(set(line) == {"step", "epsilon"} for line in run_folder.read_lines(run.metrics))
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
