"""Samplers with an exact denoiser: the order of their error, the density of their samples, and guides."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.public.diffusion import methods
from dpvision.public.diffusion.methods import SAMPLERS, ancestral, euler, heun, karras_sigmas

LABELS = torch.zeros(1, dtype=torch.long)


def gaussian(mean: float, spread: float):  # type: ignore[no-untyped-def]
    """D(x; sigma) = E[y | x] for y ~ N(mean, spread^2)."""

    def denoiser(x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        s = sigma.reshape(-1, 1)
        return mean + spread**2 / (spread**2 + s**2) * (x - mean)

    return denoiser


def exact(x: Tensor, mean: float, spread: float, high: float) -> Tensor:
    """The end of the flow, which preserves (x - mean) / sqrt(spread^2 + sigma^2)."""
    return mean + (x - mean) * spread / math.sqrt(spread**2 + high**2)


def test_levels_are_those_of_the_paper() -> None:
    sigmas = karras_sigmas()
    assert (
        len(sigmas) == 19 and sigmas[0] == pytest.approx(80) and sigmas[-2] == pytest.approx(0.002) and sigmas[-1] == 0
    )
    assert sigmas[1] == pytest.approx((80 ** (1 / 7) + (0.002 ** (1 / 7) - 80 ** (1 / 7)) / 17) ** 7)
    with pytest.raises(ConfigError, match="at least 2"):
        karras_sigmas(1)


@pytest.mark.parametrize(("sampler", "order"), [(euler, 1), (heun, 2)])
def test_the_order_of_the_error(sampler, order: int) -> None:  # type: ignore[no-untyped-def]
    """Twice the number of steps gives half the error, or a quarter of it. The last step, to 0, is Euler's in both and below 0.002."""
    noise, errors = torch.ones(1, 1, dtype=torch.float64), []
    for steps in (64, 128, 256):
        x = sampler(gaussian(0.3, 0.5), noise, LABELS, sigmas=karras_sigmas(steps, low=1e-4))
        errors.append((x - exact(80 * noise, 0.3, 0.5, 80)).abs().item())
    ratios = [math.log2(a / b) for a, b in pairwise(errors)]
    assert ratios == pytest.approx([order] * 2, abs=0.2), errors


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_density_at_the_end(name: str) -> None:
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, 1, dtype=torch.float64, generator=rng)
    sigmas = methods.ddpm_chain(200) if name == "ancestral" else karras_sigmas(160)
    x = SAMPLERS[name](gaussian(0.3, 0.5), noise, LABELS, sigmas=sigmas, rng=rng)
    assert x.mean().item() == pytest.approx(0.3, abs=0.02)
    assert x.std().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_perfect_guide_corrects_a_wrong_model(name: str) -> None:
    """The model has N(0, 1/4), the data N(1/2, 1/4): the gradient of the log ratio is (1/2) / (1/4 + s^2)."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, 1, dtype=torch.float64, generator=rng)
    sigmas = methods.ddpm_chain(200) if name == "ancestral" else karras_sigmas(160)

    def guide(x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        return (0.5 / (0.25 + sigma**2)).reshape(-1, 1).expand_as(x)

    x = SAMPLERS[name](gaussian(0.0, 0.5), noise, LABELS, sigmas=sigmas, guide=guide, rng=rng)
    assert x.mean().item() == pytest.approx(0.5, abs=0.03)
    assert x.std().item() == pytest.approx(0.5, abs=0.03)


def test_ancestral_is_a_function_of_its_generator() -> None:
    noise = torch.ones(5, 1, dtype=torch.float64)
    a, b, c = (
        ancestral(gaussian(0, 0.5), noise, LABELS, sigmas=methods.ddpm_chain(20), rng=torch.Generator().manual_seed(s))
        for s in (1, 1, 2)
    )
    assert torch.equal(a, b) and not torch.equal(a, c)
