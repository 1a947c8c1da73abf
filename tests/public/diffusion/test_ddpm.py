"""DDPM's chain: its levels, its posterior, and its denoiser."""

from __future__ import annotations

import math

import pytest
import torch

from dpvision.errors import ConfigError
from dpvision.public.diffusion import methods
from dpvision.public.diffusion.methods import ancestral
from examples.points import MLP, fit_points


def test_levels_by_hand() -> None:
    """abar_1 = 1 - 1e-4; at t = 1000 almost no signal is left (Ho et al. 2020: 4e-5)."""
    sigma = methods.ddpm_levels()
    assert sigma[0].item() == pytest.approx(math.sqrt(1e-4 / (1 - 1e-4)))
    assert 1 / (1 + sigma[-1].item() ** 2) == pytest.approx(4.0358e-5, rel=1e-3)
    assert methods.ddpm_chain(1000)[:-1] == sigma.flip(0).tolist()
    with pytest.raises(ConfigError, match="1000"):
        methods.ddpm_chain(1001)


def test_a_step_of_the_chain_is_the_posterior_of_ho_et_al() -> None:
    """Eq. 7: mean sqrt(abar') beta / (1 - abar) y + sqrt(alpha) (1 - abar') / (1 - abar) x_t, variance beta~."""
    beta = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    abar = (1 - beta).cumprod(0)
    t, y, x_t = 500, 0.3, 1.7
    mean = (abar[t - 1].sqrt() * beta[t] * y + (1 - beta[t]).sqrt() * (1 - abar[t - 1]) * x_t) / (1 - abar[t])
    spread = ((1 - abar[t - 1]) / (1 - abar[t]) * beta[t]).sqrt()
    sigmas = methods.ddpm_levels()[[t, t - 1]].tolist()
    start = torch.full((200_000, 1), x_t / abar[t].sqrt().item() / sigmas[0], dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    x = ancestral(lambda x, *_: torch.full_like(x, y), start, torch.zeros(1), sigmas=sigmas, rng=rng)
    x = x * abar[t - 1].sqrt()
    assert x.mean().item() == pytest.approx(mean.item(), abs=4 * spread.item() / math.sqrt(200_000))
    assert x.std().item() == pytest.approx(spread.item(), rel=0.01)


def test_a_short_fit_draws_the_right_density() -> None:
    torch.manual_seed(0)
    labels = torch.arange(2000) % 2
    y = torch.tensor([[-0.5, 0.0], [0.5, 0.0]])[labels] + 0.1 * torch.randn(2000, 2)
    fitted = fit_points(
        MLP(2, classes=2),
        lambda f, chosen: methods.ddpm_loss(f, y[chosen], labels[chosen]),
        count=2000,
        steps=800,
        lr=3e-3,
    )
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(1000, 2, dtype=torch.float64, generator=rng)
    with torch.no_grad():
        x = ancestral(
            lambda *a: methods.ddpm_denoise(fitted, *a), noise, labels[:1000], sigmas=methods.ddpm_chain(100), rng=rng
        )
    for label, centre in ((0, -0.5), (1, 0.5)):
        mine = x[labels[:1000] == label]
        assert mine.mean(0).tolist() == pytest.approx([centre, 0.0], abs=0.08)
        assert mine.std(0).min().item() > 0.05 and mine.std(0).max().item() < 0.25
