"""The mean embedding of each class, released once, and rows from a generator fitted to it.

    released:  ( b sum_i phi(x_i) y_i^T,  c sum_i y_i ) + noise,    b^2 + c^2 = 1, y_i the one-hot class

Formal guarantee: every phi(x) is clipped to norm at most 1 and y has norm 1, so one more row changes the released
vector by at most sqrt(b^2 |phi|^2 |y|^2 + c^2 |y|^2) <= 1, the sensitivity. The event is Gaussian(sigma, 1). phi is
drawn from a public seed, and its kernel width is a public setting, not the median distance of private rows. Everything
after the noisy vector is post-processing: the generator G is fitted to the noisy vector and public numbers,

    minimise over G:  sum_y | mu_y - p_y mean_z phi(G(z, y)) |^2

where mu_y is the noisy embedding of class y divided by n, and p_y is the share of the class. This is the squared
maximum mean discrepancy (MMD) between the joint distributions of rows and classes, under the kernel <phi, phi> on rows
and equality on classes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.core.rows import BoundedSum, Floats, Rows, row_norms
from dpvision.private.statistics.ranges import check_ranges
from dpvision.private.statistics.row_sums import AddNoise, require_one_class_each
from dpvision.released.moments import floor_counts

# (rows, d) -> (rows, D): a public function of each row alone, whose rows should have norm at most 1.
Phi = Callable[[Tensor], Tensor]
# Rows that the fitted generator makes in one batch.
AT_A_TIME = 2000


class MeanEmbedding(ABC):
    """A method that releases mean embeddings; subclasses are frozen dataclasses that define the embedding.

    `counts_share` is c^2; with `balanced`, no counts are released. The generator takes `code` random numbers, has two
    layers of `hidden` units, and is fitted by `steps` steps of Adam at learning rate `rate` on `batch` rows.
    `nonnegative` states that no feature is below 0, as is true of pixels.
    """

    title: ClassVar[str]
    rows_are: ClassVar[str]
    releases: ClassVar[int] = 1
    balanced: bool
    counts_share: float
    steps: int
    batch: int
    rate: float
    code: int
    hidden: int
    nonnegative: bool

    def __post_init__(self) -> None:
        check_ranges(self)

    @abstractmethod
    def phi(self, *, width: int, seed: int) -> Phi:
        """Return the embedding of rows with `width` features."""

    def check(self, *, width: int) -> None:  # noqa: B027  # by default, any width is allowed
        """Raise an error if the settings do not suit rows of this width."""

    def make(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, count: int, seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        phi = self.phi(width=rows.width, seed=seed)
        c = 0.0 if self.balanced else math.sqrt(self.counts_share)
        mu, shares = split_by_class(add_noise(embedded_sum(rows, phi, c=c)), classes=rows.classes, c=c, n=n)
        return generate(phi, mu, shares, self, width=rows.width, count=count, seed=seed)


def embedded_sum(rows: Rows, phi: Phi, *, c: float) -> BoundedSum:
    """Return ( b sum phi(x) y^T, c counts ) with b^2 + c^2 = 1; the counts are left out if c is 0."""
    require_one_class_each(rows)
    b = math.sqrt(1 - c**2)
    sums: Floats | None = None
    counts = np.zeros(rows.classes)
    empty = (
        np.zeros((1, rows.width)),
        np.zeros((1, rows.classes)),
        np.zeros((1, 1)),
    )  # determines the size if there are no rows
    for x, y, share in [empty, *rows.blocks()]:
        embedded = clip_to_norm_1(phi(torch.from_numpy(x)).numpy())
        sums = embedded.T @ (y * share) + (0.0 if sums is None else sums)
        counts += (y * share).sum(axis=0)
    assert sums is not None
    return BoundedSum(np.concatenate([b * sums.reshape(-1), *([c * counts] if c else [])]), 1.0)


def clip_to_norm_1(embedded: Floats) -> Floats:
    """Clip rows to norm 1 and set nonfinite rows to zero, so that the bound does not depend on phi."""
    finite = np.isfinite(embedded).all(axis=1, keepdims=True)
    embedded = np.where(finite, embedded, 0.0)
    return embedded / np.maximum(1.0, row_norms(embedded))


def split_by_class(noisy: Floats, *, classes: int, c: float, n: int) -> tuple[Floats, Floats]:
    """Split the noisy vector into the (D, classes) sums divided by n and the share of each class."""
    b = math.sqrt(1 - c**2)
    size = len(noisy) - classes * (c > 0)
    counts = floor_counts(noisy[size:] / c, n=n) if c else np.ones(classes)
    return noisy[:size].reshape(-1, classes) / (b * n), counts / counts.sum()


def allocate(count: int, shares: Floats) -> NDArray[np.int64]:
    """Return `count` class numbers in proportion to the shares of the classes, in ascending order."""
    places = (np.arange(count) + 0.5) / count
    return np.minimum(np.searchsorted(np.cumsum(shares), places), len(shares) - 1).astype(np.int64)


class Generator(nn.Module):
    """A network that maps a code and a class to a row of norm at most 1."""

    def __init__(self, width: int, classes: int, method: MeanEmbedding) -> None:
        super().__init__()
        self.classes, self.nonnegative = classes, method.nonnegative
        self.body = nn.Sequential(
            nn.Linear(method.code + classes, method.hidden),
            nn.ReLU(),
            nn.Linear(method.hidden, method.hidden),
            nn.ReLU(),
            nn.Linear(method.hidden, width),
        )

    def forward(self, code: Tensor, labels: Tensor) -> Tensor:
        x = self.body(torch.cat([code, nn.functional.one_hot(labels, self.classes).to(code.dtype)], dim=1))
        x = x.relu() if self.nonnegative else x
        return x / x.norm(dim=1, keepdim=True).clamp(min=1.0)


def generate(
    phi: Phi, mu: Floats, shares: Floats, method: MeanEmbedding, *, width: int, count: int, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return `count` rows and their classes, from a generator fitted to the (D, classes) embeddings `mu`."""
    classes = len(shares)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = Generator(width, classes, method)
        target, p = torch.from_numpy(mu).float(), torch.from_numpy(shares).float()
        per_class = max(1, method.batch // classes)
        labels = torch.arange(classes).repeat_interleave(per_class)
        optimiser = torch.optim.Adam(generator.parameters(), lr=method.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, method.steps)
        for _ in range(method.steps):
            embedded = phi(generator(torch.randn(len(labels), method.code), labels))
            means = embedded.reshape(classes, per_class, -1).mean(dim=1)
            loss = (target.T - p[:, None] * means).square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        y = torch.from_numpy(allocate(count, shares))
        with torch.no_grad():
            parts = [generator(torch.randn(len(part), method.code), part) for part in y.split(AT_A_TIME)]
    return torch.cat(parts).numpy(), y.numpy()
