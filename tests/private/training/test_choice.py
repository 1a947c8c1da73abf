"""What `auto` chooses depends on public numbers alone, whatever else the data has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpvision.data import load
from dpvision.errors import ConfigError
from dpvision.private.statistics import release
from dpvision.private.training import choice
from dpvision.private.training.prepare import prepare_read
from dpvision.settings.release import Release
from dpvision.settings.setting import to_dict
from dpvision.settings.training import Config

SIDE = 16


def _write(path: Path, *, train: int, test: int) -> str:
    draw = np.random.default_rng(0)
    parts = {"train": train, "test": test}
    arrays = {f"{name}_images": draw.integers(0, 256, (n, SIDE, SIDE), dtype=np.uint8) for name, n in parts.items()}
    labels = {f"{name}_labels": np.arange(n) % 2 for name, n in parts.items()}
    np.savez(path, **arrays, **labels)
    return str(path)


def test_minutes_count_the_declared_number_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither more images than declared nor the test split move the choice of a model by its time."""
    seconds = {"scatter-linear-centred": 0.1, "linear-centred": 1e-9}
    monkeypatch.setattr(choice, "seconds_per_image", lambda model, *_: seconds[model])
    chosen = set()
    for train, test in ((400, 10), (401, 10), (400, 500), (3000, 500)):
        source = _write(tmp_path / f"{train}-{test}.npz", train=train, test=test)
        config = Config(recipe="auto", epsilon=3.0, n=400, minutes=0.7)
        chosen.add(to_dict(prepare_read(load(source), config, source="same").config).get("model"))
    assert chosen == {"scatter-linear-centred"}
    config = Config(recipe="auto", epsilon=3.0, n=500, minutes=0.7)
    assert prepare_read(load(source), config, source="same").config.model == "linear-centred"


def test_persons_are_counted_as_declared(tmp_path: Path) -> None:
    """With one person more, and with images of any number, the choice and its reason are the same."""
    texts = set()
    for persons, images in ((100, 2), (101, 2), (100, 5)):
        count = persons * images
        source = _write(tmp_path / f"{persons}-{images}.npz", train=count, test=10)
        with np.load(source) as arrays:
            owners = {"train_persons": np.arange(count) % persons, "test_persons": 1000 + np.arange(10)}
            np.savez(source, **arrays, **owners)
        config = Config(recipe="auto", epsilon=3.0, unit="person", n=100)
        texts.add(str(to_dict(prepare_read(load(source), config, source="same").config)))
    (text,) = texts
    assert "100 units" in text


def test_minutes_need_a_public_number_of_images(tmp_path: Path) -> None:
    source = _write(tmp_path / "a.npz", train=40, test=10)
    with pytest.raises(ConfigError, match="--minutes with --unit person"):
        choice.choose_recipe(
            Config(recipe="auto", epsilon=3.0, unit="person", n=40, minutes=1.0),
            load(source),
            40,
            choice.torch.device("cpu"),
        )


def test_a_release_with_declared_class_counts_names_no_other_number(tmp_path: Path) -> None:
    """The reason of a choice is in the card: with one image more it must be the same text."""
    texts = set()
    for train in (400, 401):
        source = _write(tmp_path / f"{train}.npz", train=train, test=10)
        settings = Release(epsilon=1.0, class_counts=(200, 200))
        texts.add(str(to_dict(release.prepare_read(load(source), settings, source="same").config)))
    (text,) = texts
    assert "400 units" in text
