"""A data set of samples that is drawn by a killed and resumed process equals one drawn without interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpvision import data
from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.public.diffusion.fit import FitSettings, fit
from dpvision.public.diffusion.model import ModelSpec
from dpvision.public.diffusion.sample import SampleSettings, sample
from dpvision.storage import safetensors

DRAW = SampleSettings(count=22, batch=4, steps=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "edm"
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8), np.arange(9) % 3
    fit(ModelSpec((3, 8, 8), ("a", "b", "c"), size="tiny"), FitSettings(batch=4), images, labels, folder, steps=2)
    return folder


def test_the_file_is_balanced_and_read_by_our_reader(model: Path, tmp_path: Path) -> None:
    out, results = tmp_path / "s.npz", []
    assert sample(model, SampleSettings(count=31, batch=7, steps=2), out, progress=lambda *at: results.append(at))
    assert results[-1] == (31, 31) and not (tmp_path / "s.npz.parts").exists()
    loaded = data.load(out)
    assert loaded.train.images.shape == (31, 8, 8, 3) and loaded.train.images.dtype == np.uint8
    assert np.bincount(loaded.train.labels).tolist() == [11, 10, 10]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["count"] == 31 and card["classes"] == ["a", "b", "c"]
    assert card["model"] == safetensors.read(model / "weights.safetensors").header["digest"]


def test_a_resumed_run_has_the_same_result(model: Path, tmp_path: Path) -> None:
    asked = iter([False, False, True])
    assert sample(model, DRAW, tmp_path / "one.npz")
    assert not sample(model, DRAW, tmp_path / "two.npz", stop=lambda: next(asked))
    assert not (tmp_path / "two.npz").exists()
    assert sample(model, DRAW, tmp_path / "two.npz")
    one, two = (np.load(tmp_path / name)["train_images"] for name in ("one.npz", "two.npz"))
    assert np.array_equal(one, two)
    assert sample(model, SampleSettings(count=22, batch=4, steps=3, seed=1), tmp_path / "other.npz")
    assert not np.array_equal(one, np.load(tmp_path / "other.npz")["train_images"])


def test_killed_between_the_card_and_the_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, write = tmp_path / "s.npz", files.write

    def dies(path: Path, data: bytes | str, **how: int) -> None:
        if path == out:
            raise KeyboardInterrupt
        write(path, data, **how)

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(files, "write", dies)
        sample(model, DRAW, out)
    assert out.with_suffix(".json").exists() and not out.exists()
    assert sample(model, DRAW, out) and not out.with_name("s.npz.parts").exists()
    other = tmp_path / "other.npz"
    other.with_suffix(".json").write_text("of somebody else")
    with pytest.raises(ConfigError, match="already exists"):
        sample(model, DRAW, other)


def test_killed_in_the_middle(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "k.npz"
    command = [sys.executable, "-m", "dpvision", "synth", "sample", str(model), "--out", str(out)]
    command += ["--count", "4000", "--batch", "4", "--steps", "3"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment)
    while len(list(tmp_path.glob("k.npz.parts/*.safetensors"))) < 3 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not out.exists()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("k.npz.parts/*.safetensors")}
    asked = iter([False] * (len(kept) + 2) + [True])
    draw = SampleSettings(count=4000, batch=4, steps=3)
    assert not sample(model, draw, out, stop=lambda: next(asked))
    assert len(list(tmp_path.glob("k.npz.parts/*.safetensors"))) == len(kept) + 2
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


def test_parts_of_another_draw_are_not_mixed_in(model: Path, tmp_path: Path) -> None:
    asked = iter([False, True])
    assert not sample(model, DRAW, tmp_path / "s.npz", stop=lambda: next(asked))
    with pytest.raises(DataError, match=r"other settings.*Fix"):
        sample(model, SampleSettings(count=22, batch=4, steps=3, seed=1), tmp_path / "s.npz")
    part = tmp_path / "s.npz.parts" / "000000.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(DataError, match="000000"):
        sample(model, DRAW, tmp_path / "s.npz")
    assert not (tmp_path / "s.npz").exists()


def test_invalid_settings_of_sampling(model: Path, tmp_path: Path) -> None:
    (tmp_path / "there.npz").write_bytes(b"")
    for out, message in (("s.zip", "npz"), ("there.npz", "already exists")):
        with pytest.raises(ConfigError, match=message):
            sample(model, DRAW, tmp_path / out)
    for wrong in ({"count": 0}, {"batch": 0}, {"sampler": "magic"}, {"seed": -1}):
        with pytest.raises(ConfigError):
            SampleSettings(**wrong)
    with pytest.raises(DataError, match="weights"):
        sample(tmp_path, DRAW, tmp_path / "s.npz")
