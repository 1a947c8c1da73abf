"""Optimiser steps compared with numbers computed by hand; and SAM finds the flatter of two minima."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from dpvision.public.optimisers import ETA, Evaluate, adversarial_images, sam, sgd

PLAIN = {"rate": 0.1, "mu": 0.0, "decay": 0.0}


def slope_of(loss: Callable[..., Tensor], weights: dict[str, Tensor]) -> Evaluate:
    def slope() -> tuple[Tensor, list[Tensor]]:
        value = loss(*weights.values())
        return value.detach(), list(torch.autograd.grad(value, list(weights.values())))

    return slope


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def bowl(w: Tensor, *others: Tensor) -> Tensor:
    """(w1^2 + 2 w2^2) / 2, plus the others."""
    return (w[0] ** 2 + 2 * w[1] ** 2) / 2 + sum(other.sum() for other in others)


def test_sgd_with_momentum_and_decay() -> None:
    weights, momenta = {"w": numbers(3, 2)}, [torch.tensor([1.0, -1.0], dtype=torch.float64)]
    loss = sgd(weights, momenta, slope_of(bowl, weights), rate=0.1, mu=0.9, decay=0.5)
    assert loss.item() == 8.5
    assert momenta[0].tolist() == pytest.approx([0.9 + 3 + 1.5, -0.9 + 4 + 1.0])
    assert weights["w"].tolist() == pytest.approx([3 - 0.54, 2 - 0.41])


def test_sam_takes_the_gradient_at_the_worst_point() -> None:
    """h = (3, 4), so e = 0.5 (0.6, 0.8), and the slope at (3.3, 2.4) is (3.3, 4.8)."""
    weights, momenta = {"w": numbers(3, 2)}, [torch.zeros(2, dtype=torch.float64)]
    loss = sam(weights, momenta, slope_of(bowl, weights), rate=0.1, mu=0.9, decay=0.5, rho=0.5)
    assert loss.item() == 8.5, "the loss at w"
    assert momenta[0].tolist() == pytest.approx([3.3 + 1.5, 4.8 + 1.0]), "decay of w, not of w + e"
    assert weights["w"].tolist() == pytest.approx([3 - 0.48, 2 - 0.58])


def test_the_norm_is_over_all_weights_together() -> None:
    """h = (2, 0) and (1, 2), of norm 3 together."""
    weights = {"a": numbers(2, 0), "b": numbers(0, 0)}
    loss = lambda a, b: bowl(a) + b[0] + 2 * b[1] + (b**2).sum()  # noqa: E731
    momenta = [torch.zeros(2, dtype=torch.float64) for _ in weights]
    sam(weights, momenta, slope_of(loss, weights), **PLAIN, rho=3.0)
    assert momenta[0].tolist() == pytest.approx([2 + 2, 0])
    assert momenta[1].tolist() == pytest.approx([1 + 2 * 1, 2 + 2 * 2])


def test_asam_scales_weights_but_not_biases() -> None:
    """T = (4, 3) and 1, so T h = (12, -12) and 1 of norm 17; e = 1.7 T^2 h / 17 = (4.8, -3.6)."""
    weights = {"layer.weight": numbers(3, -2), "layer.bias": numbers(0.5)}
    loss = lambda w, b: bowl(w) + b.sum() + (b**2).sum() * 0  # noqa: E731
    momenta = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    sam(weights, momenta, slope_of(loss, weights), **PLAIN, rho=1.7, eta=1.0)
    assert momenta[0].tolist() == pytest.approx([3 + 4.8, 2 * (-2 - 3.6)])
    assert momenta[1].tolist() == pytest.approx([1.0])
    seen: list[float] = []

    def watched(w: Tensor, b: Tensor) -> Tensor:
        seen.append(b.item())
        return loss(w, b)

    weights = {"layer.weight": numbers(3, -2), "layer.bias": numbers(0.5)}
    sam(weights, momenta, slope_of(watched, weights), **PLAIN, rho=1.7, eta=1.0)
    assert seen == pytest.approx([0.5, 0.5 + 1.7 / 17])


def test_scaling_a_layer_up_and_the_next_down_leaves_asam_alone() -> None:
    """l = (u v - 1)^2 at (u, v) and at (4 u, v / 4): the same e in l; SAM's differs."""

    def moved(step: Callable[..., Tensor], scale: float) -> float:
        weights = {"u.weight": numbers(2.0 * scale), "v.weight": numbers(1.0 / scale)}
        seen: list[float] = []

        def loss(u: Tensor, v: Tensor) -> Tensor:
            seen.append((u * v).item())
            return ((u * v - 1) ** 2).sum()

        momenta = [torch.zeros(1, dtype=torch.float64) for _ in weights]
        step(weights, momenta, slope_of(loss, weights), **PLAIN)
        return seen[1]

    adaptive = partial(sam, rho=0.2, eta=0.0)
    assert moved(adaptive, 4.0) == pytest.approx(moved(adaptive, 1.0))
    assert moved(partial(sam, rho=0.2), 4.0) != pytest.approx(moved(partial(sam, rho=0.2), 1.0), rel=0.1)


