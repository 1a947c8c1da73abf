"""Looking at gradients: it shows what they are, leaves the training as it is, and stays in the operator's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpvision.errors import ConfigError
from dpvision.private.engine import ClippedSum
from dpvision.private.training import gradient_study, train
from dpvision.private.training.network import each_loss
from dpvision.released.report import write
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from tests.private.engine.oracle import unit_gradients

SETTINGS = Config(epsilon=3.0, batch=100, steps=10, model="linear", budget=1e4)


def _run(folder: Path, config: Config) -> run_folder.Run:
    prepared = train.prepare("digits", config)
    run = train.begin(prepared, folder, test_key="word")
    assert train.proceed(run, prepared).complete
    return run


def test_magnitudes_are_those_of_gradients_one_by_one() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
    images, targets = torch.randn(20, 1, 4, 4), torch.arange(20) % 4
    sums = ClippedSum(model, each_loss, clip=1e-3)  # what is looked at is not clipped
    seen = gradient_study.measure(sums, lambda drawn, _: (images[drawn], targets[drawn], [1] * len(drawn)), 20)
    mean = unit_gradients(model, images, targets, [1] * 20).abs().mean(0)
    assert seen["mean"] == pytest.approx(float(mean.mean()), rel=1e-5)
    assert seen["deviation"] == pytest.approx(float(mean.std(correction=0)), rel=1e-5)
    assert sum(seen["counts"]) == mean.numel()
    places = np.histogram(mean.log10().numpy(), gradient_study.EDGES)[0]
    assert np.abs(places - np.array(seen["counts"])).sum() <= 2


def test_the_training_is_the_same_and_nothing_of_it_may_leave(tmp_path: Path) -> None:
    without = _run(tmp_path / "without", SETTINGS)
    looked = _run(tmp_path / "looked", replace(SETTINGS, study=True))
    assert looked.weights.read_bytes() == without.weights.read_bytes()
    write(looked, None)
    shares = [line["share"] for line in run_folder.read_lines(gradient_study.file(looked))]
    assert shares == list(gradient_study.SHARES)
    mean = str(run_folder.read_lines(gradient_study.file(looked))[0]["mean"])
    for path in looked.folder.iterdir():
        assert path == looked.operator or mean not in path.read_bytes().decode(errors="ignore"), path


def test_the_picture_says_for_whom_it_is(tmp_path: Path) -> None:
    looked = _run(tmp_path / "looked", replace(SETTINGS, study=True))
    result = gradient_study.plot([looked, looked], tmp_path / "gradients.svg")
    assert next(iter(result.values())) > 0
    assert b"<svg" in (tmp_path / "gradients.svg").read_bytes()
    with pytest.raises(ConfigError, match="--study"):
        gradient_study.plot([_run(tmp_path / "without", SETTINGS)], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()
