"""The formulas of EDM compared with numbers computed by hand, and the denoiser with an exact posterior mean."""

from __future__ import annotations

import math

import pytest
import torch

from dpvision.public.diffusion import methods
from examples.points import MLP, fit_points


def test_formulas_at_sigma_one() -> None:
    """sigma = 1, sigma_data = 1/2: sigma^2 + sigma_data^2 = 5/4."""
    one = torch.ones(1, dtype=torch.float64)
    assert methods.c_skip(one).item() == pytest.approx(1 / 5)
    assert methods.c_out(one).item() == pytest.approx(1 / math.sqrt(5))
    assert methods.c_in(one).item() == pytest.approx(2 / math.sqrt(5))
    assert methods.c_noise(math.e * one).item() == pytest.approx(1 / 4)
    assert methods.weight(one).item() == pytest.approx(5)


@pytest.mark.parametrize("sigma", [0.002, 0.3, 80.0])
def test_every_level_weighs_the_same_and_enters_with_variance_one(sigma: float) -> None:
    s = torch.tensor([sigma], dtype=torch.float64)
    assert (methods.weight(s) * methods.c_out(s) ** 2).item() == pytest.approx(1)
    assert methods.c_in(s).item() * math.sqrt(sigma**2 + 0.25) == pytest.approx(1)


def test_a_network_that_answers_zero_gives_c_skip_x_for_any_shape() -> None:
    for shape in ((3, 2), (3, 1, 4, 5)):
        x, sigma = torch.randn(shape, dtype=torch.float64), torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
        given = methods.edm_denoise(lambda x, *_: torch.zeros_like(x), x, sigma, torch.zeros(3, dtype=torch.long))
        assert given.dtype == torch.float64
        for row, s in enumerate(sigma.tolist()):
            assert torch.allclose(given[row], x[row] * 0.25 / (s * s + 0.25))


def test_the_loss_of_a_zero_network_is_its_expectation() -> None:
    """With y ~ N(0, 1/4) and F = 0 the effective target has variance 1 at every level: the loss is 1."""
    torch.manual_seed(0)
    y = 0.5 * torch.randn(40_000, 2)
    loss = methods.edm_loss(lambda x, *_: torch.zeros_like(x), y, torch.zeros(len(y), dtype=torch.long))
    assert loss.item() == pytest.approx(1, abs=0.03)


def test_mean_of_weights() -> None:
    assert methods.ema_decay(10**9, 500_000) == pytest.approx(0.5)  # one half-life a step
    assert methods.ema_decay(1000, 50) == pytest.approx(0.5)  # the half-life is a twentieth of what was seen
    assert methods.ema_decay(0, 64) == 0.0  # the first weights are forgotten


def test_a_short_fit_finds_the_posterior_mean_of_a_mixture() -> None:
    """Two classes at (+-1, 0) / 2, each N(centre, 0.2^2): D(x) = centre + 0.04 / (0.04 + sigma^2) (x - centre)."""
    torch.manual_seed(0)
    labels = torch.arange(4000) % 2
    centres = torch.tensor([[-0.5, 0.0], [0.5, 0.0]])
    y = centres[labels] + 0.2 * torch.randn(4000, 2)
    fitted = fit_points(
        MLP(2, classes=2),
        lambda f, chosen: methods.edm_loss(f, y[chosen], labels[chosen]),
        count=4000,
        steps=800,
        lr=3e-3,
    )
    for sigma in (0.1, 0.3, 1.0):
        x = y[:1000] + sigma * torch.randn(1000, 2)
        with torch.no_grad():
            given = methods.edm_denoise(fitted, x, torch.full((1000,), sigma), labels[:1000])
        centre = centres[labels[:1000]]
        exact = centre + 0.04 / (0.04 + sigma**2) * (x - centre)
        error = (given - exact).square().mean().sqrt().item()
        assert error < 0.03, (sigma, error)  # the points themselves spread by 0.2
