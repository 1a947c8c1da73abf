"""Trainings that public gradients assist: same event, same bits after a stop, and public parts that cannot serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.errors import ConfigError, DataError
from dpvision.private.training import train
from dpvision.settings.recipes import recipe
from dpvision.settings.training import Config
from dpvision.storage.home import home

METHODS: dict[str, dict[str, Any]] = {
    "weights": {"augment": ("crop", "flip"), "k_base": 3},
    "dope": {"augment": ("flip",), "k_base": 2},
    "mirror": {},
    "adadps": {},
}
SETTINGS = Config(epsilon=3.0, batch=20, steps=7, model="small-cnn", checkpoint_every=2, budget=1e4, public_batch=8)


def _write(path: Path, images: int, *, seed: int, classes: int = 4, test: bool = False) -> str:
    rng = np.random.default_rng(seed)
    made = {"train_images": rng.integers(0, 256, (images, 8, 8, 1), dtype=np.uint8)}
    made["train_labels"] = np.arange(images) % classes
    if test:
        made["test_images"] = rng.integers(0, 256, (8, 8, 8, 1), dtype=np.uint8)
        made["test_labels"] = np.arange(8) % classes
    np.savez(path, **made)
    return str(path)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "home"))
    return _write(tmp_path / "data.npz", 80, seed=0, test=True), _write(tmp_path / "public.npz", 40, seed=7)


def _config(method: str, public: str) -> Config:
    return replace(SETTINGS, assist=method, synthetic=public, **METHODS[method])


def _trained(prepared: train.Prepared, folder: Path, *, stop_after: int | None = None) -> bytes:
    run = train.begin(prepared, folder, test_key="word")
    if stop_after is not None:
        asked = iter([False] * stop_after + [True])
        train.proceed(run, prepared, stop=lambda: next(asked))
        prepared = train.reopen(run)
    assert train.proceed(run, prepared).complete
    return run.weights.read_bytes()


@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_training_gives_the_same_bits(method: str, sources: tuple[str, str], tmp_path: Path) -> None:
    """AdaDPS keeps its second moment over the stop: 80 / 20 = 4 steps make a pass, and it stops after 3 and 5."""
    prepared = train.prepare(sources[0], _config(method, sources[1]))
    straight = _trained(prepared, tmp_path / "straight")
    for after in (3, 5):
        assert straight == _trained(prepared, tmp_path / f"stopped-{after}", stop_after=after)


@pytest.mark.parametrize("method", METHODS)
def test_it_is_charged_as_without_and_learns_otherwise(method: str, sources: tuple[str, str], tmp_path: Path) -> None:
    config = _config(method, sources[1])
    assisted = train.prepare(sources[0], config)
    alone = train.prepare(sources[0], replace(config, assist="none", synthetic=None))
    assert assisted.event() == alone.event() and assisted.config.sigma == alone.config.sigma
    assert _trained(assisted, tmp_path / "assisted") != _trained(alone, tmp_path / "alone")


@pytest.mark.parametrize("method", METHODS)
def test_every_dial_reaches_the_training(method: str, sources: tuple[str, str], tmp_path: Path) -> None:
    dials: dict[str, dict[str, Any]] = {
        "weights": {"radius": 0.5, "adaptive": True},
        "dope": {"public_batch": 4},
        "mirror": {"horizon": 3.0},
        "adadps": {"floor": 10.0},
    }
    config = _config(method, sources[1])
    usual = _trained(train.prepare(sources[0], config), tmp_path / "usual")
    for dial, value in dials[method].items():
        changed = train.prepare(sources[0], replace(config, **{dial: value}))
        assert changed.config.hash() != config.complete(80).hash()
        assert _trained(changed, tmp_path / dial) != usual


def test_a_public_part_that_can_not_serve_is_refused_before_anything_is_charged(
    sources: tuple[str, str], tmp_path: Path
) -> None:
    private, _ = sources
    few = _write(tmp_path / "few.npz", 40, seed=9, classes=3)
    with pytest.raises(DataError, match=r"few\.npz: has no image of class 3"):
        train.prepare(private, _config("mirror", few))
    np.savez(tmp_path / "none.npz", train_images=np.zeros((0, 8, 8, 1), np.uint8), train_labels=np.zeros(0, np.int64))
    with pytest.raises(DataError, match=r"none\.npz"):
        train.prepare(private, _config("dope", str(tmp_path / "none.npz")))
    mine, theirs = np.load(private), np.load(_write(tmp_path / "other.npz", 40, seed=11))
    images = np.concatenate([theirs["train_images"], mine["train_images"][5:6]])
    labels = np.concatenate([theirs["train_labels"], mine["train_labels"][5:6]])
    np.savez(tmp_path / "overlap.npz", train_images=images, train_labels=labels)
    with pytest.raises(ConfigError, match=r"overlap\.npz: 1 of its images"):
        train.prepare(private, _config("adadps", str(tmp_path / "overlap.npz")))
    assert not (home() / "ledgers").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"assist": "dope"}, "--public"),
        ({"assist": "weights", "synthetic": "x.npz", "unit": "person"}, "persons"),
        ({"assist": "mirror", "synthetic": "x.npz", "probe_steps": 3}, "two phases"),
        ({"assist": "adadps", "synthetic": "x.npz", "part": "centred-head"}, "two phases"),
    ],
)
def test_settings_that_can_not_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(Config(), **settings).complete(100)
    with pytest.raises(ConfigError, match="assist is 'dop'"):
        Config(assist="dop")


def test_a_training_that_diverges_says_so(sources: tuple[str, str], tmp_path: Path) -> None:
    prepared = train.prepare(sources[0], replace(_config("dope", sources[1]), lr=1e30, steps=7))
    run = train.begin(prepared, tmp_path / "run", test_key="word")
    with pytest.raises(ConfigError, match="smaller --lr"):
        train.proceed(run, prepared)


def test_the_recipes_are_the_papers_tables() -> None:
    at_two = {name: recipe(name, epsilon=2.0) for name in ("cold", "warm", "warmsyn", "extended")}
    assert all(c.batch == 4096 and c.k_base == 16 and c.model == "wrn-16-4" for c in at_two.values())
    assert at_two["cold"].steps == 1125 and at_two["warm"].steps == at_two["extended"].steps == 352
    assert at_two["warm"].lr == 0.5 and recipe("warm", epsilon=6.0).lr == 2.0
    assert (at_two["extended"].assist, at_two["extended"].radius) == ("weights", 0.1)
    assert recipe("extended", epsilon=1.0).radius == 0.05
    assert recipe("extended-cifar100", epsilon=10.0).radius == 0.05
    for name in ("warm", "warmsyn-small", "extended-cifar100"):
        with pytest.raises(ConfigError, match="dpvision warm"):
            recipe(name).complete(48_000)
