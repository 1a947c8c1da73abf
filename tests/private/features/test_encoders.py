"""Encoders by name: public functions of one image, named by all that their rows depend on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dpvision.errors import ConfigError, DataError, UnsafeLayer
from dpvision.models import build, digest_file, split_head
from dpvision.models.efficientnet_lite import Convolution, efficientnet_lite0
from dpvision.models.featured import require_head_last
from dpvision.models.inputs import to_tensor
from dpvision.models.scattering import Scattering
from dpvision.private.features import cache, encoders
from dpvision.private.features.encoders import Encoder, cache_key, extract, load_encoder
from dpvision.public import dictionary
from dpvision.storage import safetensors
from tests.private.features.rank_worker import records

GREY, COLOUR = (1, 8, 8), (3, 8, 8)


def _weights(path: Path, name: str, *, seed: int = 5, shape: tuple[int, int, int] = GREY) -> Path:
    save_file(build(name, shape, classes=10, seed=seed).state_dict(), path)
    return path


def test_pixels_are_the_pixels_from_0_to_1() -> None:
    split = records(20)
    rows = extract(load_encoder("pixels", GREY), split)
    assert isinstance(rows, np.memmap) and rows.dtype == np.float32
    np.testing.assert_allclose(rows, split.images.reshape(20, -1) / 255, atol=1e-6)
    assert "[0, 1]" in load_encoder("pixels", GREY).origin
    np.testing.assert_allclose(extract(load_encoder("linear", GREY), split), rows * 2 - 1, atol=1e-6)


def test_scattering_is_the_transform_in_a_row() -> None:
    split, scattering = records(5), load_encoder("scattering", GREY)
    whole = Scattering(GREY)(to_tensor(split.images)).flatten(1)
    np.testing.assert_array_equal(extract(scattering, split), whole.numpy())
    assert scattering.width == whole.shape[1] and scattering.weights is None and "nothing" in scattering.origin
    assert load_encoder("scatter-linear", GREY).width == whole.shape[1]


def test_patches_with_a_dictionary_that_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default one for the images' shape, as a training run has it; here a small one stands in."""
    asked: list[dictionary.DictionarySettings] = []
    shape = (1, 12, 12)

    def kept(settings: dictionary.DictionarySettings, *_: object) -> Path:
        asked.append(settings)
        dictionary.compute_and_write(replace(settings, images=30, patches=3000), tmp_path / "prior")
        return tmp_path / "prior" / "weights.safetensors"

    monkeypatch.setattr(encoders.dictionary, "load_or_compute", kept)
    made = load_encoder("patches-256", shape)
    assert asked == [dictionary.DictionarySettings("patches-256", shape)]
    given = load_encoder("patches-256", shape, tmp_path / "prior" / "weights.safetensors")
    images = torch.rand(3, *shape) * 2 - 1
    rows = made.features(images)
    assert torch.equal(rows, given.features(images)) and rows.shape == (3, 2 * 9 * 256)
    assert torch.allclose(rows.norm(dim=1), torch.ones(3))
    assert made.weights == digest_file(tmp_path / "prior" / "weights.safetensors")
    assert "dead-leaves" in made.origin and "no photograph" in made.origin


@pytest.mark.parametrize("name", ["vit-tiny", "small-cnn", "scatter-cnn"])
def test_a_model_gives_what_its_head_gets(name: str, tmp_path: Path) -> None:
    file = _weights(tmp_path / "public.safetensors", name)
    result, model = load_encoder(name, GREY, file), build(name, GREY, classes=10, seed=5)
    images = torch.rand(5, *GREY) * 2 - 1
    assert torch.equal(result.features(images), split_head(model).features(images).flatten(1))
    assert result.name == name and result.weights == digest_file(file) and "public.safetensors" in result.origin
    cache.require_separate(result, GREY)


def test_known_weights_say_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(encoders.ORIGINS, "vit-tiny", encoders.ORIGINS["dinov2-vits14"])
    origin = load_encoder("vit-tiny", GREY, _weights(tmp_path / "dino.safetensors", "vit-tiny")).origin
    assert "Apache-2.0" in origin and "may contain images of benchmarks" in origin and "dino.safetensors" in origin
    assert origin.startswith("declared by the user to be ") and "not verified" in origin, "any file has this format"
    assert "unknown" in load_encoder("small-cnn", GREY, _weights(tmp_path / "w.safetensors", "small-cnn")).origin


