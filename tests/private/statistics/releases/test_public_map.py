"""The map before a release: of random images alone, made once, and checked when it is read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpvision.errors import DataError
from dpvision.private.features import public_map
from dpvision.private.features.encoders import load_encoder
from dpvision.private.features.public_map import load_or_compute_whitening

SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_map, "IMAGES", 100)


def test_it_is_made_once_and_is_the_same_everywhere(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[tuple[int, int]] = []
    pixels = load_encoder("pixels", SHAPE)
    first = load_or_compute_whitening(pixels, rank=10, progress=lambda *done: results.append(done))
    assert first.matrix.shape == (64, 10) and results[-1] == (100, 100)
    (kept,) = (own_home / "priors").glob("map-*.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(public_map, "_features_of_random_images", lambda *_: pytest.fail("computed again"))
        again = load_or_compute_whitening(pixels, rank=10)
    assert np.array_equal(first.matrix, again.matrix) and np.array_equal(first.mean, again.mean)
    before = kept.read_bytes()
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "elsewhere"))
    elsewhere = load_or_compute_whitening(pixels, rank=10)
    assert np.array_equal(first.matrix, elsewhere.matrix), "a function of its settings"
    (other,) = (tmp_path / "elsewhere" / "priors").glob("map-*.safetensors")
    assert other.name == kept.name and other.read_bytes() == before


def test_other_settings_have_other_maps(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = load_encoder("pixels", SHAPE)
    assert load_or_compute_whitening(pixels, rank=10).width == 10
    assert load_or_compute_whitening(pixels, rank=1000).width == 64, "as many as there are"
    load_or_compute_whitening(load_encoder("linear", SHAPE), rank=10)
    monkeypatch.setattr(public_map, "SEED", 2)
    load_or_compute_whitening(pixels, rank=10)
    assert len(list((own_home / "priors").glob("map-*.safetensors"))) == 4


def test_random_images_are_alike_in_all_directions_after_it() -> None:
    pixels = load_encoder("pixels", SHAPE)
    white = load_or_compute_whitening(pixels, rank=5)
    rows = white.apply(public_map._features_of_random_images(pixels, lambda *_: None).astype(np.float64))
    assert np.allclose(rows.mean(axis=0), 0, atol=1e-6)
    covariance = np.cov(rows, rowvar=False, bias=True)
    assert np.allclose(covariance, np.diag(np.diag(covariance)), atol=1e-6)
    assert np.diag(covariance).min() > 0.5 and np.diag(covariance).max() <= 1


def test_a_damaged_or_swapped_map_is_refused(own_home: Path) -> None:
    pixels = load_encoder("pixels", SHAPE)
    load_or_compute_whitening(pixels, rank=10)
    (kept,) = (own_home / "priors").glob("map-*.safetensors")
    good = kept.read_bytes()
    kept.write_bytes(good[:-100])
    with pytest.raises(DataError, match="computed again from random images"):
        load_or_compute_whitening(pixels, rank=10)
    kept.unlink()
    load_or_compute_whitening(load_encoder("linear", SHAPE), rank=10)
    (other,) = (own_home / "priors").glob("map-*.safetensors")
    other.rename(kept)
    with pytest.raises(DataError, match="does not contain the map"):
        load_or_compute_whitening(pixels, rank=10)
    kept.unlink()
    load_or_compute_whitening(pixels, rank=10)
    assert kept.read_bytes() == good
