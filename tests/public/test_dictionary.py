"""A dictionary of random images is a function of its settings, in closed form, and private training finds it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpvision.errors import ConfigError
from dpvision.models import Featured, build, load_public
from dpvision.models.patches import Bank, Patches
from dpvision.public.dictionary import DictionarySettings, compute, compute_and_write, draw_images, load_or_compute

SETTINGS = DictionarySettings("patches-256", (3, 16, 16), process="dead-leaves-squares", images=60, patches=3000)


@pytest.fixture(scope="module")
def model() -> Featured:
    return compute(SETTINGS)


def _prefix(model: Featured) -> Patches:
    assert isinstance(model.prefix, Patches)
    return model.prefix


def _images(settings: DictionarySettings, indices: range) -> torch.Tensor:
    return torch.cat([part for _, part in draw_images(settings, indices)])


def _bank(model: Featured) -> Bank:
    (bank,) = _prefix(model).banks
    assert isinstance(bank, Bank)
    return bank


def _all_patches(maps: torch.Tensor, bank: Bank) -> torch.Tensor:
    return torch.nn.functional.unfold(maps, bank.patch).permute(0, 2, 1).flatten(0, 1)


def test_patches_of_random_images_become_white(model: Featured) -> None:
    """In directions with variance well above the floor, the whitened variance is 1 or a little less."""
    white = _all_patches(_images(SETTINGS, range(60)), _bank(model)) @ _bank(model).whitening.T
    covariance = white.T @ white / len(white)
    strongest = covariance.diagonal()[-20:]
    assert bool(((strongest > 0.7) & (strongest < 1.4)).all())
    assert (covariance - covariance.diagonal().diag()).abs().max() < 0.3
    assert covariance.diagonal().max() < 1.6


def test_filters_do_not_see_the_mean_of_a_patch(model: Featured) -> None:
    for filters in (_bank(model).whitening, _bank(model).dictionary):
        assert filters.sum(1).abs().max() < 1e-3


def test_the_mean_is_that_of_other_random_images(model: Featured) -> None:
    patches = _prefix(model)
    others = _images(SETTINGS, range(60, 90))
    assert torch.allclose(patches.bank_features(others)[0].mean(0), patches.mean, atol=1e-5)
    assert not torch.allclose(patches.bank_features(_images(SETTINGS, range(30)))[0].mean(0), patches.mean, atol=1e-5)


def test_a_function_of_its_settings_alone(model: Featured) -> None:
    again, other = compute(SETTINGS), compute(replace(SETTINGS, seed=1))
    same = [torch.equal(t, again.state_dict()[n]) for n, t in model.state_dict().items()]
    assert all(same)
    assert not torch.equal(_bank(model).dictionary, _bank(other).dictionary)
    names = {SETTINGS.name, replace(SETTINGS, seed=1).name, replace(SETTINGS, floor=0.2).name}
    assert len(names) == 3


def test_banks_count_alike(model: Featured) -> None:
    others = _images(SETTINGS, range(60, 90))
    for made in (model, compute(replace(SETTINGS, model="patches-scales", patches=6000))):
        patches = _prefix(made)
        sizes = [18 * len(bank.dictionary) for bank in patches.banks if isinstance(bank, Bank)]
        rows = ((torch.cat(patches.bank_features(others), 1) - patches.mean) * patches.scale).split(sizes, dim=1)
        assert all(part.norm(dim=1).mean().item() == pytest.approx(1, rel=1e-4) for part in rows)


def test_a_second_layer_is_white_as_well() -> None:
    settings = replace(SETTINGS, model="patches-two-layers", patches=4000)
    patches = _prefix(compute(settings))
    assert patches.first is not None and patches.second is not None
    maps = patches.first.maps(_images(settings, range(60)))
    white = (_all_patches(maps, patches.second) - patches.second.offset) @ patches.second.whitening.T
    assert patches.second.whitening.shape == (256, 128 * 9) and white.mean(0).abs().max() < 0.2
    strongest = (white.T @ white / len(white)).diagonal()[-20:]
    assert bool(((strongest > 0.6) & (strongest < 1.5)).all())


def test_gray_images_and_others_that_are_not_square() -> None:
    settings = replace(SETTINGS, shape=(1, 14, 16))
    assert _images(settings, range(3)).shape == (3, 1, 14, 16)
    assert compute(settings)(torch.zeros(2, 1, 14, 16)).shape == (2, 2)


def test_it_is_computed_once_and_loads(model: Featured, tmp_path: Path) -> None:
    path = load_or_compute(SETTINGS, tmp_path)
    before = path.stat().st_mtime_ns
    assert load_or_compute(SETTINGS, tmp_path) == path and path.stat().st_mtime_ns == before
    result = build("patches-256", (3, 16, 16), classes=7, seed=3)
    digest = load_public(result, path)
    assert isinstance(result, Featured) and torch.equal(_bank(result).dictionary, _bank(model).dictionary)
    card = json.loads((path.parent / "card.json").read_text())
    assert card["digest"] == digest == hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()
    assert (card["process"], card["seed"], card["images_seen"]) == ("dead-leaves-squares", 0, 90)


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only patch models"):
        compute_and_write(replace(SETTINGS, model="linear"), tmp_path)
    with pytest.raises(ConfigError, match="a bank of 256 patches cannot be filled with"):
        compute(replace(SETTINGS, patches=450))
    with pytest.raises(ConfigError, match="a dictionary needs"):
        replace(SETTINGS, floor=0.0)
    assert not list(tmp_path.iterdir())