@pytest.mark.parametrize(
    ("name", "weights", "error", "reason"),
    [
        ("vit-tiny", None, ConfigError, "needs weights trained on public images"),
        ("scatter-cnn", None, ConfigError, "needs weights trained on public images"),
        ("pixels", "some", ConfigError, "would not be used"),
        ("scatter-linear", "some", ConfigError, "would not be used"),
        ("vit-tiny", "missing", DataError, "no such file"),
        ("vit-tiny", "private", DataError, "private data"),
        ("nothing", None, ConfigError, "no model named"),
    ],
)
def test_what_is_no_public_encoder(
    name: str, weights: str | None, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    file = None if weights is None else tmp_path / f"{weights}.safetensors"
    if weights == "some":
        _weights(tmp_path / "some.safetensors", "vit-tiny")
    if weights == "private":
        tensors = build("vit-tiny", GREY, classes=10, seed=0).state_dict()
        (tmp_path / "private.safetensors").write_bytes(safetensors.dump(tensors, {"event": "{}"}))
    with pytest.raises(error, match=reason):
        load_encoder(name, GREY, file)


def test_rows_are_named_by_what_they_depend_on(tmp_path: Path) -> None:
    files = [_weights(tmp_path / f"{seed}.safetensors", "vit-tiny", seed=seed) for seed in (1, 2)]
    one, other = (load_encoder("vit-tiny", GREY, file) for file in files)
    names = {
        "same": cache_key(one, records()),
        "weights": cache_key(other, records()),
        "records": cache_key(one, records(seed=1)),
        "fewer": cache_key(one, records(20)),
        "network": cache_key(load_encoder("pixels", GREY), records()),
    }
    assert len({cache.path_of(name) for name in names.values()}) == len(names)
    assert names["same"] == cache_key(load_encoder("vit-tiny", GREY, files[0]), records())


def test_rows_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    one = extract(load_encoder("pixels", GREY), records(), lambda done, count: seen.append(done))
    assert seen[-1] == len(records())
    monkeypatch.setattr(Encoder, "features", lambda self, x: torch.zeros(len(x), 64))  # asked for the shape alone
    np.testing.assert_array_equal(extract(load_encoder("pixels", GREY), records()), one)


def test_images_of_another_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\(3, 8, 8\).*\(1, 8, 8\)"):
        extract(load_encoder("pixels", COLOUR), records())


class _Mixes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_an_encoder_that_mixes_images_is_refused_before_it_sees_any() -> None:
    mixing = Encoder("mixing", GREY, _Mixes(), piece=8, origin="a test")
    with pytest.raises(UnsafeLayer, match="mixes"):
        extract(mixing, records())
    assert not cache.path_of(cache_key(mixing, records())).exists()


class _Counts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(len(x)).view(-1, 1, 1, 1)


def test_an_encoder_that_looks_at_places_is_refused_by_name() -> None:
    counting = Encoder("counting", GREY, _Counts(), piece=8, origin="a test")
    with pytest.raises(UnsafeLayer, match="the encoder 'counting' gives an image different features at a different"):
        extract(counting, records())
    assert not cache.path_of(cache_key(counting, records())).exists()


class _BendsWhatItsHeadSays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.head(self.body(x)))


def test_a_head_of_zeros_does_not_hide_what_comes_after_it() -> None:
    model = _BendsWhatItsHeadSays()
    with pytest.raises(ConfigError, match="not the last layer"):
        require_head_last(model, split_head(model), (4,))
    assert not model.head.weight.any(), "the trial leaves the weights as they were"


def test_efficientnet_treats_images_alone_and_pads_as_its_authors_do() -> None:
    model = efficientnet_lite0((3, 32, 32), 5, side=32)
    parts, images = split_head(model), torch.rand(9, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rows = parts.features(images)
    assert rows.shape == (9, 1280) and torch.equal(parts.features(images[4:5])[0], rows[4])
    features = model.prepare(torch.tensor([-1.0, 1.0]).view(1, 1, 1, 2).expand(1, 3, 32, 2).repeat(1, 1, 1, 16))
    assert torch.allclose(features[0, 0, 0, :2], torch.tensor([-127 / 128, 1.0]))
    for length, kernel, stride, padding in ((8, 3, 2, (0, 1)), (8, 5, 2, (1, 2)), (7, 3, 2, (1, 1)), (7, 5, 1, (2, 2))):
        convolution = Convolution(1, 1, kernel, stride=stride)
        assert convolution._padding(length) == padding
        assert convolution(torch.zeros(1, 1, length, length)).shape[2] == -(-length // stride)
