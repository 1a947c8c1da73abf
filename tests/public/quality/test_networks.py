"""Inception-v3 as FID is defined with it, and the networks used in its place."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality import networks
from dpvision.public.quality.classifier import ClassifierSettings
from dpvision.public.quality.inception import Inception, InceptionInput, linear_interpolation
from dpvision.public.quality.networks import NETWORKS, build_network
from tests.public.quality.sets import digits, part


def test_inception_has_its_shape_and_its_number_of_weights() -> None:
    model = Inception((3, 20, 24)).eval()
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 94
    trunk = sum(t.numel() for name, t in model.named_parameters() if not name.startswith("head"))
    assert trunk == 21_768_352 and model.head.weight.numel() == 1008 * 2048
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules()), "no image changes another's features"
    places: dict[str, tuple[int, ...]] = {}
    for name, module in (("stem", model.stem), ("last", model.blocks), ("middle", model.blocks[3])):
        module.register_forward_hook(lambda _m, _i, out, name=name: places.update({name: tuple(out.shape[1:])}))
    with torch.no_grad():
        features = model.features(torch.rand(1, 3, 20, 24) * 2 - 1)
    assert features.shape == (1, 2048)
    assert places == {"stem": (192, 35, 35), "middle": (768, 17, 17), "last": (2048, 8, 8)}


def test_images_are_enlarged_as_tensorflow_1_did() -> None:
    """Pixel i of the result is at i * length / wanted: the corner stays, and the last pixels are the edge's."""
    line = torch.tensor([3.0, 7.0, 1.0])
    result = linear_interpolation(3, 8) @ line
    for i, value in enumerate(result.tolist()):
        place = i * 3 / 8
        low = math.floor(place)
        wanted = line[low] + (place - low) * (line[min(low + 1, 2)] - line[low])
        assert value == pytest.approx(float(wanted), abs=1e-6)
    assert torch.equal(linear_interpolation(5, 5), torch.eye(5))


def test_pixels_are_scaled_about_128_and_grey_has_three_channels() -> None:
    grey = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 4, 4)
    result = InceptionInput((4, 4))(grey)
    assert result.shape == (2, 3, 299, 299)
    assert torch.allclose(result[0], torch.tensor(-1.0)) and torch.allclose(result[1], torch.tensor(127 / 128))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the right shapes, without a head, as in published files."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    save_file({n: t for n, t in Inception((1, 8, 8)).state_dict().items() if n != "head.weight"}, path)
    return path


def test_other_weights_are_not_called_inception(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "PIECE_ON_CPU", 2)
    few = part(digits()[0], slice(0, 3))
    result = build_network("inception", few, weights=weights)
    assert not result.standard and result.name == "inception, other weights"
    rows = result.features(few)
    assert rows.shape == (3, 2048)
    assert torch.equal(result.features(part(few, slice(1, 2)))[0], rows[1]), "the same bits alone and among others"
    assert not result.has_classes
    with pytest.raises(ConfigError, match="has no classes"):
        result.probabilities(rows)


def test_a_file_with_a_head_gives_class_probabilities(weights: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = tmp_path / "with_head.safetensors"
    save_file({**load_file(weights), "head.weight": torch.randn(1008, 2048)}, path)
    result = build_network("inception", part(digits()[0], slice(0, 2)), weights=path)
    assert result.has_classes
    p = result.probabilities(torch.rand(4, 2048))
    assert p.shape == (4, 1008) and torch.allclose(p.sum(1), torch.ones(4))


def test_files_that_do_not_fit_are_refused(weights: Path, tmp_path: Path) -> None:
    few = part(digits()[0], slice(0, 2))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"broken.safetensors: is not a valid"):
        build_network("inception", few, weights=broken)
    with pytest.raises(DataError, match="missing"):
        build_network("dinov2", few, weights=weights)
    with pytest.raises(ConfigError, match=r"benchmarks\.inception_weights"):
        build_network("inception", few)
    with pytest.raises(ConfigError, match="takes no weights"):
        build_network("scattering", few, weights=weights)
    with pytest.raises(ConfigError, match=f"There are: {', '.join(NETWORKS)}"):
        build_network("vgg", few)


def test_scattering_distinguishes_digits_and_its_rows_are_independent() -> None:
    real = part(digits()[0], slice(0, 300))
    result = build_network("scattering", real)
    rows = result.features(real)
    assert rows.shape == (300, 324) and result.weights is None and "not trained" in result.origin
    assert torch.equal(result.features(part(real, slice(7, 20))), rows[7:20])
    near = (rows[:, None] - rows).square().sum(2).fill_diagonal_(torch.inf).argmin(1)
    assert real.labels is not None and (real.labels[near.numpy()] == real.labels).mean() > 0.8


def test_a_classifier_learns_from_the_real_images() -> None:
    real, test = digits()
    result = build_network(
        "classifier", real, classes=10, settings=ClassifierSettings(model="small-cnn", steps=40, batch=32)
    )
    guesses = result.probabilities(result.features(test)).argmax(1).numpy()
    assert test.labels is not None and np.mean(guesses == test.labels) > 0.7
    with pytest.raises(ConfigError, match="number of classes"):
        build_network("classifier", real)
