"""Discriminator guidance (Kim et al. 2023): a second network tells real from drawn, and leads samples to the real.

Both kinds are made noisy, x = y + sigma n. A discriminator that gives the log-odds d(x; sigma) of real has at its best
d = log p_real(x; sigma) / p_model(x; sigma), so its gradient is what the model's score lacks (theorem 1). Real are
the public images, and the others are drawn from a model of them: nothing private has a part. The second network is two
small ones, an extractor of features and a discriminator on top of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvision.public.diffusion.edm import Network, c_in, c_noise, over
from dpvision.public.diffusion.sampler import Guide
from dpvision.public.diffusion.unet import Block, Embedding, convolution, linear, normalisation

LOW, HIGH = 0.05, 80.0  # sigma from and up to which it learns and leads; below, a sample is nearly done
MOST_ODDS = math.log((1 - 1e-5) / 1e-5)  # D is kept within [1e-5, 1 - 1e-5], as in the paper's code


def noisy(y: Tensor) -> tuple[Tensor, Tensor]:
    """x = y + sigma n and its sigma, with ln sigma uniform: each level of noise weighs the same."""
    sigma = (math.log(LOW) + math.log(HIGH / LOW) * torch.rand(len(y), device=y.device)).exp()
    return y + over(sigma, y) * torch.randn_like(y), sigma


def log_odds(discriminator: Network, x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
    """d(x; sigma) of every x, (B,); what enters the network has variance 1 at every level."""
    return discriminator((c_in(over(sigma, x)) * x).float(), c_noise(sigma).float(), labels, None).flatten()


def loss(discriminator: Network, real: Tensor, real_labels: Tensor, drawn: Tensor, drawn_labels: Tensor) -> Tensor:
    """Binary cross-entropy, real is 1 (eq. 6); coins from torch's current generator."""
    x, sigma = noisy(torch.cat([real, drawn]))
    odds = log_odds(discriminator, x, sigma, torch.cat([real_labels, drawn_labels]))
    answers = torch.cat([odds.new_ones(len(real)), odds.new_zeros(len(drawn))])
    return F.binary_cross_entropy_with_logits(odds, answers)


def guide_by(discriminator: Network, *, weight: float) -> Guide:
    """w grad_x log(D / (1 - D)), which a sampler adds to the score (eq. 8)."""

    def guide(x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        if not LOW <= float(sigma[0]) <= HIGH:
            return torch.zeros_like(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            odds = log_odds(discriminator, x, sigma, labels).clamp(-MOST_ODDS, MOST_ODDS)
            (gradient,) = torch.autograd.grad(odds.sum(), x)
        return weight * gradient

    return guide


class Extractor(nn.Module):
    """Noisy images and their noise -> features at a quarter of each side; it learns to name public images' classes."""

    def __init__(self, channels: int, *, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = Embedding(width, 4 * width, classes=1)  # of noise alone: the class is what it is asked for
        self.enter = nn.Conv2d(channels, width, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(
            [
                _block(width, width, 4 * width),
                _block(width, 2 * width, 4 * width, resample=-1),
                _block(2 * width, 2 * width, 4 * width),
            ]
        )
        self.norm, self.name = normalisation(2 * width), linear(2 * width, classes)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        vector = self.embedding(noise, torch.zeros_like(noise, dtype=torch.long), None)
        x = self.enter(x).contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x, vector)
        return x

    def named(self, x: Tensor, noise: Tensor) -> Tensor:
        """(B, classes) log-odds of the class."""
        odds: Tensor = self.name(F.silu(self.norm(self(x, noise))).mean((2, 3)))
        return odds


class Discriminator(nn.Module):
    """Features of an extractor that learns no more, noise and class -> (B, 1) log-odds of being real."""

    def __init__(self, extractor: Extractor, *, classes: int, width: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.embedding = Embedding(width, 4 * width, classes=classes)
        self.enter = convolution(2 * width, width, kernel=1)
        self.blocks = nn.ModuleList([_block(width, width, 4 * width) for _ in range(2)])
        self.norm, self.leave = normalisation(width), nn.Linear(width, 1)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
        vector = self.embedding(noise, labels, augment)
        x = self.enter(self.extractor(x, noise))
        for block in self.blocks:
            x = block(x, vector)
        odds: Tensor = self.leave(F.silu(self.norm(x)).mean((2, 3)))
        return odds


def _block(cin: int, cout: int, told: int, *, resample: int = 0) -> Block:
    return Block(cin, cout, told, resample=resample, attention=False, dropout=0.0)
