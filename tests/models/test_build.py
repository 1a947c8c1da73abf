"""Every model by name: shapes, the sizes that papers report, and the trial before private training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpvision.errors import ConfigError
from dpvision.models import MODELS, build
from dpvision.models.resnets import resnet9
from dpvision.models.small import small_alexnet
from dpvision.models.vit import Vit
from tests.models.sizes import size_of
from tests.private.engine.oracle import each_loss, verify

GREY, COLOUR, DERMA, LARGE = (1, 28, 28), (3, 32, 32), (3, 28, 28), (3, 64, 64)
# Too large to run here; their own tests run a small one.
HEAVY = {
    *("clip-vit-b16", "clip-vit-b32", "dinov2-vitb14", "dinov2-vits14", "dinov2-vits14-112", "dinov2-vits14-224"),
    *("siglip-b16", "small-alexnet", "wrn-40-4"),
}


@pytest.mark.parametrize(
    ("name", "shape", "weights"),
    [
        ("dinov2-vits14", COLOUR, 22_056_192 + 3_850),  # as published, and the head
        ("dpmix-cnn", (1, 32, 32), 357_690),
        ("dpmix-cnn", COLOUR, 359_290),
        ("dpmix-cnn", GREY, 285_690),
        ("efficientnet-lite0", COLOUR, 4_631_000 - 990 * 1_281),  # as published with 1,000 classes, less the scales
        ("linear", GREY, 7_850),
        ("resnet-9", COLOUR, 2_448_714),
        ("resnet-9-small", COLOUR, 155_994),
        ("scatter-cnn", COLOUR, 187_210),
        ("scatter-cnn", GREY, 33_066),
        ("scatter-linear", COLOUR, 155_530),
        ("scatter-linear", GREY, 39_700),
        ("small-alexnet", LARGE, 58_194_922),
        ("small-alexnet", COLOUR, 26_737_642),
        ("tanh-cnn", GREY, 26_010),
        ("tanh-cnn", COLOUR, 550_570),
        ("vit-tiny", COLOUR, 108_362),
    ],
)
def test_numbers_of_weights(name: str, shape: tuple[int, int, int], weights: int) -> None:
    assert size_of(name, shape) == weights


@pytest.mark.parametrize("name", sorted(set(MODELS) - HEAVY))
@pytest.mark.parametrize("shape", [GREY, COLOUR, DERMA])
def test_one_output_for_each_class(name: str, shape: tuple[int, int, int]) -> None:
    model = build(name, shape, classes=7, seed=0)
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        outputs = model(images)
    assert outputs.shape == (2, 7) and bool(torch.isfinite(outputs).all())
    assert not [b for b in model.state_dict() if b not in dict(model.named_parameters())]  # only weights are released


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("dpmix-cnn", (3, 8, 8)),
        ("scatter-linear", (3, 8, 8)),
        ("scatter-cnn", (3, 8, 8)),
        ("scatter-cnn", (1, 12, 12)),
        ("tanh-cnn", (1, 14, 16)),
        ("tanh-cnn", (3, 8, 8)),
        ("vit-tiny", (1, 8, 12)),
    ],
)
def test_images_are_treated_alone(name: str, shape: tuple[int, int, int]) -> None:
    verify(build(name, shape, classes=5, seed=0), each_loss, shape, 5)


def test_images_are_treated_alone_by_small_versions_of_large_networks() -> None:
    verify(resnet9((3, 16, 16), 5, width=4), each_loss, (3, 16, 16), 5)
    verify(small_alexnet((3, 15, 15), 5, width=16, hidden=32), each_loss, (3, 15, 15), 5)
    resized = Vit(3, 5, patch=2, grid=(5, 5), width=16, depth=1, heads=2)
    verify(resized, each_loss, (3, 6, 8), 5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("dpmix-cnn", (1, 3, 8)),
        ("resnet-9", (3, 7, 32)),
        ("scatter-linear", (1, 7, 28)),
        ("scatter-linear", (1, 28, 257)),
        ("small-alexnet", (3, 14, 64)),
        ("tanh-cnn", (1, 13, 28)),
        ("tanh-cnn", (3, 7, 32)),
        ("vit-tiny", (3, 30, 32)),
    ],
)
def test_images_that_do_not_fit_are_refused_with_a_fix(name: str, shape: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=rf"{shape[1]}x{shape[2]}.*Fix: "):
        build(name, shape, classes=10, seed=0)


@pytest.mark.parametrize("name", ["tanh-cnn", "resnet-9-small", "scatter-cnn", "vit-tiny"])
def test_seeds_fix_the_first_weights(name: str) -> None:
    one, same, other = (build(name, COLOUR, classes=10, seed=s) for s in (1, 1, 2))
    pairs = list(zip(one.parameters(), same.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs) and not all(torch.equal(a, c) for a, _, c in pairs)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'resnet-9'"):
        build("resnet9", COLOUR, classes=10, seed=0)
    with pytest.raises(ConfigError, match="scatter-linear"):
        build("zzz", COLOUR, classes=10, seed=0)


def test_no_model_keeps_batch_statistics() -> None:
    for name in MODELS:
        with torch.device("meta"):
            model = build(name, COLOUR, classes=10, seed=0)
        assert not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in model.modules())
