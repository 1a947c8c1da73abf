"""A network that makes rows whose mean embeddings are those that were released: post-processing, at no cost of privacy.

    least over G:  sum_y | mu_y - p_y mean_z phi(G(z, y)) |^2

where mu_y is the noisy embedding of class y over n and p_y the class's share. It is the squared maximum mean
discrepancy (MMD) of the joint distribution of rows and classes, under the kernel <phi, phi> of rows and equality of
classes.

Nothing here sees a private row: the file cannot reach the mechanism, and gets noisy vectors and public numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.core.rows import Floats
from dpvision.errors import ConfigError
from dpvision.private.statistics.baselines.embedding import Phi, spread

# Rows that are made at a time when all is fitted.
AT_A_TIME = 2000


@dataclass(frozen=True)
class Fitting:
    """How a generator is fitted. `nonnegative` says that no feature is below 0, as pixels are."""

    steps: int
    batch: int
    rate: float
    code: int
    hidden: int
    nonnegative: bool


class Generator(nn.Module):
    """A code and a class to a row of length at most 1."""

    def __init__(self, width: int, classes: int, fitting: Fitting) -> None:
        super().__init__()
        self.classes, self.nonnegative = classes, fitting.nonnegative
        self.body = nn.Sequential(
            nn.Linear(fitting.code + classes, fitting.hidden),
            nn.ReLU(),
            nn.Linear(fitting.hidden, fitting.hidden),
            nn.ReLU(),
            nn.Linear(fitting.hidden, width),
        )

    def forward(self, code: Tensor, labels: Tensor) -> Tensor:
        x = self.body(torch.cat([code, nn.functional.one_hot(labels, self.classes).to(code.dtype)], dim=1))
        x = x.relu() if self.nonnegative else x
        return x / x.norm(dim=1, keepdim=True).clamp(min=1.0)


def generate(
    phi: Phi, mu: Floats, shares: Floats, fitting: Fitting, *, width: int, count: int, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """`count` rows and their classes, from a generator that was fitted to the (D, classes) embeddings `mu`."""
    classes = len(shares)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = Generator(width, classes, fitting)
        target, p = torch.from_numpy(mu).float(), torch.from_numpy(shares).float()
        each = max(1, fitting.batch // classes)
        labels = torch.arange(classes).repeat_interleave(each)
        optimiser = torch.optim.Adam(generator.parameters(), lr=fitting.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, fitting.steps)
        for _ in range(fitting.steps):
            embedded = phi(generator(torch.randn(len(labels), fitting.code), labels))
            means = embedded.reshape(classes, each, -1).mean(dim=1)
            loss = (target.T - p[:, None] * means).square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        y = torch.from_numpy(spread(count, shares))
        with torch.no_grad():
            parts = [generator(torch.randn(len(part), fitting.code), part) for part in y.split(AT_A_TIME)]
    return torch.cat(parts).numpy(), y.numpy()


def require_whole(least: int = 1, **values: Any) -> None:
    """Refuse, by their names, settings that are no whole numbers of at least `least`."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} is {value!r}: it must be a whole number of at least {least}.")


def require_positive(**values: Any) -> None:
    for name, value in values.items():
        if not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise ConfigError(f"{name} is {value!r}: it must be a finite number above 0.")
