"""EDM (Karras et al. 2022): the denoiser around a network, its loss, and the decay of averaged weights.

Data y has a standard deviation of about 0.5, x = y + sigma n with n normal, and D(x; sigma) estimates y. Tensors have
any shape: images, or points in a plane. Equations and tables are those of the paper.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Network = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""F(x, noise, labels, augment): the raw network; noise and labels are (B,), augment is (B, 9) or None."""
Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""D(x, sigma, labels): the expected clean x; sigma is (B,)."""

SIGMA_DATA = 0.5
P_MEAN, P_STD = -1.2, 1.2  # ln sigma ~ N(P_mean, P_std^2), table 1


def c_skip(sigma: Tensor) -> Tensor:
    """The weight of the input in the denoiser: table 1, from eq. 147."""
    return SIGMA_DATA**2 / (sigma**2 + SIGMA_DATA**2)


def c_out(sigma: Tensor) -> Tensor:
    """The weight of the network's output in the denoiser: table 1, from eq. 138."""
    return sigma * SIGMA_DATA / (sigma**2 + SIGMA_DATA**2).sqrt()


def c_in(sigma: Tensor) -> Tensor:
    """The scale that gives the network's input variance 1: table 1, from eq. 117."""
    return 1 / (sigma**2 + SIGMA_DATA**2).sqrt()


def c_noise(sigma: Tensor) -> Tensor:
    """The noise level as the network gets it: table 1."""
    return sigma.log() / 4


def weight(sigma: Tensor) -> Tensor:
    """lambda(sigma) = 1 / c_out^2, from eq. 144: all noise levels have the same weight at the start."""
    return (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2


def denoise(network: Network, x: Tensor, sigma: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """D(x; sigma) = c_skip x + c_out F(c_in x; c_noise), eq. 7. The network computes in float32."""
    s = expand_to(sigma, x)
    raw = network((c_in(s) * x).float(), c_noise(sigma).float(), labels, augment)
    return c_skip(s) * x + c_out(s) * raw.to(x.dtype)


def loss(network: Network, y: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
    """E[lambda(sigma) |D(y + sigma n; sigma) - y|^2], eq. 2 and table 1, with torch's current generator."""
    sigma = (P_MEAN + P_STD * torch.randn(len(y), device=y.device)).exp()
    s = expand_to(sigma, y)
    x = y + s * torch.randn_like(y)
    return (weight(s) * (denoise(network, x, sigma, labels, augment) - y) ** 2).mean()


def expand_to(sigma: Tensor, x: Tensor) -> Tensor:
    """Reshape (B,) to (B, 1, ...), to broadcast with x."""
    return sigma.reshape(-1, *[1] * (x.ndim - 1))


def ema_decay(seen: int, batch: int, *, half_life: float = 500_000, ramp: float = 0.05) -> float:
    """The decay of averaged weights after `seen` images; its half-life grows with them, to forget the start."""
    return float(0.5 ** (batch / max(min(half_life, seen * ramp), 1e-8)))
