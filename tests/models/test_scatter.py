"""Classifiers on scattering features."""

from __future__ import annotations

import pytest
import torch

from dpvision.models import Featured, build
from dpvision.models.scattering import Scattering


@pytest.mark.parametrize(("shape", "features"), [((1, 28, 28), (81, 7, 7)), ((3, 32, 32), (243, 8, 8))])
def test_features_are_normalised_by_the_image_alone(
    shape: tuple[int, int, int], features: tuple[int, int, int]
) -> None:
    """(x - mean) / sqrt(var + 1e-5) over each of 27 groups of channels, as the authors have it."""
    model = build("scatter-linear", shape, classes=10, seed=0)
    assert isinstance(model, Featured) and not list(model.prefix.parameters())
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = model.features(images)
    groups = Scattering(shape)(images).view(3, 27, -1)
    mean, var = groups.mean(-1, keepdim=True), groups.var(-1, correction=0, keepdim=True)
    expected = (groups - mean) / torch.sqrt(var + 1e-5)
    assert torch.allclose(found, expected.view(3, *features), atol=1e-4)


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
