"""The four methods by which public gradients assist: each follows its formula, and none changes the bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpvision.models import build
from dpvision.private.engine import ClippedSum, Public
from dpvision.private.training.network import each_loss
from dpvision.public import assist
from dpvision.public.assist import Assisted

CLASSES, CLIP, VIEWS, UNITS = 4, 0.7, 2, 6
RNG = torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return build("small-cnn", (1, 8, 8), classes=CLASSES, seed=0)


def _batch(units: int, *, seed: int = 1) -> tuple[Tensor, Tensor, list[int]]:
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand(units * VIEWS, 1, 8, 8, generator=rng) * 2 - 1
    labels = torch.arange(units).repeat_interleave(VIEWS) % CLASSES
    return images, labels, [VIEWS] * units


def _gradients(model: torch.nn.Module, count: int) -> Tensor:
    results = []
    for number in range(count):
        images, labels, _ = _batch(4, seed=100 + number)
        results.append(assist.mean_gradient(model, each_loss, images, labels))
    return torch.stack(results)


def _weights(model: torch.nn.Module) -> Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def _each(model: torch.nn.Module) -> dict[str, Assisted]:
    public, weights = _gradients(model, VIEWS), _weights(model)
    return {
        "none": assist.ALONE,
        "weights": assist.weight_multiplicity(public, weights, radius=0.1),
        "adaptive": assist.weight_multiplicity(public, weights, radius=0.5, adaptive=True),
        "dope": assist.dope(public[0]),
        "far": assist.dope(1e6 * public[0]),  # a public gradient that has gone wild
        "mirror": assist.mirror(public[0], share=0.3),
        "adadps": assist.adadps(assist.second_moment(public), floor=0.1),
        "steep": assist.adadps(assist.second_moment(public), floor=1e-9),
    }


HOSTILE = {
    "huge": (1e30, 0),
    "large": (1e4, 1),
    "tiny": (1e-30, 2),
    "zero": (0.0, 3),
    "nan": (math.nan, 0),
    "inf": (math.inf, 1),
    "minus inf": (-math.inf, 2),
    "denormal": (1e-42, 3),
    "duplicate": (None, 0),
    "wrong label": (0.5, 3),
}


@pytest.mark.parametrize("name", ["none", "weights", "adaptive", "dope", "far", "mirror", "adadps", "steep"])
@pytest.mark.parametrize("neighbour", HOSTILE)
def test_one_more_unit_moves_the_sum_by_at_most_c(model: torch.nn.Module, name: str, neighbour: str) -> None:
    engine, assisted = ClippedSum(model, each_loss, clip=CLIP), _each(model)[name]
    images, labels, views = _batch(UNITS)
    value, label = HOSTILE[neighbour]
    more = images[:VIEWS] if value is None else torch.full((VIEWS, 1, 8, 8), value)
    both = torch.cat([images, more]), torch.cat([labels, torch.full((VIEWS,), label)]), [*views, VIEWS]
    for some in (0, UNITS):
        before = engine(images[: some * VIEWS], labels[: some * VIEWS], views[:some], assisted.public)
        rows = torch.cat([torch.arange(some * VIEWS), torch.arange(UNITS * VIEWS, (UNITS + 1) * VIEWS)])
        after = engine(both[0][rows], both[1][rows], [VIEWS] * (some + 1), assisted.public)
        moved = float((after - before).norm())
        assert moved <= CLIP * (1 + 1e-4)
        if neighbour in ("nan", "inf", "minus inf"):
            assert moved == 0, "a broken unit contributes nothing, not even the shift"
        elif neighbour in ("duplicate", "wrong label"):
            assert moved > 0


def test_the_map_after_the_noise_does_not_see_the_data(model: torch.nn.Module) -> None:
    noisy = torch.randn(len(_weights(model)), dtype=torch.float64, generator=RNG)
    g = _gradients(model, 1)[0].double()
    result = _each(model)
    for name in ("none", "weights", "adadps"):
        assert torch.equal(result[name].finish(noisy), noisy)
    assert torch.allclose(result["dope"].finish(noisy), g + noisy, atol=0, rtol=0)
    assert torch.allclose(result["mirror"].finish(noisy), 0.3 * noisy + 0.7 * g)


def test_dope_is_its_formula(model: torch.nn.Module) -> None:
    """g_pub + sum_i clip(g_i - g_pub) / B, and without clipping the mean gradient of a whole batch again."""
    images, labels, views = _batch(UNITS)
    g = _gradients(model, 1)[0]
    gradients = ClippedSum(model, each_loss, clip=1e9).gradients(images, labels, views).double()
    bounded = sum(r * min(1.0, CLIP / float(r.norm())) for r in gradients - g.double())
    result = assist.dope(g)
    total = ClippedSum(model, each_loss, clip=CLIP)(images, labels, views, result.public)
    assert torch.allclose(total, torch.as_tensor(bounded), atol=1e-6)
    free = ClippedSum(model, each_loss, clip=1e3)(images, labels, views, result.public)
    assert torch.allclose(result.finish(free / UNITS), gradients.mean(0), atol=1e-5)


def test_weight_multiplicity_differentiates_each_view_at_weights_of_its_own(model: torch.nn.Module) -> None:
    images, labels, views = _batch(UNITS)
    public, weights = _gradients(model, VIEWS), _weights(model)
    result = assist.weight_multiplicity(public, weights, radius=0.1)
    assert result.public is not None
    gradients = ClippedSum(model, each_loss, clip=1.0).gradients(images, labels, views, result.public).double()
    moved, expected = build("small-cnn", (1, 8, 8), classes=CLASSES, seed=0), torch.zeros_like(gradients)
    for k in range(VIEWS):
        torch.nn.utils.vector_to_parameters(weights + 0.1 * public[k] / public[k].norm(), moved.parameters())
        for unit in range(UNITS):
            row = unit * VIEWS + k
            one = assist.mean_gradient(moved, each_loss, images[row : row + 1], labels[row : row + 1])
            expected[unit] += one.double() / VIEWS
    assert torch.allclose(gradients, expected, atol=1e-5)
    assert not torch.allclose(
        gradients, ClippedSum(model, each_loss, clip=1.0).gradients(images, labels, views).double()
    )


def test_ascent_has_the_radius_and_the_adaptive_one_favours_large_weights() -> None:
    g, w = torch.tensor([3.0, 4.0, 0.0]), torch.tensor([1.0, 0.0, 2.0])
    assert torch.allclose(assist.ascent(g, w, radius=0.5), torch.tensor([0.3, 0.4, 0.0]))
    size = torch.tensor([1.01, 0.01, 2.01])
    expected = 0.5 * size**2 * g / (size * g).norm()
    assert torch.allclose(assist.adaptive_ascent(g, w, radius=0.5), expected)
    assert torch.equal(assist.ascent(torch.zeros(3), w, radius=0.5), torch.zeros(3))
    assert torch.equal(assist.adaptive_ascent(torch.zeros(3), w, radius=0.5), torch.zeros(3))


def test_mirror_descent_follows_the_private_gradient_first_and_the_public_one_last() -> None:
    assert assist.share_of_private(0, horizon=100) == 1.0
    assert assist.share_of_private(50, horizon=100) == pytest.approx(math.sqrt(0.5))
    assert assist.share_of_private(100, horizon=100) == pytest.approx(0.0, abs=1e-12)
    assert assist.share_of_private(200, horizon=100) == pytest.approx(0.0, abs=1e-12)


def test_adadps_scales_by_the_public_second_moment() -> None:
    second = assist.second_moment(torch.tensor([[1.0, 3.0], [-1.0, 1.0]]))
    assert second.tolist() == [1.0, 5.0]
    public = assist.adadps(second, floor=0.0).public
    assert public is not None and public.scale is not None
    assert float(public.scale[0] / public.scale[1]) == pytest.approx(math.sqrt(5.0))
    assert float(public.scale.square().mean()) == pytest.approx(1.0)
    flat = assist.adadps(torch.zeros(3), floor=0.1).public
    assert flat is not None and flat.scale is not None and torch.allclose(flat.scale, torch.ones(3))


def test_a_public_vector_that_is_not_finite_is_refused(model: torch.nn.Module) -> None:
    images, labels, views = _batch(UNITS)
    bad = _gradients(model, 1)[0].fill_(math.nan)
    from dpvision.errors import ConfigError

    with pytest.raises(ConfigError, match="finite"):
        ClippedSum(model, each_loss, clip=1.0)(images, labels, views, Public(shift=bad))
