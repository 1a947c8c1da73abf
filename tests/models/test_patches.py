"""Features of patches: the formula, by a plain loop; the same in a mirror; nothing but the image goes in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.models import build
from dpvision.models.centred import Agreement, Centred
from dpvision.models.patches import GRID, PATCH, THRESHOLD, Patches


def _patches(shape: tuple[int, int, int] = (2, 13, 15), count: int = 5) -> Patches:
    torch.manual_seed(0)
    patches = Patches(shape, count)
    with torch.no_grad():
        for parameter in patches.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return patches.requires_grad_(False)


def _by_hand(patches: Patches, image: Tensor) -> Tensor:
    """One image (C, H, W), in float64, as the formula says it."""
    _, height, width = image.shape
    count, places = len(patches.dictionary), (height + 1 - PATCH, width + 1 - PATCH)
    found = torch.zeros(2 * count, *places, dtype=torch.float64)
    for a in range(places[0]):
        for b in range(places[1]):
            p = image[:, a : a + PATCH, b : b + PATCH].flatten().double()
            r = patches.dictionary.double() @ p / (1 + (patches.whitening.double() @ p).square().sum()).sqrt()
            found[:, a, b] = torch.cat([F.relu(r - THRESHOLD), F.relu(-r - THRESHOLD)])
    return F.adaptive_avg_pool2d(found, GRID).flatten()


def test_the_formula() -> None:
    patches, images = _patches(), torch.rand(3, 2, 13, 15) * 2 - 1
    both = torch.stack([_by_hand(patches, x) + _by_hand(patches, x.flip(2)) for x in images])
    wanted = F.normalize(both - patches.mean.double(), dim=1)
    assert bool((both > 0).any()) and torch.allclose(patches(images).double(), wanted, atol=1e-5)
    assert torch.allclose(patches(images).norm(dim=1), torch.ones(3))


def test_a_mirror_changes_nothing() -> None:
    patches, images = _patches(), torch.rand(3, 2, 13, 15) * 2 - 1
    assert torch.allclose(patches(images), patches(images.flip(3)), atol=1e-6)


def test_small_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="10x10 pixels at least, not 8x8"):
        build("patches-512", (3, 8, 8), classes=2, seed=0)


def test_one_step_of_agreement_is_the_mean() -> None:
    centred, rows = Centred(6), torch.randn(9, 6)
    Agreement(centred)(rows).mean().backward()
    assert centred.centre.grad is not None and torch.allclose(-centred.centre.grad, rows.mean(0))
    with torch.no_grad():
        centred.centre.copy_(rows.mean(0))
    assert torch.allclose(centred(rows), F.normalize(rows - rows.mean(0), dim=1))
