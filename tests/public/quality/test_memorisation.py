"""Copies are found, fresh images are not accused, and the picture shows them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality.classifier import LabelledImages
from dpvision.public.quality.evaluation import _draw_pairs
from dpvision.public.quality.measures import Memorisation, detect_copies, distance_ratio


def mixture(n: int, seed: int) -> Tensor:
    """Rows in a dense and a sparse region: the second half is spread 100 times as far."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=rng)
    x[n // 2 :] = x[n // 2 :] * 100 + 1000
    return x


def test_copies_are_found_in_plain_regions_and_in_rich_ones() -> None:
    real = mixture(600, 0)
    spread = torch.cat([torch.ones(300, 1), torch.full((300, 1), 100.0)])
    near = real + 0.05 * spread * torch.randn(600, 12, generator=torch.Generator().manual_seed(1))
    for copies in (real, near):
        result = detect_copies(copies, real)
        assert result.share == 1.0 and result.expected == pytest.approx(0.01)
        assert torch.equal(result.neighbours, torch.arange(600))


def test_fresh_images_are_not_accused() -> None:
    result = detect_copies(mixture(1000, 2), mixture(1000, 3))
    assert result.share <= 0.03 and result.expected == pytest.approx(0.01)


def test_the_share_of_copies_is_reported() -> None:
    real = mixture(1000, 4)
    result = detect_copies(torch.cat([mixture(700, 5), real[:300]]), real)
    assert 0.3 <= result.share <= 0.32


def test_duplicates_among_the_real_images_are_reported() -> None:
    real = torch.cat([mixture(400, 6), mixture(400, 6)[:100]])
    result = detect_copies(mixture(400, 7), real)
    assert result.limit == 0 and result.expected == pytest.approx(200 / 500) and result.share == 0
    assert detect_copies(real, real).share == 1
    assert detect_copies(torch.zeros(3, 2), torch.zeros(100, 2)).share == 1, "all the same"


def test_ratio_by_hand() -> None:
    assert distance_ratio(torch.tensor([[4.0, 9.0, 25.0], [0.0, 1.0, 1.0]], dtype=torch.float64)).tolist() == [0.5, 0.0]


def test_the_picture_shows_the_closest_pair_first() -> None:
    images = np.zeros((30, 8, 8, 3), np.uint8)
    images[:, :, :, 0] = np.arange(30)[:, None, None] * 8
    ratios = torch.linspace(1, 0, 30)
    result = Memorisation(0.0, 0.0, 0.0, ratios, torch.full((30,), 5))
    blue = np.zeros_like(images)
    blue[5, :, :, 2] = 255
    labels = np.zeros(30, np.int64)
    pairs = _draw_pairs(LabelledImages("a", images, labels), LabelledImages("b", blue, labels), result)
    with Image.open(io.BytesIO(pairs)) as picture:
        shown = np.asarray(picture.convert("RGB")).astype(int)
    height, width = shown.shape[:2]
    first = int(width * 2.6 / (2.6 + 0.8 * 12)) + 20
    assert shown[height // 8, first].tolist() == [29 * 8, 0, 0], "the smallest ratio is the last image's"
    assert shown[3 * height // 8, first].tolist() == [0, 0, 255], "below is its neighbour"
    gray = LabelledImages("g", images[:8, :, :, :1], labels[:8])
    small = Memorisation(0.0, 0.0, 0.0, ratios[:8], torch.zeros(8, dtype=torch.long))
    assert _draw_pairs(gray, gray, small).startswith(b"\x89PNG")


def test_too_few_images_are_refused_for_copies() -> None:
    with pytest.raises(DataError, match="99 real images"):
        detect_copies(torch.zeros(5, 2), torch.zeros(99, 2))
    with pytest.raises(ConfigError, match="level"):
        detect_copies(torch.zeros(5, 2), torch.zeros(99, 2), level=0.0)