@pytest.mark.parametrize("step", [partial(sam, rho=0.5), partial(sam, rho=0.5, eta=ETA)], ids=["sam", "asam"])
def test_a_stationary_point_stays(step: Callable[..., Tensor]) -> None:
    weights, momenta = {"w.weight": numbers(0, 0)}, [torch.zeros(2, dtype=torch.float64)]
    step(weights, momenta, slope_of(bowl, weights), **PLAIN)
    assert weights["w.weight"].tolist() == [0, 0]


@pytest.mark.parametrize("step", [partial(sam, rho=0.7), partial(sam, rho=0.7, eta=ETA)], ids=["sam", "asam"])
def test_without_a_rate_every_weight_keeps_its_bits(step: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    weights = {"w.weight": torch.randn(1000).requires_grad_(), "w.bias": torch.randn(1000).requires_grad_()}
    before = [w.detach().clone() for w in weights.values()]
    loss = lambda a, b: (a.sin() * b).sum()  # noqa: E731
    step(weights, [torch.zeros(1000)] * 2, slope_of(loss, weights), rate=0.0, mu=0.0, decay=0.0)
    assert all(torch.equal(w, old) for w, old in zip(weights.values(), before, strict=True))


def test_sam_finds_the_flatter_of_two_minima() -> None:
    """l = (u v - 1)^2 / 2 is zero along a valley whose curvature is u^2 + v^2: sharp at (3, 1/3), flattest at (1, 1)."""
    ends = {}
    for name, step in (("sgd", sgd), ("sam", partial(sam, rho=0.2))):
        weights, momenta = {"w": numbers(3, 0.4)}, [torch.zeros(2, dtype=torch.float64)]
        slope = slope_of(lambda w: (w[0] * w[1] - 1) ** 2 / 2, weights)
        for _ in range(700):
            loss = step(weights, momenta, slope, rate=0.05, mu=0.0, decay=0.0)
        ends[name] = weights["w"].tolist()
        assert loss.item() < 0.01
    assert ends["sgd"] == pytest.approx([3, 1 / 3], abs=0.03)
    assert ends["sam"] == pytest.approx([1, 1], abs=0.2)


def test_pgd_on_a_bowl() -> None:
    """Pixels go away from 0 by twice the radius, as pixels are in [-1, 1]; one without slope stays."""
    images = torch.tensor([[[[0.5, -0.25], [0.0, 0.95]]]])
    result = adversarial_images(lambda x: (x**2).sum(), images, radius=0.1, steps=10)
    assert result.flatten().tolist() == pytest.approx([0.7, -0.45, 0.0, 1.0])


def test_pgd_steps_are_a_quarter_of_the_cube_at_ten() -> None:
    """a = 2.5 r / steps: towards the top of a hill at 0.03 it goes to 0.1, back to 0, and so on."""
    hill = lambda x: -((x - 0.03) ** 2).sum()  # noqa: E731
    for steps, ends in ((5, 0.1), (10, 0.0), (1, 0.2)):
        result = adversarial_images(hill, torch.zeros(1, 1, 1, 1), radius=0.1, steps=steps)
        assert result.item() == pytest.approx(ends, abs=1e-6)


def test_pgd_starts_at_the_given_point() -> None:
    """A point on either side of the hill."""
    images, r = torch.zeros(1, 1, 1, 2), 0.2
    result = adversarial_images(
        lambda x: (x**2).sum(), images, radius=0.1, steps=3, start=torch.tensor([[[[0.5, -0.5]]]])
    )
    assert result.flatten().tolist() == pytest.approx([r, -r])
    still = adversarial_images(
        lambda x: (x * 0).sum(), images, radius=0.1, steps=3, start=torch.full((1, 1, 1, 2), 0.5)
    )
    assert still.flatten().tolist() == pytest.approx([0.1, 0.1])


def test_pgd_increases_the_loss_of_a_network_and_stays_within_its_radius() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 20), torch.nn.Tanh(), torch.nn.Linear(20, 5))
    images, labels = torch.rand(30, 3, 4, 4) * 2 - 1, torch.arange(30) % 5
    loss = lambda x: torch.nn.functional.cross_entropy(network(x), labels, reduction="sum")  # noqa: E731
    result = adversarial_images(loss, images, radius=8 / 255, steps=10)
    assert (result - images).abs().max() <= 16 / 255 + 1e-6 and result.abs().max() <= 1
    flipped = (images + (result - images).roll(1, 0)).clamp(-1, 1)
    assert loss(result) > loss(images) + 1 and loss(result) > loss(flipped)
    assert not result.requires_grad and all(p.grad is None for p in network.parameters())
