"""Diffusion methods: EDM (Karras et al. 2022) and DDPM (Ho et al. 2020), and samplers for both.

Data y has a standard deviation of about 0.5, x = y + sigma n with n normal, and a denoiser D(x; sigma) estimates y.
Tensors may have any shape, such as images or points in a plane. Equation and table numbers for EDM are from its paper.

DDPM's chain x_t = sqrt(abar_t) y + sqrt(1 - abar_t) n is written as x = y + sigma_t n, which is x_t / sqrt(abar_t) with
sigma_t = sqrt((1 - abar_t) / abar_t). It therefore has a denoiser like that of EDM, and every sampler can use it.

    sampler(denoiser, noise, labels, sigmas=..., guide=None, rng=None) -> samples

A sampler is a pure function. `noise` is standard normal, in float64 so that rounding errors do not accumulate over many
small steps. `sigmas` decreases and ends with 0. `rng` is a CPU generator. `guide(x, sigma, labels)` is the gradient of
a log-density ratio at x, which is added to the score: the probability flow dx = -sigma score(x; sigma) dsigma then
leads to the guided density (Kim et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dpvision.errors import ConfigError

Network = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""F(x, noise, labels, augment): the raw network; noise and labels are (B,), augment is (B, 9) or None."""
Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""D(x, sigma, labels): the expected clean x; sigma is (B,)."""
Guide = Callable[[Tensor, Tensor, Tensor], Tensor]
Sampler = Callable[..., Tensor]
Levels = Sequence[float]
Rng = torch.Generator | None

SIGMA_DATA = 0.5
P_MEAN, P_STD = -1.2, 1.2  # ln sigma ~ N(P_mean, P_std^2), table 1
# The chain of DDPM.
TIMES = 1000
BETA_FIRST, BETA_LAST = 1e-4, 0.02


def c_skip(sigma: Tensor) -> Tensor:
    """Return the weight of the input in the denoiser (table 1, from eq. 147)."""
    return SIGMA_DATA**2 / (sigma**2 + SIGMA_DATA**2)


def c_out(sigma: Tensor) -> Tensor:
    """Return the weight of the network's output in the denoiser (table 1, from eq. 138)."""
    return sigma * SIGMA_DATA / (sigma**2 + SIGMA_DATA**2).sqrt()


def c_in(sigma: Tensor) -> Tensor:
    """Return the scale that gives the network's input a variance of 1 (table 1, from eq. 117)."""
    return 1 / (sigma**2 + SIGMA_DATA**2).sqrt()


def c_noise(sigma: Tensor) -> Tensor:
    """Return the noise level in the form that the network receives (table 1)."""
    return sigma.log() / 4


