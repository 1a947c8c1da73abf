"""A network from latent points to what the principal components miss of a row, by full-batch DP-SGD.

    f: z -> x - V z,    least over f:  sum_i 1/2 | x_i - V z_i - f(z_i) |^2

Formal guarantee: the private rows are read by `ClippedSum` alone (mechanism/clip), once in a step: each row's gradient
is cut to length `clip`, so one row more moves the sum by at most that, its sensitivity. Every row is in every step, so
each step is one release of Gaussian(sigma, count). Steps are taken by Adam on noisy gradients over the public n. A row
that is in no sum (not finite) is not among those that are summed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpvision.core.rows import BoundedSum, Rows
from dpvision.private.engine import ClippedSum
from dpvision.private.statistics.logistic import Noisy

# Rows that are handed over at a time.
AT_A_TIME = 2048


@dataclass(frozen=True)
class Descent:
    """`steps` of Adam at `rate`, for a network with `hidden` units; gradients of one row are cut to length `clip`."""

    steps: int
    rate: float
    clip: float
    hidden: int


def fit_decoder(
    latent: Rows, missed: NDArray[np.float32], descent: Descent, *, n: int, noisy: Noisy, seed: int
) -> nn.Module:
    """The network from z to what is missed of x, from `descent.steps` releases."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(descent.hidden, missed.shape[1])
        model = nn.Sequential(nn.Linear(latent.width, descent.hidden), nn.Tanh(), last)
    for weight in last.parameters():
        nn.init.zeros_(weight)  # it starts from the principal components alone
    z, wanted = torch.from_numpy(latent.x[latent.counted]), torch.from_numpy(missed[latent.counted])
    clipped = ClippedSum(model, _half_square, clip=descent.clip, one_view=True)
    flat = parameters_to_vector(model.parameters()).detach().double().requires_grad_()
    optimiser = torch.optim.Adam([flat], lr=descent.rate)
    for _ in range(descent.steps):
        parts = (
            (z[start : start + AT_A_TIME], wanted[start : start + AT_A_TIME], [1] * len(z[start : start + AT_A_TIME]))
            for start in range(0, len(z), AT_A_TIME)
        )
        bounded = BoundedSum(clipped.sum(parts).numpy(), clipped.sensitivity)
        flat.grad = torch.from_numpy(noisy(bounded) / n)
        optimiser.step()
        vector_to_parameters(flat.detach().float(), model.parameters())
    return model


def _half_square(made: Tensor, wanted: Tensor) -> Tensor:
    return (made - wanted).square().sum(dim=1) / 2
