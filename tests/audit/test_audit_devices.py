"""Attacks and evaluations on an accelerator: the results of the CPU, and no wait for the device within a loop."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dpvision.audit import inversion, membership, training_canaries
from dpvision.audit.canaries import CanaryRandom
from dpvision.audit.geometry import load_subject, measure
from dpvision.cli.app import app
from dpvision.data import load
from dpvision.models import inputs
from dpvision.models.inputs import Inputs, predict, predict_scores
from dpvision.models.tasks import Task
from dpvision.released.folder import read_release
from dpvision.released.model import load_model
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from tests.audit.fixed_randomness import fixed_randomness
from tests.private.statistics.releases.small import made, small
from tests.system.runs.commands import write_data

DEVICE = "standin:0"


def _run(*words: str | Path) -> None:
    app([str(w) for w in words], exit_on_error=False, print_error=False, result_action="return_value")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data.npz, a run on it, and its home."""
    pytest.importorskip("tests.standin")
    folder = tmp_path_factory.mktemp("on a device")
    with pytest.MonkeyPatch.context() as patch, fixed_randomness("on a device"):
        patch.setenv("DPVISION_HOME", str(folder / "home"))
        write_data(folder / "data.npz")
        words = ("--epsilon", "3", "--steps", "3", "--batch", "50", "--model", "small-cnn", "--out", folder / "run")
        _run("train", folder / "data.npz", *words)
    return folder


def test_predictions_are_those_of_the_cpu_and_wait_only_at_the_end(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin = pytest.importorskip("tests.standin")
    records = Inputs(load(str(finished / "data.npz")).train)
    here, there = (load_model(finished / "run", device=device).model for device in ("cpu", DEVICE))
    assert next(there.parameters()).device == torch.device(DEVICE)
    assert predict_scores(there, records) == pytest.approx(predict_scores(here, records), abs=1e-5)
    waits = []
    for batch in (100, 10):
        monkeypatch.setattr(inputs, "BATCH", batch)
        standin.reset()
        found = predict(there, records, Task("classes", 10))
        waits.append(sum(standin.counts()["waits"].values()))
        expected = predict(here, records, Task("classes", 10))
        assert (found.answers == expected.answers).all() and found.chances == pytest.approx(expected.chances, abs=1e-5)
    assert waits[0] == waits[1] <= 3, "ten times the number of batches, and no more waits"


def test_verbs_compute_on_the_device_that_is_named(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    standin = pytest.importorskip("tests.standin")
    monkeypatch.setenv("DPVISION_HOME", str(finished / "home"))
    run, data = finished / "run", finished / "data.npz"
    results, tables = [], []
    for device in ("cpu", DEVICE):
        standin.reset()
        _run("eval", run, data, "--json", "--device", device)
        results.append(json.loads(capsys.readouterr().out))
        _run("predict", run, data, "--out", tmp_path / f"{device}.csv", "--device", device)
        tables.append(list(csv.reader((tmp_path / f"{device}.csv").read_text().splitlines())))
        capsys.readouterr()
        assert bool(standin.counts()["kernels"]) == (device == DEVICE)
    assert results[0] == results[1] and tables[0] == tables[1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip_style": "per-layer", "probe_steps": 2},
        {"k_base": 2, "k_self": 1, "augment": ("crop", "flip")},
        {"assist": "weights", "synthetic": "x"},
        {"assist": "dope", "synthetic": "x"},
        {"assist": "adadps", "synthetic": "x"},
    ],
    ids=str,
)
def test_canaries_have_the_scores_of_the_cpu(changes: dict) -> None:
    standin = pytest.importorskip("tests.standin")
    config = Config(batch=20, n=80, steps=4, sigma=2.0, **changes)
    scores = []
    for device in ("cpu", DEVICE):
        standin.reset()
        scores.append(training_canaries.score_canaries(config, canaries=100, rng=CanaryRandom("device"), device=device))
        assert bool(standin.counts()["kernels"]) == (device == DEVICE)
    here, there = scores
    assert there.without == pytest.approx(here.without, abs=1e-5)
    assert there.with_record == pytest.approx(here.with_record, abs=1e-5)


def test_the_geometry_of_a_loss_is_that_of_the_cpu(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tests.standin")
    monkeypatch.setenv("DPVISION_HOME", str(finished / "home"))
    source = str(finished / "data.npz")
    here, there = (
        measure(load_subject(finished / "run", source, private=True, most=30, device=device), top=2, probes=2)
        for device in ("cpu", DEVICE)
    )
    assert there.curvature.eigenvalues.values == pytest.approx(here.curvature.eigenvalues.values, rel=1e-3)
    assert there.curvature.trace.value == pytest.approx(here.curvature.trace.value, rel=1e-3)
    assert there.summary.loss == pytest.approx(here.summary.loss, rel=1e-5)
    assert there.summary.clipped == pytest.approx(here.summary.clipped, rel=1e-4)
    assert torch.allclose(there.plane.first.points, here.plane.first.points, atol=1e-4)


def test_an_audit_with_shadow_models_runs_on_a_device(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tests.standin")
    monkeypatch.setenv("DPVISION_HOME", str(finished / "home"))
    with fixed_randomness("shadows"):
        _run("audit", finished / "run", finished / "data.npz", "--runs", "100", "--shadows", "4", "--device", DEVICE)
    run = run_folder.Run(finished / "run")
    assert run_folder.read_json(run.operator / "lira.json")["shadows"] == 4
    expected, _ = membership.attack_run(run.folder, str(finished / "data.npz"))
    assert run_folder.read_json(run.operator / "membership.json")["auc"] == pytest.approx(expected.auc, abs=1e-3)


def test_rows_are_inverted_on_a_device(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tests.standin")
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "home"))
    source = str(finished / "data.npz")
    made(tmp_path / "release", small("dpmix", budget=1e3), source=source, test_key="device")
    release = read_release(tmp_path / "release")
    here, there = (inversion.attack_rows(release, source, steps=20, device=device) for device in ("cpu", DEVICE))
    assert not isinstance(here, str) and not isinstance(there, str)
    assert there.alone == pytest.approx(here.alone, abs=1e-4) and there.members == pytest.approx(here.members, abs=1e-3)
    assert all(isinstance(line, np.ndarray) for line in there.lines.values())
