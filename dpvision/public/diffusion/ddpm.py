"""DDPM (Ho et al. 2020), for comparison: linear betas, and a loss on the noise.

The chain x_t = sqrt(abar_t) y + sqrt(1 - abar_t) n is written as x = y + sigma_t n, which is x_t / sqrt(abar_t) with
sigma_t = sqrt((1 - abar_t) / abar_t): so it has a denoiser like that of EDM, which every sampler can use.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.public.diffusion.edm import Network, expand_to

TIMES = 1000
BETA_FIRST, BETA_LAST = 1e-4, 0.02


def levels() -> Tensor:
    """sigma_t for t = 1 ... 1000, in float64."""
    beta = torch.linspace(BETA_FIRST, BETA_LAST, TIMES, dtype=torch.float64)
    abar = (1 - beta).cumprod(0)
    return ((1 - abar) / abar).sqrt()


def chain(steps: int) -> list[float]:
    """`steps` levels of the chain, evenly spaced and decreasing from the last, then 0."""
    if not 2 <= steps <= TIMES:
        raise ConfigError(f"steps is {steps}: a sampler takes 2 to {TIMES} steps of the chain.")
    times = torch.linspace(TIMES - 1, 0, steps).round().long()
    return [*levels()[times].tolist(), 0.0]


def denoise(network: Network, x: Tensor, sigma: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """D(x; sigma_t) = x - sigma_t epsilon(x_t, t), from eq. 11; t is the time with the nearest level."""
    s = expand_to(sigma, x)
    t = (levels().to(sigma.device) - sigma.double()[:, None]).abs().argmin(1)
    x_t = x / (1 + s**2).sqrt()
    return x - s * network(x_t.float(), t.float(), labels, augment).to(x.dtype)


def loss(network: Network, y: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """E|n - epsilon(x_t, t)|^2, eq. 14, with torch's current generator."""
    t = torch.randint(TIMES, (len(y),), device=y.device)
    s = expand_to(levels().to(y.device)[t].to(y.dtype), y)
    n = torch.randn_like(y)
    x_t = (y + s * n) / (1 + s**2).sqrt()
    return ((n - network(x_t, t.float(), labels, augment)) ** 2).mean()
