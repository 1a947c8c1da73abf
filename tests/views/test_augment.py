"""Crops and flips: symmetric padding, the right windows, the right distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dpvision.views import Augment
from dpvision.views.augment import crop, crop_and_flip, flip, pad_symmetric
from tests.views.builders import images_of, rng_of, same_bits

# The value of a pixel is its position.
PLACES = torch.arange(32 * 32, dtype=torch.float32).view(1, 1, 1, 32, 32)


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (9, 11), (32, 32)])
@pytest.mark.parametrize("pad", [0, 1, 4, 12])
def test_padding_is_numpys_symmetric_one(size: tuple[int, int], pad: int) -> None:
    images = images_of(3, size=size)
    expected = np.pad(images.numpy(), ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="symmetric")
    assert same_bits(pad_symmetric(images, pad), torch.from_numpy(expected))


def _read(views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets and flips of views of PLACES, from the pixels in their middle."""
    rows, columns = (views[..., 0, 16, 16] / 32).long(), (views[..., 0, 16, 16] % 32).long()
    mirrored = views[..., 0, 16, 17] < views[..., 0, 16, 16]
    left = torch.where(mirrored, 31 - columns, columns)
    return rows - 16 + 4, left - 16 + 4, mirrored


@pytest.mark.parametrize("operate", [crop, crop_and_flip])
def test_each_view_is_a_window_of_the_padded_image_or_of_its_mirror(operate) -> None:
    views = operate(PLACES.expand(6, -1, -1, -1, -1), rng_of(*range(6)), 40)
    assert views.shape == (6, 40, 1, 32, 32)
    wide = np.pad(PLACES[0, 0, 0].numpy(), 4, mode="symmetric")
    for view, top, left, mirrored in zip(views.flatten(0, 1), *(x.flatten() for x in _read(views)), strict=True):
        source = wide[:, ::-1] if mirrored else wide
        assert np.array_equal(view[0].numpy(), source[top : top + 32, left : left + 32])


def test_offsets_are_uniform_and_half_are_mirrored() -> None:
    views = crop_and_flip(PLACES.expand(500, -1, -1, -1, -1), rng_of(*range(500)), 16)
    top, left, mirrored = _read(views)
    together = (top * 9 + left) * 2 + mirrored
    cells = torch.bincount(together.flatten(), minlength=162)
    assert len(cells) == 162 and stats.chisquare(cells.numpy()).pvalue > 1e-4
    assert abs(mirrored.double().mean() - 0.5) < 4.5 * 0.5 / np.sqrt(mirrored.numel())


def test_flip_mirrors_half_of_the_views_and_leaves_the_others() -> None:
    images = images_of(400).unsqueeze(1)
    views = flip(images, rng_of(*range(400)), 10)
    as_is = (views == images).flatten(2).all(2)
    mirrored = (views == images.flip(-1)).flatten(2).all(2)
    assert (as_is ^ mirrored).all()
    assert abs(mirrored.double().mean() - 0.5) < 4.5 * 0.5 / np.sqrt(mirrored.numel())


@pytest.mark.parametrize("names", [("crop", "flip"), ("flip", "crop")])
def test_crop_next_to_flip_is_one_pass(names: tuple[str, ...]) -> None:
    images = images_of(5).unsqueeze(1)
    fused = Augment(names)(images, rng_of(*range(5)), 7)
    assert same_bits(fused.contiguous(), crop_and_flip(images, rng_of(*range(5)), 7).contiguous())


def test_each_of_several_given_views_is_shifted_from_itself() -> None:
    images = images_of(12).unflatten(0, (4, 3))
    views = crop_and_flip(images, rng_of(*range(4)), 3, pad=2)
    for k in range(3):
        wide = pad_symmetric(images[:, k], 2)
        for view, source in zip(views[:, k], wide, strict=True):
            windows = source.unfold(1, 9, 1).unfold(2, 11, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
            all_windows = torch.cat([windows, windows.flip(-1)])
            assert (all_windows == view).flatten(1).all(1).any()


def test_no_pad_no_shift() -> None:
    images = images_of(3).unsqueeze(1)
    assert torch.equal(crop(images, rng_of(0, 1, 2), 2, pad=0), images.expand(-1, 2, -1, -1, -1))
