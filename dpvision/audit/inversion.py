"""Model inversion: find an image whose features explain a released row (He et al. 2019; NeuroMixGDP, Appendix K).

A row released at degree m is (1/m) (sum of c(f(x_i)) over the sampled records) plus noise, with f a public module and
c(z) = z shortened to length 1. Regularised maximum likelihood searches `members` images x, from uniform noise by Adam,
in

    argmin  | m row - known - sum of c(f(x_i)) |^2  +  tv * mean of TV(x_i),    -1 <= x_i <= 1

`known` is the sum of c(f(.)) over sampled records that the attacker has. If these are all but one, members = 1 and the
remainder of the row is one record under noise of sigma_x, the best case for an attacker of one row. TV is the sum of
absolute differences of neighbouring pixels, in units of the pixels' range. (The paper's objective is this one over m^2,
where the same tv weighs m^2 times as much.)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpvision.errors import ConfigError


def invert(
    features: nn.Module,
    released: Tensor,
    *,
    shape: tuple[int, int, int],
    degree: float = 1.0,
    known: Tensor | None = None,
    members: int = 1,
    tv: float = 1e-4,
    lr: float = 0.1,
    steps: int = 500,
    seed: int = 0,
) -> Tensor:
    """Reconstruct (rows, members, *shape) images in [-1, 1] from (rows, d) released features."""
    if released.ndim != 2 or (known is not None and known.shape != released.shape) or members < 1:
        raise ConfigError("released and known must be (rows, features) arrays of one shape, and members at least 1.")
    remainder = (released * degree - (0 if known is None else known)).detach()
    start = torch.rand((len(remainder), members, *shape), generator=torch.Generator().manual_seed(seed))
    x = (2 * start - 1).to(remainder).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    for _ in range(steps):
        mixture = shorten(features(x.flatten(0, 1)).flatten(1)).view(len(remainder), members, -1).sum(1)
        loss = (remainder - mixture).square().sum(1) + tv * total_variation(x).mean(1)
        (gradient,) = torch.autograd.grad(loss.sum(), x)  # rows are independent of each other
        x.grad = gradient.nan_to_num_(0.0, 0.0, 0.0)  # a modulus has no gradient at 0, as in an image of one colour
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(-1, 1)
    return x.detach()


def shorten(z: Tensor) -> Tensor:
    """Scale rows longer than 1 to length 1."""
    return z / z.norm(dim=1, keepdim=True).clamp(min=1)


def total_variation(x: Tensor) -> Tensor:
    """(..., channels, height, width) in [-1, 1] -> (...): sums of absolute differences, divided by the range of 2."""
    down, right = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    return (down.sum((-3, -2, -1)) + right.sum((-3, -2, -1))) / 2


def correlations(images: Tensor, others: Tensor) -> Tensor:
    """(a, ...) and (b, ...) images -> (a, b) correlations of their pixels; 0 if an image has only one colour."""
    centred = [(x.flatten(1) - x.flatten(1).mean(1, keepdim=True)).double() for x in (images, others)]
    one, two = (x / x.norm(dim=1, keepdim=True).clamp(min=1e-9) for x in centred)
    return one @ two.T
