"""Views, features and public inputs inside a training run: still one clipped contribution for each unit, and the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load

from dpvision.data import Split
from dpvision.errors import ConfigError, DataError, LedgerMismatch
from dpvision.models import build
from dpvision.models.inputs import Inputs
from dpvision.private.engine import ClippedSum
from dpvision.private.features import cache
from dpvision.private.training import train
from dpvision.private.training.network import each_loss
from dpvision.private.training.private_sum import fetcher
from dpvision.released.report import write
from dpvision.settings.recipes import RECIPES, recipe
from dpvision.settings.training import Config
from dpvision.views import UnitRandom, Views

CLASSES = 4
SETTINGS = Config(epsilon=3.0, batch=20, steps=6, model="small-cnn", checkpoint_every=2, budget=1e4)
MIXED: dict[str, dict[str, Any]] = {
    "self-aug": {"augment": ("crop", "flip"), "k_base": 3},
    "dp-mix-self": {"augment": ("crop", "flip"), "k_base": 3, "k_self": 2},
    "cutmix": {"augment": ("crop", "flip"), "k_base": 3, "k_self": 2, "mix": "cutmix"},
    "dp-mix-diff": {"augment": ("crop", "flip"), "k_base": 2, "k_self": 2, "k_diff": 2},
    "pure-dp-mix-diff": {"augment": ("crop", "flip"), "k_base": 0, "k_self": 2, "k_diff": 3},
}


def _records(images: int, *, seed: int = 0, side: int = 8) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % CLASSES
    pixels = rng.integers(0, 256, (images, side, side, 1), dtype=np.uint8)
    return {"images": pixels, "labels": labels}


def _write(path: Path, images: int = 80, *, seed: int = 0, side: int = 8, labels: NDArray[Any] | None = None) -> str:
    made = _records(images, seed=seed, side=side)
    made["labels"] = made["labels"] if labels is None else labels
    test = _records(20, seed=seed + 1000, side=side)
    np.savez(
        path,
        train_images=made["images"],
        train_labels=made["labels"],
        test_images=test["images"],
        test_labels=test["labels"],
    )
    return str(path)


def _weights(prepared: train.Prepared, folder: Path, *, stop_after: int | None = None) -> bytes:
    """Train with a fixed key, with one stop in between if requested."""
    run = train.begin(prepared, folder, test_key="word")
    if stop_after is not None:
        asked = iter([False] * stop_after + [True])
        train.proceed(run, prepared, stop=lambda: next(asked))
        prepared = train.reopen(run)
    assert train.proceed(run, prepared).complete
    return run.weights.read_bytes()


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "home"))
    return _write(tmp_path / "data.npz"), _write(tmp_path / "public.npz", 40, seed=7)


def _config(name: str, public: str) -> Config:
    return replace(SETTINGS, **MIXED[name], synthetic=public if MIXED[name].get("k_diff") else None)


@pytest.mark.parametrize("name", MIXED)
def test_a_stopped_run_with_views_gives_the_same_bits(name: str, sources: tuple[str, str], tmp_path: Path) -> None:
    prepared = train.prepare(sources[0], _config(name, sources[1]))
    straight = _weights(prepared, tmp_path / "straight")
    assert straight == _weights(prepared, tmp_path / "stopped", stop_after=3)


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("unit", ["image", "person"])
def test_one_unit_moves_the_sum_by_at_most_the_bound(name: str, unit: str) -> None:
    """Neighbours with the same seed: a unit replaced by anything, or left out."""
    records, public = _records(24), _records(16, seed=5)
    persons = np.arange(24) // 3 if unit == "person" else None
    units = 8 if unit == "person" else 24
    known = torch.from_numpy(public["images"]).permute(0, 3, 1, 2), torch.from_numpy(public["labels"])
    k = MIXED[name]
    views = Views(
        k["augment"],
        base=k["k_base"],
        self_mix=k.get("k_self", 0),
        diff=k.get("k_diff", 0),
        mix=k.get("mix", "mixup"),
        classes=CLASSES,
        public=known if k.get("k_diff") else None,
    )
    model = build("small-cnn", (1, 8, 8), classes=CLASSES, seed=0)
    engine = ClippedSum(model, each_loss, clip=0.5)

    def total(images: NDArray[Any], labels: NDArray[Any], drawn: NDArray[np.int64]) -> torch.Tensor:
        split = Split(images, labels, persons)
        return engine.sum([fetcher(split, unit, Inputs(split), views)(drawn, 12345)])

    everyone = np.arange(units)
    before = total(records["images"], records["labels"], everyone)
    third = np.arange(24)[6:9] if unit == "person" else np.array([2])
    for pixels, label in ((255, 1), (0, 3), (77, 0)):
        images, labels = records["images"].copy(), records["labels"].copy()
        images[third], labels[third] = pixels, label
        moved = float((total(images, labels, everyone) - before).norm())
        assert moved <= 2 * 0.5 * (1 + 1e-4)
        assert (moved > 0) == (name != "pure-dp-mix-diff"), "the unit takes part, unless no pixel of it enters"
    without = total(records["images"], records["labels"], np.delete(everyone, 2))
    assert 0 < float((without - before).norm()) <= 0.5 * (1 + 1e-4)


def test_the_mixing_that_was_asked_for_is_trained_on(sources: tuple[str, str]) -> None:
    """A pixel of cutmix is one of some view; one of mixup lies between two."""
    images, labels = torch.rand(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64)
    for name, whole in (("cutmix", True), ("dp-mix-self", False)):
        views = train.prepare(sources[0], _config(name, sources[1])).views()
        assert views is not None
        made, _ = views(images, labels, UnitRandom.grouped(3, np.arange(6), [1] * 6))
        of_image = made.view(6, views.count, -1)
        of_some_view = (of_image[:, 3:, None] == of_image[:, None, :3]).any(2)
        assert bool(of_some_view.all()) == whole, name


def test_features_are_computed_once_and_give_the_same_classifier(
    sources: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inputs, "digest_features", lambda self: "any")  # or the noise would differ
    prepared = train.prepare(sources[0], replace(SETTINGS, model="small-cnn", part="head"))
    _weights(prepared, tmp_path / "first")
    kept = list((tmp_path / "home" / "features").glob("*.npy"))
    assert len(kept) == 2 and all(path.stat().st_mode & 0o077 == 0 for path in kept), "train and test, for the owner"
    times = [path.stat().st_mtime_ns for path in kept]
    with_features = _weights(prepared, tmp_path / "second")
    assert times == [path.stat().st_mtime_ns for path in kept], "nothing is computed twice"
    monkeypatch.setattr("dpvision.private.training.network.Network.split", lambda self, model: None)
    without = _weights(prepared, tmp_path / "third")
    a, b = (load(data) for data in (with_features, without))
    assert a.keys() == b.keys() and all(torch.allclose(a[n], b[n], rtol=1e-3, atol=1e-5) for n in a)


def test_features_are_kept_by_the_weights_that_made_them(sources: tuple[str, str]) -> None:
    """Another initial head does not matter; other weights before it do."""

    def file(**changes: Any) -> Path:
        prepared = train.prepare(sources[0], replace(SETTINGS, **changes))
        parts = prepared.network.split(prepared.network.build())
        assert parts is not None
        return cache.path_of(prepared.network.features_key(prepared.data.train, parts))

    assert file(model="scatter-linear", seed=0) == file(model="scatter-linear", seed=1)
    assert file(part="head", seed=0) == file(part="head", seed=0) != file(part="head", seed=1)


def test_only_the_head_is_trained(sources: tuple[str, str], tmp_path: Path) -> None:
    prepared = train.prepare(sources[0], replace(SETTINGS, part="head"))
    after = load(_weights(prepared, tmp_path / "run"))
    before = prepared.network.build().state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    head = [name for name in before if before[name].shape[:1] == (CLASSES,)]
    assert moved == set(head)


def test_public_inputs_that_are_not_public_or_do_not_fit(sources: tuple[str, str], tmp_path: Path) -> None:
    data, public = sources
    mixed = _config("dp-mix-diff", public)
    with pytest.raises(ConfigError, match="also in the private data"):
        train.prepare(data, replace(mixed, synthetic=data))
    with pytest.raises(ConfigError, match="--synthetic"):
        train.prepare(data, replace(mixed, synthetic=None))
    with pytest.raises(DataError):
        train.prepare(data, replace(mixed, synthetic=_write(tmp_path / "large.npz", 40, seed=3, side=16)))
    with pytest.raises(DataError):
        train.prepare(
            data, replace(mixed, synthetic=_write(tmp_path / "few.npz", 40, seed=3, labels=np.arange(40) % 3))
        )
    with pytest.raises(ConfigError, match="at least one view"):
        replace(SETTINGS, k_base=0)
    assert not (tmp_path / "home" / "ledgers").exists(), "nothing is charged"


def test_what_may_be_released_does_not_show_the_operators_folders(sources: tuple[str, str], tmp_path: Path) -> None:
    prepared = train.prepare(sources[0], _config("dp-mix-diff", sources[1]))
    run = train.begin(prepared, tmp_path / "run", test_key="word")
    assert train.proceed(run, prepared).complete
    write(run, None)
    for path in run.folder.iterdir():
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes(), path.name
    assert run.config().synthetic == "public.npz" and run.config().hash() == prepared.config.hash()


def test_other_public_images_are_another_run(sources: tuple[str, str], tmp_path: Path) -> None:
    prepared = train.prepare(sources[0], _config("dp-mix-diff", sources[1]))
    run = train.begin(prepared, tmp_path / "run", test_key="word")
    train.proceed(run, prepared, stop=lambda: True)
    _write(Path(sources[1]), 40, seed=8)
    with pytest.raises(LedgerMismatch, match="public weights or images"):
        train.reopen(run)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipes_are_complete_and_say_what_to_expect(name: str) -> None:
    config, result = recipe(name), RECIPES[name].__doc__ or ""
    assert config.recipe == name
    for word in ("Paper:", "Command: dpvision train", "Hardware and minutes:", "Expect"):
        assert word in result, f"{name} does not say {word}"
    assert f"--recipe {name}" in result or name == "auto"
