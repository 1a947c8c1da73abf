"""Encoders, releases and estimators on an accelerator: the CPU's features to rounding, and names of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpvision.data import Dataset, Split
from dpvision.errors import UnsafeLayer
from dpvision.estimators import PrivateRelease
from dpvision.models import build
from dpvision.models.featured import PIECE_ON_DEVICE, Featured, device_of, require_head_last, split_head
from dpvision.private.features import cache
from dpvision.private.features.encoders import cache_key, extract, load_encoder
from dpvision.private.features.public_map import features_of, load_or_compute_whitening
from dpvision.private.statistics.release import Encoded, make, prepare_read
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import Release, with_changes
from tests.private.features.rank_worker import records

pytestmark = pytest.mark.parametrize("device", ["standin"], indirect=True)

SHAPE = (1, 8, 8)
NAMES = ("pixels", "scattering", "scatter-linear")
CPU = torch.device("cpu")


def data(count: int = 120) -> Dataset:
    images = np.random.default_rng(3).integers(0, 256, (count, 8, 8, 1), np.uint8)
    train, test = (Split(images[part], np.arange(len(images[part])) % 3, None) for part in (slice(20, None), slice(20)))
    return Dataset("arrays", ("a", "b", "c"), train, None, test, ())


def settings(**changes: Any) -> Release:
    return with_changes(release_recipe("moments"), {"epsilon": 1.0, "n": 100, "rows": 50, "rank": 10, **changes})


@pytest.mark.parametrize("name", NAMES)
def test_features_are_those_of_the_cpu(name: str, device: torch.device) -> None:
    split = records(PIECE_ON_DEVICE + 40)
    here, there = load_encoder(name, SHAPE), load_encoder(name, SHAPE, device=device)
    if name != "pixels":  # which has no tables to be moved
        assert device_of(there) == device
        assert cache_key(here, split) != cache_key(there, split), "cached apart"
    np.testing.assert_allclose(extract(here, split), extract(there, split), rtol=1e-5, atol=1e-5)
    assert isinstance(extract(there, split), np.memmap)


def test_a_model_with_weights_is_computed_there(device: torch.device) -> None:
    for name in ("patches-256", "vit-tiny", "wrn-10-1"):
        shape = (3, 16, 16)
        model = build(name, shape, classes=4, seed=1)
        images = torch.rand(20, *shape) * 2 - 1
        parts = model if isinstance(model, Featured) else split_head(model)
        here = parts.features(images)
        model.to(device)
        there = parts.features(images.to(device))
        assert there.device == device
        torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-5)
        if not isinstance(model, Featured):
            require_head_last(model, parts, shape)


def test_an_image_has_the_same_bits_in_any_batch(device: torch.device) -> None:
    encoder = load_encoder("scattering", SHAPE, device=device)
    cache.require_separate(encoder, SHAPE)
    images = (torch.rand(PIECE_ON_DEVICE + 3, *SHAPE) * 2 - 1).to(device)
    together = encoder.features(images)
    for part in (slice(0, 1), slice(7, 9), slice(PIECE_ON_DEVICE - 1, None)):
        assert torch.equal(encoder.features(images[part]), together[part])


def test_an_encoder_that_mixes_images_is_refused_there(device: torch.device) -> None:
    class Mixing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) + x.sum()

    prefix = nn.Sequential(Mixing(), nn.Linear(64, 4))
    with pytest.raises(UnsafeLayer, match="mixes the images"):
        cache.require_separate(Featured(prefix, nn.Identity(), piece=8).to(device), SHAPE)


def test_the_public_map_and_the_features_of_a_release(device: torch.device, tmp_path: Path) -> None:
    """A release with features of the device: other names than on the CPU, the same figures to rounding."""
    here, there = (load_encoder("scatter-linear", SHAPE, device=place) for place in (CPU, device))
    maps = [load_or_compute_whitening(encoder, rank=10) for encoder in (here, there)]
    np.testing.assert_allclose(abs(maps[0].matrix), abs(maps[1].matrix), rtol=1e-2, atol=1e-3)
    prepared = prepare_read(data(), settings(encoder="scatter-linear"), source="arrays")
    encoded = {place.type: Encoded(prepared, device=place) for place in (CPU, device)}
    np.testing.assert_allclose(encoded["cpu"].rows.x, encoded[device.type].rows.x, atol=1e-4)
    card = make(prepared, tmp_path / "out", encoded=encoded[device.type], test_key="k")
    assert card["accuracy"] and json.loads((tmp_path / "out" / "card.json").read_text())["files"]
    np.savez(tmp_path / "new.npz", train_images=data().test.images, train_labels=data().test.labels)
    rows = [
        features_of(tmp_path / "out", str(tmp_path / "new.npz"), split="train", classes=["a", "b", "c"], device=place)
        for place in (CPU, device)
    ]
    np.testing.assert_allclose(rows[0]["features"], rows[1]["features"], atol=1e-4)


def test_a_release_of_an_estimator(device: torch.device) -> None:
    x, y = data(200).train.images, data(200).train.labels
    given = {"epsilon": 2.0, "classes": 3, "n": 180, "encoder": "scatter-linear", "rank": 10, "rows": 60}
    release = PrivateRelease(**given, device=str(device)).fit(x, y)
    assert device_of(release.encoder_) == device
    rows = release.transform(x[:5])
    release.encoder_.to("cpu")
    np.testing.assert_allclose(rows, release.transform(x[:5]), atol=1e-4)