def weight(sigma: Tensor) -> Tensor:
    """Return lambda(sigma) = 1 / c_out^2 (eq. 144), with which all noise levels initially have the same weight."""
    return (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2


def edm_denoise(network: Network, x: Tensor, sigma: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """Return D(x; sigma) = c_skip x + c_out F(c_in x; c_noise) (eq. 7). The network computes in float32."""
    s = expand_to(sigma, x)
    raw = network((c_in(s) * x).float(), c_noise(sigma).float(), labels, augment)
    return c_skip(s) * x + c_out(s) * raw.to(x.dtype)


def edm_loss(network: Network, y: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """Return E[lambda(sigma) |D(y + sigma n; sigma) - y|^2] (eq. 2, table 1), with torch's default generator."""
    sigma = (P_MEAN + P_STD * torch.randn(len(y)).to(y.device)).exp()
    s = expand_to(sigma, y)
    x = y + s * normal_like(y)
    return (weight(s) * (edm_denoise(network, x, sigma, labels, augment) - y) ** 2).mean()


def normal_like(x: Tensor) -> Tensor:
    """Draw standard normal numbers of the shape and device of x. The CPU draws them, so all devices get the same."""
    return torch.randn_like(x, device="cpu").to(x.device)


def expand_to(sigma: Tensor, x: Tensor) -> Tensor:
    """Reshape (B,) to (B, 1, ...), to broadcast with x."""
    return sigma.reshape(-1, *[1] * (x.ndim - 1))


def ema_decay(seen: int, batch: int, *, half_life: float = 500_000, ramp: float = 0.05) -> float:
    """Return the decay of the weight average after `seen` images; its half-life grows, to forget the start."""
    return float(0.5 ** (batch / max(min(half_life, seen * ramp), 1e-8)))


def ddpm_levels() -> Tensor:
    """Return sigma_t for t = 1 ... 1000, in float64."""
    beta = torch.linspace(BETA_FIRST, BETA_LAST, TIMES, dtype=torch.float64)
    abar = (1 - beta).cumprod(0)
    return ((1 - abar) / abar).sqrt()


def ddpm_chain(steps: int) -> list[float]:
    """Return `steps` evenly spaced levels of the chain in decreasing order, then 0."""
    if not 2 <= steps <= TIMES:
        raise ConfigError(f"steps is {steps}: a sampler of the chain takes 2 to {TIMES} steps.")
    times = torch.linspace(TIMES - 1, 0, steps).round().long()
    return [*ddpm_levels()[times].tolist(), 0.0]


def ddpm_denoise(network: Network, x: Tensor, sigma: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """Return D(x; sigma_t) = x - sigma_t epsilon(x_t, t) (eq. 11), where t is the time with the nearest level."""
    s = expand_to(sigma, x)
    t = (ddpm_levels().to(sigma.device) - sigma.double()[:, None]).abs().argmin(1)
    x_t = x / (1 + s**2).sqrt()
    return x - s * network(x_t.float(), t.float(), labels, augment).to(x.dtype)


def ddpm_loss(network: Network, y: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """Return E|n - epsilon(x_t, t)|^2 (eq. 14), with torch's default generator."""
    t = torch.randint(TIMES, (len(y),)).to(y.device)
    s = expand_to(ddpm_levels().to(y.device)[t].to(y.dtype), y)
    n = normal_like(y)
    x_t = (y + s * n) / (1 + s**2).sqrt()
    return ((n - network(x_t, t.float(), labels, augment)) ** 2).mean()


def karras_sigmas(steps: int = 18, *, low: float = 0.002, high: float = 80.0, rho: float = 7.0) -> list[float]:
    """Return (high^(1/rho) + i/(N-1) (low^(1/rho) - high^(1/rho)))^rho for all i, then 0 (eq. 5)."""
    if steps < 2:
        raise ConfigError(f"steps is {steps}: a sampler needs at least 2.")
    a, b = high ** (1 / rho), low ** (1 / rho)
    return [(a + i / (steps - 1) * (b - a)) ** rho for i in range(steps)] + [0.0]


def heun(
    denoiser: Denoiser, noise: Tensor, labels: Tensor, *, sigmas: Levels, guide: Guide | None = None, rng: Rng = None
) -> Tensor:
    """Sample by algorithm 1 of Karras et al. 2022 without churn: second order, with two denoiser calls per step."""
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
    denoiser: Denoiser, noise: Tensor, labels: Tensor, *, sigmas: Levels, guide: Guide | None = None, rng: Rng = None
) -> Tensor:
    """Sample by Euler's method, with one denoiser call per step; equivalent to DDIM (Song et al. 2021)."""
    x = sigmas[0] * noise
    for sigma, next_sigma in pairwise(sigmas):
        x = x + (next_sigma - sigma) * _slope(denoiser, x, sigma, labels, guide)
    return x


def ancestral(
    denoiser: Denoiser, noise: Tensor, labels: Tensor, *, sigmas: Levels, guide: Guide | None = None, rng: Rng = None
) -> Tensor:
    """Draw each step from q(x_next | x, clean = D(x)) (Ho et al. 2020, eq. 6 and 7), without scaling x down."""
    x = sigmas[0] * noise
    for sigma, next_sigma in pairwise(sigmas):
        clean = x - sigma * _slope(denoiser, x, sigma, labels, guide)
        share = (next_sigma / sigma) ** 2
        step_noise = torch.randn(x.shape, dtype=x.dtype, generator=rng).to(x.device)
        x = clean + share * (x - clean) + next_sigma * (1 - share) ** 0.5 * step_noise
    return x


SAMPLERS: dict[str, Sampler] = {"heun": heun, "euler": euler, "ancestral": ancestral}


def _slope(denoiser: Denoiser, x: Tensor, sigma: float, labels: Tensor, guide: Guide | None) -> Tensor:
    """Return dx/dsigma = (x - D(x; sigma)) / sigma (eq. 3), minus sigma times the guide's gradient."""
    level = torch.full((len(x),), sigma, dtype=x.dtype, device=x.device)
    d = (x - denoiser(x, level, labels)) / sigma
    return d if guide is None else d - sigma * guide(x, level, labels)


@dataclass(frozen=True)
class Method:
    """A diffusion method: its loss(network, y, labels, augment), its denoiser and its default sampler."""

    loss: Callable[..., Tensor]
    denoise: Callable[..., Tensor]
    sampler: Sampler
    sigmas: Callable[[int], list[float]]
    steps: int


METHODS = {
    "edm": Method(edm_loss, edm_denoise, heun, karras_sigmas, 18),
    "ddpm": Method(ddpm_loss, ddpm_denoise, ancestral, ddpm_chain, TIMES),
}
