"""Model inversion: an image whose features explain a released row (He et al. 2019; NeuroMixGDP, Appendix K).

A row released at degree m is (1/m) (sum of c(f(x_i)) over those drawn) and noise, with f a public module and c(z) = z
shortened to length 1. Regularised maximum likelihood looks for `members` images x, from uniform noise by Adam, in

    argmin  | m row - known - sum of c(f(x_i)) |^2  +  tv * mean of TV(x_i),    -1 <= x_i <= 1

`known` is the sum of c(f(.)) over drawn records that the attacker has: with all but one of them, members = 1 and what
is left of the row is one record under noise of sigma_x, the best case for an attacker of one row. TV is the sum of
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
    """(rows, d) released features -> (rows, members, *shape) images in [-1, 1]."""
    if released.ndim != 2 or (known is not None and known.shape != released.shape) or members < 1:
        raise ConfigError("released, and known if given, must be a row of features a row, and members 1 at least.")
    left = (released * degree - (0 if known is None else known)).detach()
    start = torch.rand((len(left), members, *shape), generator=torch.Generator().manual_seed(seed))
    x = (2 * start - 1).to(left).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=lr)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    for _ in range(steps):
        mixed = clipped(features(x.flatten(0, 1)).flatten(1)).view(len(left), members, -1).sum(1)
        loss = (left - mixed).square().sum(1) + tv * total_variation(x).mean(1)
        (gradient,) = torch.autograd.grad(loss.sum(), x)  # rows are independent of each other
        x.grad = gradient.nan_to_num_(0.0, 0.0, 0.0)  # a modulus has no slope at 0, as in an image of one colour
        optimiser.step()
        slower.step()
        with torch.no_grad():
            x.clamp_(-1, 1)
    return x.detach()


def clipped(z: Tensor) -> Tensor:
    """Rows longer than 1, shortened to it."""
    return z / z.norm(dim=1, keepdim=True).clamp(min=1)


def total_variation(x: Tensor) -> Tensor:
    """(..., channels, height, width) in [-1, 1] -> (...): sums of absolute differences, over the range of 2."""
    down, right = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    return (down.sum((-3, -2, -1)) + right.sum((-3, -2, -1))) / 2


def correlations(found: Tensor, true: Tensor) -> Tensor:
    """(a, ...) and (b, ...) images -> (a, b) correlations of their pixels; 0 where an image has one colour."""
    rows = [(each.flatten(1) - each.flatten(1).mean(1, keepdim=True)).double() for each in (found, true)]
    one, two = (each / each.norm(dim=1, keepdim=True).clamp(min=1e-9) for each in rows)
    return one @ two.T
