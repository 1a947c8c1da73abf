"""What a card must say, and what cannot be changed after the fact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpvision.errors import ConfigError
from dpvision.private.training import train
from dpvision.released.report import card
from dpvision.settings.training import Config
from dpvision.storage.home import ledger_of
from tests.system.runs.commands import run, write_data

SETTINGS = Config(epsilon=3.0, batch=20, steps=6, model="linear", budget=1e4, checkpoint_every=1)


def test_which_weights_are_released_can_not_change(tmp_path: Path) -> None:
    prepared = train.prepare(str(write_data(tmp_path / "data.npz")), SETTINGS)
    folder = train.begin(prepared, tmp_path / "run")
    asked = iter([False] * 3 + [True])
    train.proceed(folder, prepared, stop=lambda: next(asked))
    with pytest.raises(ConfigError, match="release cannot change"):
        train.reopen(folder, {"release": "last"})


def test_settings_can_not_change_when_all_steps_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the last step and the release, with both accuracies on disk."""
    prepared = train.prepare(str(write_data(tmp_path / "data.npz")), SETTINGS)
    folder = train.begin(prepared, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(train, "_release", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train.proceed(folder, prepared)
    with pytest.raises(ConfigError, match="all 6 steps are done"):
        train.proceed(folder, train.reopen(folder, {"ema": 0.5}))
    assert train.proceed(folder, train.reopen(folder)).complete
    assert len(ledger_of(prepared.fingerprint).account().charges) == 1


def test_a_card_tells_that_settings_changed_on_the_way(tmp_path: Path) -> None:
    prepared = train.prepare(str(write_data(tmp_path / "data.npz")), SETTINGS)
    results = {}
    for name, changes in (("straight", {}), ("changed", {"lr": 1.0})):
        folder = train.begin(prepared, tmp_path / name)
        asked = iter([False] * 3 + [True])
        train.proceed(folder, prepared, stop=lambda asked=asked: next(asked))
        assert train.proceed(folder, train.reopen(folder, changes)).complete
        results[name] = " ".join(card(folder, ledger_of(prepared.fingerprint).account())["not_covered"])
    assert "changed during the training (changes: 1)" in results["changed"]
    assert "changed during" not in results["straight"]
    for text in results.values():
        assert "for anyone in both splits, these figures are not covered" in text and "every class has an image" in text


def test_a_model_of_grey_images_takes_colour_photos(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / "f" / split / name).mkdir(parents=True)
            for number in range(8):
                pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "f" / split / name / f"{number}.png")
    settings = ("--channels", 1, "--size", 8, "--batch", 4, "--steps", 3, "--epsilon", 50)
    code, _, output = run("train", "f", *settings, "--out", "run", home=tmp_path / "home", cwd=tmp_path)
    assert code == 0, output
    for words in (("eval", "run", "f"), ("predict", "run", "f/test/a")):
        code, _, output = run(*words, home=tmp_path / "home", cwd=tmp_path)
        assert code == 0, output


def test_public_inputs_of_a_settings_file_are_meant_from_its_folder(tmp_path: Path) -> None:
    write_data(tmp_path / "data.npz")
    (tmp_path / "settings").mkdir()
    write_data(tmp_path / "settings" / "public.npz", seed=1)
    text = 'synthetic = "public.npz"\nk_diff = 1\nbatch = 20\nsteps = 4\nepsilon = 50.0\nmodel = "linear"\n'
    (tmp_path / "settings" / "mine.toml").write_text(text)
    words = ("train", "data.npz", "--config", "settings/mine.toml", "--dry-run")
    code, _, output = run(*words, home=tmp_path / "home", cwd=tmp_path)
    assert code == 0, output


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_seeds_have_a_range(seed: int) -> None:
    with pytest.raises(ConfigError, match="seed is"):
        Config(seed=seed)
