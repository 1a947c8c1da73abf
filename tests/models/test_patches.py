"""Features of patches: equal to a plain loop, invariant to mirroring, and independent of other images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.models import build
from dpvision.models.parts import Agreement, Centred
from dpvision.models.patches import THRESHOLD, Bank, Patches, views_of


def _patches(shape: tuple[int, int, int] = (2, 13, 15), *, second: int = 0, symmetry: str = "mirror") -> Patches:
    torch.manual_seed(0)
    patches = Patches(shape, {4: 3, 5: 2}, second=second, symmetry=symmetry)
    with torch.no_grad():
        for parameter in patches.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return patches.requires_grad_(False)


def _maps(bank: Bank, image: Tensor) -> Tensor:
    """Both rectified maps of one image (C, H, W), in float64, by the formula."""
    result = torch.zeros(2 * len(bank.dictionary), *bank.positions, dtype=torch.float64)
    for a in range(bank.positions[0]):
        for b in range(bank.positions[1]):
            i, j = bank.stride * a, bank.stride * b
            p = (image[:, i : i + bank.patch, j : j + bank.patch].flatten() - bank.offset).double()
            r = bank.dictionary.double() @ p / (1 + (bank.whitening.double() @ p).square().sum()).sqrt()
            result[:, a, b] = torch.cat([F.relu(r - THRESHOLD), F.relu(-r - THRESHOLD)])
    return result


def _by_hand(patches: Patches, image: Tensor) -> Tensor:
    banks = [(bank, image) for bank in patches.banks]
    if patches.first is not None:
        banks.append((patches.second, F.avg_pool2d(_maps(patches.first, image), 2)))
    return torch.cat([_pooled(_maps(bank, x)).flatten() for bank, x in banks])


def _pooled(maps: Tensor) -> Tensor:
    """Windows begin at 0, 1/4 and 1/2 of the side, and each is half as long as the side."""
    (height, width), fine = maps.shape[1:], maps.repeat_interleave(4, 1).repeat_interleave(4, 2)
    starts = [(i, j) for i in range(3) for j in range(3)]
    return torch.stack(
        [fine[:, i * height : (i + 2) * height, j * width : (j + 2) * width].mean((1, 2)) for i, j in starts], 1
    )


@pytest.mark.parametrize(("second", "side"), [(0, 18), (2, 18), (0, 130)])
def test_the_formula(second: int, side: int) -> None:
    patches, images = _patches((2, 16, side), second=second), torch.rand(3, 2, 16, side) * 2 - 1
    both = torch.stack([_by_hand(patches, x) + _by_hand(patches, x.flip(2)) for x in images]).sqrt()
    wanted = F.normalize((both - patches.mean.double()) * patches.scale.double(), dim=1)
    assert bool((both > 0).any()) and torch.allclose(patches(images).double(), wanted, atol=1e-4)
    assert torch.allclose(patches(images).norm(dim=1), torch.ones(3))


def test_large_images_have_patches_at_a_stated_stride() -> None:
    for side, stride in ((32, 1), (127, 1), (128, 2), (224, 3), (1024, 16)):
        bank = Bank((1, side, side), 5, 2)
        assert bank.stride == stride and bank.positions[0] <= 128
        assert (bank.positions[0] - 1) * stride + 5 <= side < bank.positions[0] * stride + 5


def test_a_mirror_changes_nothing() -> None:
    patches, images = _patches(), torch.rand(3, 2, 13, 15) * 2 - 1
    assert torch.allclose(patches(images), patches(images.flip(3)), atol=1e-6)


def test_small_and_huge_images_are_refused() -> None:
    for side in (8, 4096):
        with pytest.raises(ConfigError, match=f"10 to 1,024 pixels per side, not {side}x{side}"):
            build("patches-256", (3, side, side), classes=2, seed=0)


def test_one_step_of_agreement_is_the_mean() -> None:
    centred, rows = Centred(6), torch.randn(9, 6)
    Agreement(centred)(rows).mean().backward()
    assert centred.centre.grad is not None and torch.allclose(-centred.centre.grad, rows.mean(0))
    with torch.no_grad():
        centred.centre.copy_(rows.mean(0))
    assert torch.allclose(centred(rows), F.normalize(rows - rows.mean(0), dim=1))


@pytest.mark.parametrize(("symmetry", "views"), [("none", 1), ("mirror", 2), ("rotations", 8)])
def test_views_of_a_symmetry_change_nothing(symmetry: str, views: int) -> None:
    """Features are those of the formula over all views, and the same for each view of the image."""
    patches, images = _patches((2, 13, 13), symmetry=symmetry), torch.rand(2, 2, 13, 13) * 2 - 1
    turned = views_of(images, symmetry)
    distinct = {view.numpy().tobytes() for view in turned}
    assert len(turned) == len(distinct) == views
    total = torch.stack([sum(_by_hand(patches, view[i]) for view in turned) for i in range(len(images))])
    wanted = F.normalize((total.sqrt() - patches.mean.double()) * patches.scale.double(), dim=1)
    assert torch.allclose(patches(images).double(), wanted, atol=1e-4)
    for view in turned:
        assert torch.allclose(patches(view.contiguous()), patches(images), atol=1e-5)
    other = torch.rot90(images, 1, (2, 3)) if symmetry == "mirror" else images.flip(3)
    assert torch.allclose(patches(other), patches(images), atol=1e-5) == (symmetry == "rotations")


def test_rotations_need_square_images() -> None:
    with pytest.raises(ConfigError, match="images of 16x18 are not square"):
        build("patches-256-rotations", (3, 16, 18), classes=2, seed=0)


def test_coarse_patches_are_patches_of_the_image_at_half_its_size() -> None:
    fine, coarse = Bank((2, 10, 11), 4, 3), Bank((2, 20, 23), 4, 3, reduction=2)
    coarse.load_state_dict(fine.state_dict())
    images = torch.rand(2, 2, 20, 23)
    assert torch.equal(coarse(images), fine(F.avg_pool2d(images, 2))) and coarse.positions == fine.positions
    patches = Patches((2, 20, 23), {5: 4}, halved={5: 3})
    assert patches(images).shape == (2, patches.width) == (2, 2 * 9 * 7)
    with pytest.raises(ConfigError, match="20 to 1,024 pixels per side, not 18x30"):
        Patches((2, 18, 30), {}, halved={5: 3})
