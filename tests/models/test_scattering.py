"""The scattering transform compared with kymatio's, the same bits for an image in any batch, and classifiers on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.models import Featured, build
from dpvision.models.scattering import CHANNELS, Scattering
from tests.models.dead_leaves import dead_leaves


def _images(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Noise on coarse blocks, with all frequencies."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, shape[0], 4, 4, generator=generator)
    blocks = torch.nn.functional.interpolate(coarse, size=shape[1:], mode="nearest")
    return (blocks + torch.rand(count, *shape, generator=generator)) - 1


def _kymatio(shape: tuple[int, int]) -> Any:
    """Its numpy front end, imported by itself."""
    from kymatio.scattering2d.frontend.numpy_frontend import ScatteringNumPy2D

    return ScatteringNumPy2D(J=2, shape=shape, L=8, max_order=2)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 28, 28), (3, 32, 32), (2, 30, 41), (1, 9, 8)])
def test_equal_to_kymatio(shape: tuple[int, int, int]) -> None:
    images = _images(5, shape)
    expected = _kymatio(shape[1:])((images.numpy() + 1) / 2)
    result = Scattering(shape)(images).numpy()
    assert result.shape == (5, shape[0] * CHANNELS, shape[1] // 4, shape[2] // 4)
    assert np.abs(result - expected.reshape(result.shape)).max() <= 1e-5 * np.abs(expected).max()
    for channel in range(CHANNELS):  # each on its own scale too: those of second order are small
        one, other = result.reshape(expected.shape)[:, :, channel], expected[:, :, channel]
        assert np.abs(one - other).max() <= 1e-4 * np.abs(other).max()


@pytest.mark.parametrize("threads", [1, 2])
def test_an_image_has_the_same_bits_in_any_batch(threads: int) -> None:
    scattering, images = Scattering((3, 32, 32)), _images(37, (3, 32, 32))
    torch.set_num_threads(threads)
    together = scattering(images)
    for place in (0, 1, 7, 8, 35, 36):
        assert torch.equal(scattering(images[place : place + 1])[0], together[place])
    assert torch.equal(scattering(images.flip(0)), together.flip(0))
    assert torch.equal(scattering(images.contiguous(memory_format=torch.channels_last)), together)


def test_no_images_and_images_that_are_not_finite() -> None:
    scattering, images = Scattering((1, 28, 28)), _images(3, (1, 28, 28))
    assert scattering(images[:0]).shape == (0, 81, 7, 7)
    broken = images.clone()
    broken[1] = float("nan")
    result = scattering(broken)
    assert bool(result[1].isnan().all()) and torch.equal(result[[0, 2]], scattering(images)[[0, 2]])


def test_in_float64_it_is_as_exact_as_its_filters() -> None:
    images = _images(2, (1, 28, 28))
    single, double = Scattering((1, 28, 28))(images), Scattering((1, 28, 28)).double()(images.double())
    assert double.dtype == torch.float64
    assert float((single - double).abs().max()) <= 1e-6 * float(double.abs().max())


def test_filters_are_not_weights() -> None:
    scattering = Scattering((1, 28, 28))
    assert not scattering.state_dict() and not list(scattering.parameters())
    with torch.device("meta"):  # where a released model is sketched before its file is believed
        sketched = Scattering((1, 28, 28))
    assert torch.equal(sketched.fine.wavelets, scattering.fine.wavelets)


def test_a_constant_image_has_no_detail() -> None:
    result = Scattering((1, 32, 32))(torch.full((1, 1, 32, 32), 0.5))
    assert torch.allclose(result[0, 0], torch.tensor(0.75), rtol=1e-4)  # the window sums to one
    assert float(result[0, 1:].abs().max()) < 1e-5


@pytest.mark.parametrize("shape", [(1, 7, 28), (3, 32, 300)])
def test_unsupported_sides_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="8 to 256 pixels"):
        Scattering(shape)


def test_gradients_of_the_pixels_for_attacks_on_the_features() -> None:
    """Along a random direction, compared with a finite difference."""
    scattering, images = Scattering((1, 8, 8)).double(), _images(2, (1, 8, 8)).double()
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(images.shape, generator=generator, dtype=torch.float64)
    weights = torch.randn(2, 81, 2, 2, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((scattering(images.requires_grad_()) * weights).sum(), images)
    with torch.no_grad():
        ahead, behind = ((scattering(images + h * direction) * weights).sum() for h in (1e-6, -1e-6))
    assert float((gradient * direction).sum()) == pytest.approx(float((ahead - behind) / 2e-6), rel=1e-6)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 12, 9), (1, 28, 28), (3, 32, 32)])
def test_an_images_place_in_a_piece_changes_no_bit(shape: tuple[int, int, int]) -> None:
    """One more record shifts the others by one place; pieces of 85 images were rounded differently at each place."""
    scattering = Scattering(shape)
    image = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    same = scattering(image.expand(scattering.together + 1, -1, -1, -1))
    assert all(torch.equal(row, same[0]) for row in same)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_features_of_dead_leaves_have_mean_zero_and_deviation_one(shape: tuple[int, int, int]) -> None:
    """The constants are those of the process, in either size; angles differ a little, since pixels are square."""
    colours, side, _ = shape
    images = dead_leaves(1500 * colours, side, seed=7).view(1500, *shape) * 2 - 1
    model = build("scatter-linear", shape, classes=10, seed=0)
    assert isinstance(model, Featured) and not list(model.prefix.parameters())
    features = torch.cat([model.features(part) for part in images.split(250)]).unflatten(1, (colours, -1))
    assert features.shape[2] == 81
    assert float(features.mean((0, 3, 4)).abs().max()) < 0.2
    assert float((features.std((0, 3, 4)) - 1).abs().max()) < 0.2


def test_features_are_of_each_image_alone_and_the_same_affine_map_for_all() -> None:
    model = build("scatter-linear", (1, 28, 28), classes=10, seed=0)
    images = dead_leaves(6, 28, seed=0) * 2 - 1
    raw, features = Scattering((1, 28, 28))(images), model.features(images)
    slope = (features[1] - features[0]) / (raw[1] - raw[0])
    assert torch.allclose(features - features[:1], slope * (raw - raw[:1]), atol=1e-2)
    assert torch.equal(model.features(images[2:3]), features[2:3])


@pytest.mark.parametrize(("shape", "columns"), [((1, 28, 28), 4), ((3, 32, 32), 4)])
def test_mirrored_features_are_those_of_the_mirror_image(shape: tuple[int, int, int], columns: int) -> None:
    model, plain = (build(name, shape, classes=10, seed=0) for name in ("scatter-cnn-mirrored", "scatter-cnn"))
    assert isinstance(model, Featured) and isinstance(plain, Featured)
    images = dead_leaves(4 * shape[0], shape[1], seed=0).view(4, *shape) * 2 - 1
    features = model.features(images)
    assert features.shape == (4, 81 * shape[0], shape[1] // 4, columns)
    assert torch.equal(features, model.features(images.flip(3)))
    means = (plain.features(images) + plain.features(images.flip(3))) / 2
    assert torch.allclose(features, means[..., :columns], atol=1e-5)
    assert not torch.allclose(plain.features(images), plain.features(images.flip(3)), atol=0.1)
    assert model(images).shape == (4, 10)


def test_the_linear_classifier_starts_at_zero() -> None:
    model = build("scatter-linear", (1, 28, 28), classes=10, seed=0)
    assert not model(torch.rand(2, 1, 28, 28)).any()


def test_it_learns_what_pixels_alone_do_not_show() -> None:
    """Stripes of two directions at random places: their means are equal, but their scattering is not."""
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
