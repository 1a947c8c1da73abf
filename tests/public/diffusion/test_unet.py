"""Shapes and sizes of the U-Net, and its conditioning."""

from __future__ import annotations

import pytest
import torch

from dpvision.errors import ConfigError
from dpvision.public.diffusion.unet import SIZES, Size, UNet, one_hot_code, sinusoidal_embedding


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("tiny", (1, 28, 28)),
        ("tiny", (3, 20, 12)),
        ("small", (1, 28, 28)),
        ("small", (3, 32, 32)),
        ("medium", (1, 8, 8)),
        ("medium", (1, 7, 9)),
        ("medium", (3, 32, 32)),
    ],
)
def test_any_shape(name: str, shape: tuple[int, int, int]) -> None:
    network = UNet(SIZES[name], shape, classes=3)
    x = torch.randn(2, *shape)
    y = network(x, torch.zeros(2), torch.tensor([0, 2]), torch.zeros(2, 9))
    assert y.shape == x.shape
    assert y.abs().max().item() < 1e-3  # it starts as nothing


def test_sides_halve_until_they_are_odd() -> None:
    """28 -> 14 -> 7 in patches of 2 gives two resolutions, however many channels are listed."""
    network = UNet(Size((8, 8, 8, 8)), (1, 28, 28), classes=2)
    assert sum(block.resample == -1 for block in network.down) == 1  # type: ignore[union-attr]
    network = UNet(Size((8, 8, 8, 8), patch=1), (1, 32, 32), classes=2)
    assert sum(block.resample == -1 for block in network.down) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "low", "high"), [("tiny", 2e5, 4e5), ("small", 0.8e6, 1.3e6), ("paper", 55.5e6, 56e6)]
)
def test_sizes(name: str, low: float, high: float) -> None:
    with torch.device("meta"):
        network = UNet(SIZES[name], (3, 32, 32), classes=10)
    assert low < sum(p.numel() for p in network.parameters()) < high


def test_noise_class_and_augmentation_matter_and_zeros_of_augmentation_are_none() -> None:
    torch.manual_seed(0)
    network = UNet(SIZES["tiny"], (1, 8, 8), classes=3)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x, noise, labels = torch.randn(1, 1, 8, 8), torch.zeros(1), torch.tensor([0])
    with torch.no_grad():
        y = network(x, noise, labels)
        assert torch.equal(y, network(x, noise, labels, torch.zeros(1, 9)))
        assert not torch.allclose(y, network(x, noise + 1, labels))
        assert not torch.allclose(y, network(x, noise, labels + 1))
        assert not torch.allclose(y, network(x, noise, labels, torch.ones(1, 9)))


def test_codes_by_hand() -> None:
    assert one_hot_code(torch.tensor([1]), 4).tolist() == [[0, 2, 0, 0]]  # sqrt(4)
    assert sinusoidal_embedding(torch.tensor([0.0]), 4).tolist() == [[1, 1, 0, 0]]
    second = sinusoidal_embedding(torch.tensor([3.0]), 4)[0, 3].item()
    assert second == pytest.approx(torch.tensor(3 / 100).sin().item())  # 10,000^(-1/2)


def test_sides_without_whole_patches_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"27x27.*Fix"):
        UNet(SIZES["small"], (1, 27, 27), classes=2)
