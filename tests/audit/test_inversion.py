"""Inversion reconstructs an image from noiseless features, also from a mixture with known others, and not from noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dpvision.audit.inversion import correlations, invert, shorten, total_variation
from dpvision.errors import ConfigError
from dpvision.models.scattering import Scattering
from dpvision.public.sheets import write_labelled_rows

SHAPE = (1, 12, 12)


class Features(nn.Module):
    """Smooth, with more outputs than pixels, so that an image can be reconstructed; the benchmark attacks scattering."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(144, 300, generator=torch.Generator().manual_seed(1)) / 12

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.flatten(1) @ self.weight)


FEATURES = Features()


def _images(count: int) -> torch.Tensor:
    """Bright bars and blocks on black."""
    rng, x = np.random.default_rng(4), -np.ones((count, *SHAPE), dtype=np.float32)
    for picture in x:
        top, left = rng.integers(1, 6, 2)
        height, width = rng.integers(2, 6, 2)
        picture[0, top : top + height, left : left + width] = 1
    return torch.from_numpy(x)


@torch.no_grad()
def _rows(x: torch.Tensor) -> torch.Tensor:
    return shorten(FEATURES(x))


def test_the_gradient_of_scattering_equals_a_difference_quotient() -> None:
    """In a random direction, in double precision."""
    module, generator = Scattering((1, 8, 8)).double(), torch.Generator().manual_seed(0)
    module.together = 1
    x, direction = (torch.rand(1, 1, 8, 8, dtype=torch.double, generator=generator) * 2 - 1 for _ in range(2))
    weights = torch.randn(1, *module.shape, dtype=torch.double, generator=generator)
    x.requires_grad_()
    (slope,) = torch.autograd.grad((weights * module(x)).sum(), x)
    with torch.no_grad():
        ahead, behind = ((weights * module(x + step * direction)).sum() for step in (1e-5, -1e-5))
    assert (slope * direction).sum().item() == pytest.approx((ahead - behind).item() / 2e-5, rel=1e-6)


def test_clean_features_reveal_the_image_and_noisy_ones_do_not() -> None:
    x = _images(3)
    rows = _rows(x)
    images = invert(FEATURES, rows, shape=SHAPE, steps=150)
    assert images.shape == (3, *SHAPE) and images.abs().max() <= 1
    table = correlations(images, x)
    assert table.diag().min() > 0.9 and (table.argmax(1) == torch.arange(3)).all()
    noisy = rows + torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    assert correlations(invert(FEATURES, noisy, shape=SHAPE, steps=150), x).diag().max() < 0.6


def test_known_records_are_subtracted() -> None:
    """If all but one are known, a noiseless mixture hides nothing; otherwise one image cannot explain it."""
    x = _images(8)
    rows = _rows(x)
    mixture = rows.mean(0, keepdim=True)
    images = invert(FEATURES, mixture, shape=SHAPE, degree=8, known=rows[1:].sum(0, keepdim=True), steps=150)
    assert correlations(images, x[:1]).item() > 0.9
    blind = invert(FEATURES, mixture, shape=SHAPE, degree=8, steps=150)
    assert correlations(blind, x[:1]).item() < 0.9


def test_an_image_of_one_colour_does_not_stop_the_attack() -> None:
    """A modulus has no gradient there: torch returns NaN, and the attack continues."""

    scattering = Scattering(SHAPE)
    scattering.together = 1

    class Blank(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scattering(x * 0 - 1)

    black = (-torch.ones(1, *SHAPE)).requires_grad_()
    assert torch.autograd.grad(scattering(black).sum(), black)[0].isnan().any()
    with torch.no_grad():
        row = scattering(_images(1)).flatten(1)
    assert invert(Blank(), row, shape=SHAPE, steps=2).isfinite().all()


def test_variation_correlation_and_clipping() -> None:
    x = -torch.ones(1, 3, 3)
    x[0, 1, 1] = 1
    assert total_variation(x).item() == 4, "a pixel has four neighbours"
    y = torch.randn(2, 9)
    table = correlations(y, torch.stack([3 * y[0] + 1, -y[1], torch.zeros(9)]))
    assert table[0, 0].item() == pytest.approx(1, abs=1e-6) and table[1, 1].item() == pytest.approx(-1, abs=1e-6)
    assert (table[:, 2] == 0).all()
    assert shorten(torch.tensor([[3.0, 4.0], [0.3, 0.4]])).tolist() == [
        pytest.approx([0.6, 0.8]),
        pytest.approx([0.3, 0.4]),
    ]
    with pytest.raises(ConfigError, match="released"):
        invert(nn.Flatten(), torch.zeros(3), shape=SHAPE)
    with pytest.raises(ConfigError, match="known"):
        invert(nn.Flatten(), torch.zeros(3, 144), shape=SHAPE, known=torch.zeros(2, 144))


def test_a_sheet_contains_its_pictures(tmp_path: Path) -> None:
    white, black = np.ones((4, 8, 8)), np.zeros((4, 8, 8, 3))
    write_labelled_rows(tmp_path / "sheet.png", {"white": white, "black": black})
    with Image.open(tmp_path / "sheet.png") as picture:
        pixels = np.asarray(picture.convert("L"))
    height, width = pixels.shape
    assert pixels[height // 4, width - 30] == 255 and pixels[3 * height // 4, width - 30] == 0
    for bad in ({}, {"a": white, "b": black[:3]}, {"a": white[:0]}):
        with pytest.raises(ConfigError, match="sheet"):
            write_labelled_rows(tmp_path / "bad.png", bad)
    assert not (tmp_path / "bad.png").exists()
