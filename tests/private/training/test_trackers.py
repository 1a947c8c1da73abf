"""Trackers get what may be released and nothing else, and cannot hurt a training run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from dpvision.errors import ConfigError
from dpvision.private.training import gradient_study, train
from dpvision.private.training.metrics import open_trackers, require_installed, send_to
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from tests.one_thread import one_thread
from tests.system.docs.examples import call

__all__ = ["one_thread"]

# Written out here, so that whoever lets more through has to say so twice.
MAY_LEAVE = {"epsilon", "test_accuracy_ema", "test_accuracy_last", "test_images"}
SETTINGS = Config(epsilon=3.0, batch=400, steps=25, model="linear", budget=1e4, study=True)


class Recording:
    """All that a tracker was ever given."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, Any]]] = []

    def log(self, figures: dict[str, float], /, step: int) -> None:
        self.calls.append((step, figures))


class Failing(Recording):
    def log(self, figures: dict[str, float], /, step: int) -> None:
        super().log(figures, step)
        raise OSError("the net is gone")


def _run(folder: Path, trackers: list[Any]) -> run_folder.Run:
    prepared = train.prepare("digits", SETTINGS)
    run = train.begin(prepared, folder, test_key="word")
    assert train.proceed(run, prepared, trackers=trackers).complete
    return run


def test_what_is_private_never_gets_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing, recording = Failing(), Recording()
    tracked = _run(tmp_path / "tracked", [failing, recording])
    plain = _run(tmp_path / "plain", [])
    # A tracker that raises loses no step, is named once, and still gets every line.
    assert tracked.weights.read_bytes() == plain.weights.read_bytes()
    assert tracked.metrics.read_bytes() == plain.metrics.read_bytes()
    assert capsys.readouterr().err.count("the net is gone") == 1
    assert failing.calls == recording.calls
    # Every line of metrics.jsonl is passed on, but only what may be released.
    lines = run_folder.read_lines(tracked.metrics)
    assert recording.calls == [(x["step"], {k: v for k, v in x.items() if k in MAY_LEAVE}) for x in lines]
    assert len(recording.calls) > 5 and all(set(figures) == MAY_LEAVE for _, figures in recording.calls)
    # No value of the operator's folder is among them, whatever its name would be.
    private = [
        *run_folder.read_lines(tracked.operator / "log.jsonl"),
        *run_folder.read_lines(gradient_study.file(tracked)),
    ]
    names = {"units", "images", "mean_loss", "clipped_share", "mean", "deviation"}
    assert names <= {key for line in private for key in line}
    measured = names - {"units", "images", "clipped_share"}  # shares of few may be equal by chance
    hidden = {line[key] for line in private for key in measured & line.keys()} - {0.0, 1.0}
    assert not hidden & {value for _, figures in recording.calls for value in figures.values()}


def test_a_line_with_more_in_it_is_not_passed_on() -> None:
    recording = Recording()
    send_to([recording])({"step": 3, "epsilon": 1.0, "mean_loss": 2.3, "units": 99, "clipped_share": 0.4})
    assert recording.calls == [(3, {"epsilon": 1.0})]


def test_tensorboard_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ["train", "digits", "--epsilon", "3", "--steps", "4", "--batch", "300", "--study"]
    assert call([*words, "--track", "tensorboard", "--out", str(tmp_path / "run")], monkeypatch) == 0
    result = EventAccumulator(str(tmp_path / "run" / "operator" / "tensorboard")).Reload()
    assert set(result.Tags()["scalars"]) == MAY_LEAVE
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert result.Scalars("test_accuracy_ema")[-1].value == pytest.approx(last["test_accuracy_ema"])
    assert result.Scalars("epsilon")[-1].step == 4


def test_one_that_does_not_begin_or_end_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "operator").write_text("in the way")
    with open_trackers(["tensorboard"], tmp_path) as there:
        assert there == []
    assert "tensorboard did not start" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("trackio") is not None, reason="trackio is there")
def test_one_that_is_not_installed_is_refused_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    with pytest.raises(ConfigError, match=r"\[trackio\]"):
        require_installed(["tensorboard", "trackio"])
    words = ["train", "digits", "--epsilon", "3", "--track", "trackio", "--out", str(tmp_path / "run")]
    assert call(words, monkeypatch) == 2
    assert not (tmp_path / "run").exists() and not own_home.exists()
