"""Runs with several labels and with grades, end to end on the command line."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.storage import safetensors
from tests.one_thread import one_thread  # noqa: F401

Command = Callable[..., tuple[int, str]]
QUICK = ("--epsilon", "8", "--n", "160", "--steps", "4", "--full-batch")


@pytest.fixture
def dpvision(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a verb in this process: its exit code, and all that it printed."""

    def run(*words: object) -> tuple[int, str]:
        from dpvision.cli import main

        monkeypatch.setattr(sys, "argv", ["dpvision", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as exc:
            code = int(exc.code or 0)
        output = capfd.readouterr()
        return code, output.out + output.err

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random((240, 3)) < 0.1, np.nan, rng.integers(0, 2, (240, 3)))
    images = rng.integers(0, 120, (240, 8, 8)).astype(np.uint8) + (labels[:, :1, None] == 1).astype(np.uint8) * 90
    arrays: dict[str, Any] = {"train_images": images[:160], "train_labels": labels[:160], "test_images": images[160:]}
    np.savez(tmp_path / "x.npz", **arrays, test_labels=labels[160:], test_sex=np.array(["f", "m"] * 40))
    rows = images.reshape(240, -1).astype(np.float32)
    np.savez(tmp_path / "f.npz", train_features=rows[:160], train_labels=labels[:160])
    return tmp_path / "x.npz"


def test_labels_from_data_to_answers(data: Path, tmp_path: Path, dpvision: Command) -> None:
    run = tmp_path / "run"
    code, out = dpvision(
        "train", data, "--task", "labels", "--classes", "a,b,c", "--model", "linear", *QUICK, "--out", run
    )
    assert code == 0 and "balanced accuracy" in out and "more frequent answer to each label" in out, out
    assert safetensors.read(run / "weights.safetensors").header["task"] == "labels"
    card = json.loads((run / "card.json").read_text())
    assert card["task"] == "labels" and card["public_facts"]["classes"] == {
        "value": ["a", "b", "c"],
        "known": "declared",
    }
    figures = json.loads((run / "evaluation.json").read_text())
    assert "groups" not in figures and figures["classes"]["known"] == [int(k) for k in figures["classes"]["known"]]
    assert "By label" in (run / "report.html").read_text()
    code, out = dpvision("predict", run, data, "--probabilities")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and len(lines) == 80 and list(lines[0])[:5] == ["file", "problem", "a", "b", "c"]
    assert all((float(line["probability of a"]) > 0.5) == (line["a"] == "1") for line in lines)
    code, out = dpvision("eval", run, data, "--group", "sex", "--json")
    result = json.loads(out)
    assert code == 0 and set(result["classes"]) == {"a", "b", "c"} and result["groups"]["least"] == 20
    assert dpvision("eval", run, data, "--keep", "--examples", "2")[0] == 2
    assert dpvision("audit", run, data)[0] == 2


def test_what_has_no_several_labels_is_refused_by_name(data: Path, tmp_path: Path, dpvision: Command) -> None:
    head = ("train", data.parent / "f.npz", "--task", "labels", "--epsilon", "8", "--n", "160")
    for arguments, name in (
        ((*head, "--head", "lda"), "lda"),
        (("train", data, "--task", "labels", "--epsilon", "3", "--objective", "balanced"), "objective"),
        (("train", data, "--task", "labels", "--epsilon", "3", "--examples", "2"), "examples"),
        (("release", data, "--epsilon", "3"), "several labels per image"),
    ):
        code, out = dpvision(*arguments)
        assert code in (2, 3) and name in out and "Fix:" in out, out
    code, out = dpvision(*head, "--out", tmp_path / "head")
    assert code == 0, out


def test_grades_show_examples(tmp_path: Path, dpvision: Command) -> None:
    run = tmp_path / "run"
    quick = ("--epsilon", "8", "--model", "linear", "--steps", "3", "--full-batch")
    code, out = dpvision("train", "digits", "--task", "grades", *quick, "--examples", "2", "--out", run)
    assert code == 0 and "quadratic kappa" in out, out
    assert json.loads((run / "examples.json").read_text())["examples"]
    assert json.loads((run / "card.json").read_text())["evaluation"]["kappa_interval"]
    weights = safetensors.read(run / "weights.safetensors")
    assert weights.header["task"] == "grades"
