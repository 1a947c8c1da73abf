"""Classifiers on scattering features."""

from __future__ import annotations

import pytest
import torch

from dpvision.models import Featured, build
from dpvision.models.scattering import Scattering
from tests.models.dead_leaves import dead_leaves


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_features_of_dead_leaves_have_mean_zero_and_deviation_one(shape: tuple[int, int, int]) -> None:
    """The constants are those of the process, in either size; angles differ a little, since pixels are square."""
    colours, side, _ = shape
    images = dead_leaves(1500 * colours, side, seed=7).view(1500, *shape) * 2 - 1
    model = build("scatter-linear", shape, classes=10, seed=0)
    assert isinstance(model, Featured) and not list(model.prefix.parameters())
    found = torch.cat([model.features(part) for part in images.split(250)]).unflatten(1, (colours, -1))
    assert found.shape[2] == 81
    assert float(found.mean((0, 3, 4)).abs().max()) < 0.2
    assert float((found.std((0, 3, 4)) - 1).abs().max()) < 0.2


def test_features_are_of_each_image_alone_and_the_same_affine_map_for_all() -> None:
    model = build("scatter-linear", (1, 28, 28), classes=10, seed=0)
    images = dead_leaves(6, 28, seed=0) * 2 - 1
    raw, found = Scattering((1, 28, 28))(images), model.features(images)
    slope = (found[1] - found[0]) / (raw[1] - raw[0])
    assert torch.allclose(found - found[:1], slope * (raw - raw[:1]), atol=1e-2)
    assert torch.equal(model.features(images[2:3]), found[2:3])


@pytest.mark.parametrize(("shape", "columns"), [((1, 28, 28), 4), ((3, 32, 32), 4)])
def test_mirrored_features_are_those_of_the_mirror_image(shape: tuple[int, int, int], columns: int) -> None:
    model, plain = (build(name, shape, classes=10, seed=0) for name in ("scatter-cnn-mirrored", "scatter-cnn"))
    assert isinstance(model, Featured) and isinstance(plain, Featured)
    images = dead_leaves(4 * shape[0], shape[1], seed=0).view(4, *shape) * 2 - 1
    found = model.features(images)
    assert found.shape == (4, 81 * shape[0], shape[1] // 4, columns)
    assert torch.equal(found, model.features(images.flip(3)))
    means = (plain.features(images) + plain.features(images.flip(3))) / 2
    assert torch.allclose(found, means[..., :columns], atol=1e-5)
    assert not torch.allclose(plain.features(images), plain.features(images.flip(3)), atol=0.1)
    assert model(images).shape == (4, 10)


def test_the_linear_classifier_starts_at_zero() -> None:
    model = build("scatter-linear", (1, 28, 28), classes=10, seed=0)
    assert not model(torch.rand(2, 1, 28, 28)).any()


def test_it_learns_what_pixels_alone_do_not_tell() -> None:
    """Stripes of two directions, at random places: their means are equal, their scattering is not."""
    generator = torch.Generator().manual_seed(0)
    phase = torch.rand(64, 1, 1, generator=generator) * 6.28
    wave = torch.sin(torch.arange(28) * 1.2 + phase)  # (64, 1, 28)
    labels = torch.arange(64) % 2
    images = torch.where(labels.view(-1, 1, 1) == 0, wave.expand(-1, 28, -1), wave.transpose(1, 2).expand(-1, -1, 28))
    model = build("scatter-linear", (1, 28, 28), classes=2, seed=0)
    features = model.features(images.unsqueeze(1))
    optimiser = torch.optim.SGD(model.rest.parameters(), lr=0.01)
    for _ in range(20):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model.rest(features[:32]), labels[:32]).backward()
        optimiser.step()
    assert bool((model.rest(features[32:]).argmax(1) == labels[32:]).all())
