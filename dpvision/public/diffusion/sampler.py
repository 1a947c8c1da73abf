"""Samplers: one pure function each, all with one signature.

    sampler(denoiser, noise, labels, sigmas=..., guide=None, rng=None) -> samples

`noise` is standard normal, in float64 so that rounding errors of many small steps do not add up; `sigmas` decreases and
ends with 0. `guide(x, sigma, labels)` is the gradient of a log-density ratio at x, which is added to the score: the
probability flow dx = -sigma score(x; sigma) dsigma then leads to the guided density (Kim et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.public.diffusion.edm import Denoiser

Guide = Callable[[Tensor, Tensor, Tensor], Tensor]
Sampler = Callable[..., Tensor]


def karras_sigmas(steps: int = 18, *, low: float = 0.002, high: float = 80.0, rho: float = 7.0) -> list[float]:
    """sigma_i = (high^(1/rho) + i/(N-1) (low^(1/rho) - high^(1/rho)))^rho, then 0 (Karras et al. 2022, eq. 5)."""
    if steps < 2:
        raise ConfigError(f"steps is {steps}: a sampler needs at least 2.")
    a, b = high ** (1 / rho), low ** (1 / rho)
    return [(a + i / (steps - 1) * (b - a)) ** rho for i in range(steps)] + [0.0]


def heun(
    denoiser: Denoiser,
    noise: Tensor,
    labels: Tensor,
    *,
    sigmas: Sequence[float],
    guide: Guide | None = None,
    rng: torch.Generator | None = None,
) -> Tensor:
    """Algorithm 1 of Karras et al. 2022 (without churn): second order, with two denoisings per step."""
    x = sigmas[0] * noise
    for sigma, next_sigma in pairwise(sigmas):
        d = _slope(denoiser, x, sigma, labels, guide)
        x_next = x + (next_sigma - sigma) * d
        if next_sigma > 0:
            d = (d + _slope(denoiser, x_next, next_sigma, labels, guide)) / 2
            x_next = x + (next_sigma - sigma) * d
        x = x_next
    return x


def euler(
    denoiser: Denoiser,
    noise: Tensor,
    labels: Tensor,
    *,
    sigmas: Sequence[float],
    guide: Guide | None = None,
    rng: torch.Generator | None = None,
) -> Tensor:
    """First order, with one denoising per step; the same as DDIM (Song et al. 2021)."""
    x = sigmas[0] * noise
    for sigma, next_sigma in pairwise(sigmas):
        x = x + (next_sigma - sigma) * _slope(denoiser, x, sigma, labels, guide)
    return x


def ancestral(
    denoiser: Denoiser,
    noise: Tensor,
    labels: Tensor,
    *,
    sigmas: Sequence[float],
    guide: Guide | None = None,
    rng: torch.Generator | None = None,
) -> Tensor:
    """Draw each step from q(x_next | x, clean = D(x)), eq. 6 and 7 of Ho et al. 2020, without scaling x down."""
    x = sigmas[0] * noise
    for sigma, next_sigma in pairwise(sigmas):
        clean = x - sigma * _slope(denoiser, x, sigma, labels, guide)
        share = (next_sigma / sigma) ** 2
        step_noise = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=rng)
        x = clean + share * (x - clean) + next_sigma * (1 - share) ** 0.5 * step_noise
    return x


SAMPLERS: dict[str, Sampler] = {"heun": heun, "euler": euler, "ancestral": ancestral}


def _slope(denoiser: Denoiser, x: Tensor, sigma: float, labels: Tensor, guide: Guide | None) -> Tensor:
    """dx/dsigma = (x - D(x; sigma)) / sigma (eq. 3), less sigma times the guide's gradient."""
    level = torch.full((len(x),), sigma, dtype=x.dtype, device=x.device)
    d = (x - denoiser(x, level, labels)) / sigma
    return d if guide is None else d - sigma * guide(x, level, labels)
