"""From noise to samples: one pure function for each sampler, all with one signature.

    sampler(denoiser, noise, labels, sigmas=..., guide=None, coins=None) -> samples

`noise` is standard normal, in float64 so that many small steps do not add up to errors; `sigmas` falls and ends with
0. `guide(x, sigma, labels)` is the gradient of a log-density ratio at x, which is added to the score: the probability
flow dx = -sigma score(x; sigma) dsigma then leads to the guided density (Kim et al. 2023).
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


def falling_sigmas(steps: int = 18, *, low: float = 0.002, high: float = 80.0, rho: float = 7.0) -> list[float]:
    """sigma_i = (high^(1/rho) + i/(N-1) (low^(1/rho) - high^(1/rho)))^rho, then 0 (Karras et al. 2022, eq. 5)."""
    if steps < 2:
        raise ConfigError(f"a sampler needs at least 2 steps, not {steps}.")
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
    """Algorithm 1 of Karras et al. 2022 (no churn): an error of order 2 with two denoisings a step."""
    x = sigmas[0] * noise
    for sigma, after in pairwise(sigmas):
        d = _slope(denoiser, x, sigma, labels, guide)
        ahead = x + (after - sigma) * d
        if after > 0:
            d = (d + _slope(denoiser, ahead, after, labels, guide)) / 2
            ahead = x + (after - sigma) * d
        x = ahead
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
    """One denoising a step, and an error of order 1; the same as DDIM (Song et al. 2021)."""
    x = sigmas[0] * noise
    for sigma, after in pairwise(sigmas):
        x = x + (after - sigma) * _slope(denoiser, x, sigma, labels, guide)
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
    """Each step draws from q(x_after | x, clean = D(x)), eq. 6 and 7 of Ho et al. 2020, with x not scaled down."""
    x = sigmas[0] * noise
    for sigma, after in pairwise(sigmas):
        clean = x - sigma * _slope(denoiser, x, sigma, labels, guide)
        share = (after / sigma) ** 2
        fresh = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=rng)
        x = clean + share * (x - clean) + after * (1 - share) ** 0.5 * fresh
    return x


SAMPLERS: dict[str, Sampler] = {"heun": heun, "euler": euler, "ancestral": ancestral}


def _slope(denoiser: Denoiser, x: Tensor, sigma: float, labels: Tensor, guide: Guide | None) -> Tensor:
    """dx/dsigma = (x - D(x; sigma)) / sigma (eq. 3), less sigma times the guide's gradient."""
    level = torch.full((len(x),), sigma, dtype=x.dtype, device=x.device)
    d = (x - denoiser(x, level, labels)) / sigma
    return d if guide is None else d - sigma * guide(x, level, labels)
