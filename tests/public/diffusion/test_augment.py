"""Augmentation: each change alone does what its number states, and nothing changes where all are 0."""

from __future__ import annotations

import pytest
import torch

from dpvision.errors import ConfigError
from dpvision.public.diffusion.fit import Augment, _warp, augment_images

IDENTITY = torch.eye(2)[None]


def picture() -> torch.Tensor:
    return torch.rand(1, 1, 6, 10, generator=torch.Generator().manual_seed(0))


def test_off_is_nothing() -> None:
    x = torch.rand(4, 3, 8, 8)
    assert not Augment()
    y, numbers = augment_images(x, Augment())
    assert torch.equal(x, y) and numbers.shape == (4, 9) and not numbers.any()


def test_mirrored_for_every_second_image() -> None:
    x = picture().expand(400, -1, -1, -1)
    torch.manual_seed(0)
    y, numbers = augment_images(x, Augment(flip=True))
    mirrored = numbers[:, 0] == 1
    assert 150 < mirrored.sum() < 250 and not numbers[:, 1:].any()
    assert torch.equal(y[~mirrored], x[~mirrored])
    assert torch.allclose(y[mirrored], x[mirrored].flip(3), atol=1e-5)


def test_warps_by_hand() -> None:
    x = picture()
    none = torch.zeros(1, 2)
    assert torch.allclose(_warp(x, IDENTITY, none), x, atol=1e-5)
    assert torch.allclose(_warp(x, -IDENTITY, none), x.flip(2, 3), atol=1e-5)  # half a turn
    shifted = _warp(x, IDENTITY, torch.tensor([[0.2, 0.0]]))  # a fifth of 10 pixels to the right
    assert torch.allclose(shifted[..., 2:], x[..., :-2], atol=1e-5)
    square = torch.rand(1, 1, 6, 6)
    quarter = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
    assert torch.allclose(_warp(square, quarter, none), square.rot90(-1, (2, 3)), atol=1e-5)


def test_each_augmentation_has_its_probability() -> None:
    torch.manual_seed(0)
    _, numbers = augment_images(torch.zeros(4000, 1, 4, 4), Augment(0.12))
    assert not numbers[:, :2].any()  # not mirrored unless asked
    assert numbers[:, [2, 4, 6, 7]].ne(0).float().mean(0).tolist() == pytest.approx([0.12] * 4, abs=0.02)
    moved = numbers[numbers[:, 7] != 0, 7]
    assert moved.std().item() == pytest.approx(1, abs=0.1)  # stated in standard deviations


def test_a_probability_above_one() -> None:
    with pytest.raises(ConfigError, match="probability"):
        Augment(1.5)
