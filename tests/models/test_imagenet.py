"""Images in [-1, 1] as networks trained on ImageNet expect them."""

from __future__ import annotations

import pytest
import torch

from dpvision.models.imagenet import ImagenetInput


def test_levels_by_hand() -> None:
    """White is (1 - mean) / std; black is -mean / std."""
    found = ImagenetInput(3, (6, 4))(torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 3, 2))
    for channel, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        assert found[0, channel].flatten().tolist() == pytest.approx([-mean / std] * 24, rel=1e-5)
        assert found[1, channel].flatten().tolist() == pytest.approx([(1 - mean) / std] * 24, rel=1e-5)


def test_grey_becomes_three_channels() -> None:
    grey = torch.rand(2, 1, 6, 6) * 2 - 1
    assert torch.equal(ImagenetInput(1, (6, 6))(grey), ImagenetInput(3, (6, 6))(grey.expand(-1, 3, -1, -1)))


def test_a_ramp_stays_a_ramp_and_noise_fades_when_it_shrinks() -> None:
    """Of all values of a, only a = -0.5 keeps straight lines straight."""
    ramp = torch.linspace(-1, 1, 16).expand(1, 3, 16, 16)
    grown = ImagenetInput(3, (32, 48))(ramp)[0, 0]
    steps = grown.diff(dim=1)[:, 6:-6]
    assert torch.allclose(steps, torch.full_like(steps, 2 / 15 / 3 * 0.5 / 0.229), rtol=1e-3)
    assert float(grown.diff(dim=0).abs().max()) < 1e-5
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert float(ImagenetInput(3, (8, 8))(noise).std()) < 0.4 * float(ImagenetInput(3, (64, 64))(noise).std())
