"""P3GM (Takagi et al. 2021, arXiv 2006.12101) in a simple form: principal components, a mixture among them, a decoder.

    1. V, the first `latent` eigenvectors of sum_i vec(x_i x_i^T) + noise        private principal components
    2. a mixture of Gaussians for each class, of z_i = V^T x_i, by expectation-maximisation with noisy sums; a round
       releases  sum_i ( a vec(z_i z_i^T), b z_i, c ) r_i^T + noise,    a^2 + b^2 + c^2 = 1
       where r_ij, the responsibility of component j for row i, is 0 for components of other classes and adds up to 1
    3. x = V z, or x = V z + f(z) with a network f by full-batch DP-SGD, the loss 1/2 sum_i | x_i - V z_i - f(z_i) |^2

Formal guarantee: all sums are releases of one event, Gaussian(sigma, releases), each computed from rows and earlier
noisy results.

    1. |x| <= 1, so |vec(x x^T)| = |x|^2 <= 1 (row_sums.py), the sensitivity.
    2. V has orthonormal columns, so |z| <= |x| <= 1 (and it is measured again), and the bracket has length at most 1;
       so has r_i, for its numbers are not below 0 and add up to at most 1. The sensitivity is 1.
    3. Rows are read by `ClippedSum` alone (private/engine), once in a step: each row's gradient is clipped to length
       `clip`, the sensitivity. Every row is in every step. Steps are taken by Adam on noisy gradients over the public
       n. A row that is in no sum (not finite) is not among those that are summed.

With `repeats` r, the sums of 1. and 2. are released r times each and averaged, which gives each the same share of the
budget as r steps of the network.

What is simpler than published: components are those of x x^T about zero, not about the mean; every class has its own
mixture, instead of labels among the features; the mixture's rounds start from one Gaussian for each class; the network
adds to the linear map V instead of replacing it, is trained on the points z themselves without a variance of the
encoder, and by all rows in each step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpvision.core.rows import AT_A_TIME, SHORTER, BoundedSum, Floats, Rows, row_norms
from dpvision.errors import ConfigError
from dpvision.private.engine import ClippedSum
from dpvision.private.statistics.baselines.embedding import allocate
from dpvision.private.statistics.logistic import softmax
from dpvision.private.statistics.ranges import check_ranges, positive, whole
from dpvision.private.statistics.row_sums import AddNoise, second_moment, to_matrix, to_vector
from dpvision.released.moments import floor_counts

A2, B2, C2 = 0.5, 0.45, 0.05
# The least variance of a component in any direction, where rows have length 1.
MIN_VARIANCE = 1e-5
# Rows that the decoder is given at a time.
DECODER_BLOCK = 2048


@dataclass(frozen=True)
class P3GM:
    """`components` of each class are fitted in `rounds`; with one, the first moments are all that is needed.

    `shared` gives all components one covariance. The network has `steps` releases; without them the decoder is V alone.
    """

    title: ClassVar[str] = "P3GM, in a simple form"
    rows_are: ClassVar[str] = (
        "drawn with public randomness from a noisy Gaussian for each class, among noisy principal components"
    )
    latent: int = whole(20)
    components: int = whole(1)
    rounds: int = whole(0, least=0)
    shared: bool = False
    repeats: int = whole(1)
    steps: int = whole(0, least=0)
    rate: float = positive(3e-3)
    clip: float = positive(0.5)
    hidden: int = whole(100)
    nonnegative: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.components > 1) != (self.rounds > 0):
            raise ConfigError("components and rounds: more than one component needs rounds, and one needs none.")

    @property
    def releases(self) -> int:
        return self.repeats * (2 + self.rounds) + self.steps

    def check(self, *, width: int) -> None:
        if self.latent > width:
            raise ConfigError(f"latent is {self.latent}, but a row has {width} features.")

    def make(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, count: int, seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        def average(bounded: BoundedSum) -> Floats:
            return np.asarray(sum(add_noise(bounded) for _ in range(self.repeats)) / self.repeats)

        xx = to_matrix(average(BoundedSum(to_vector(second_moment(rows)), 1.0)), rows.width)
        basis = np.linalg.eigh(xx)[1][:, -self.latent :]
        latent, residual = project(rows, basis)

        mixture = None
        for round in range(1 + self.rounds):
            exact = component_moments(latent, mixture)
            noise = sigma * exact.sensitivity / self.repeats**0.5
            mixture = from_moments(
                average(exact), width=self.latent, classes=rows.classes, n=n, noise=noise, shared=self.shared
            )
            if self.components > 1 and round == 0:
                mixture = mixture.split(self.components)
        assert mixture is not None
        z, labels = mixture.draw(count, np.random.default_rng([seed, 3]))
        x = z @ basis.T
        if self.steps:
            decoder = fit_decoder(latent, residual, self, n=n, add_noise=add_noise, seed=seed)
            with torch.no_grad():
                x = x + decoder(torch.from_numpy(z.astype(np.float32))).double().numpy()
        x = np.maximum(x, 0.0) if self.nonnegative else x
        return (x / np.maximum(1.0, row_norms(x))).astype(np.float32), labels


def project(rows: Rows, basis: Floats) -> tuple[Rows, NDArray[np.float32]]:
    """z = V^T x, of length at most 1, and the residual x - V z; for a row that is in no sum both stay zero."""
    z = np.zeros((len(rows.x), basis.shape[1]), dtype=np.float32)
    residual = np.zeros_like(rows.x)
    for start in range(0, len(rows.x), AT_A_TIME):
        count = min(AT_A_TIME, len(rows.x) - start)
        x = np.zeros((AT_A_TIME, rows.width))  # always the same number: a product rounds by how many rows there are
        x[:count] = rows.x[start : start + count]
        part = x @ basis
        part = (part / np.maximum(1.0, row_norms(part)) * SHORTER).astype(np.float32)
        z[start : start + count] = part[:count]
        residual[start : start + count] = (x - part.astype(np.float64) @ basis.T)[:count]
    return Rows(z, rows.labels, rows.classes), residual


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of Gaussians for each class. Components of class 0 come first, then those of class 1, and so on."""

    shares: Floats  # (G,), of all rows
    means: Floats  # (G, q)
    values: Floats  # (G, q): eigenvalues of the covariances
    vectors: Floats  # (G, q, q): and eigenvectors
    classes: int

    @property
    def per_class(self) -> int:
        """The number of components of one class."""
        return len(self.shares) // self.classes

    def responsibilities(self, z: Floats, y: Floats) -> Floats:
        """(N, G); all are 0 for a row without a class."""
        own = np.repeat(y, self.per_class, axis=1)
        if self.per_class == 1:
            return own
        scores = np.empty_like(own)
        for j, (mean, values, vectors) in enumerate(zip(self.means, self.values, self.vectors, strict=True)):
            square = (((z - mean) @ vectors) ** 2 / values).sum(axis=1)
            scores[:, j] = math.log(self.shares[j]) - square / 2 - np.log(values).sum() / 2
        grouped = scores.reshape(-1, self.per_class)
        return softmax(grouped).reshape(own.shape) * own

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
        """`count` points in proportion to the components' shares, and their classes."""
        component = allocate(count, self.shares)
        stretched = rng.standard_normal((count, self.means.shape[1])) * np.sqrt(self.values[component])
        z = self.means[component] + np.einsum("nij,nj->ni", self.vectors[component], stretched)
        return z, component // self.per_class

    def split(self, parts: int) -> Mixture:
        """The single component of each class split into narrower ones along its longest axis: a start."""
        steps = 2 * (np.arange(parts) + 0.5) / parts - 1  # within one standard deviation
        axis = self.vectors[:, :, -1] * np.sqrt(self.values[:, -1:])  # eigenvalues ascend
        means = self.means[:, None] + steps[:, None] * axis[:, None]
        return Mixture(
            np.repeat(self.shares / parts, parts),
            means.reshape(-1, self.means.shape[1]),
            np.maximum(np.repeat(self.values, parts, axis=0) / parts**2, MIN_VARIANCE),
            np.repeat(self.vectors, parts, axis=0),
            self.classes,
        )


def component_moments(rows: Rows, mixture: Mixture | None) -> BoundedSum:
    """The sum that a round releases; without a mixture, one component is responsible for each class."""
    a, b, c = math.sqrt(A2), math.sqrt(B2), math.sqrt(C2)
    i, j = np.triu_indices(rows.width)
    scale = a * np.where(i == j, 1.0, math.sqrt(2.0))
    groups = rows.classes * (mixture.per_class if mixture else 1)
    total = np.zeros((len(i) + rows.width + 1, groups))
    for z, y in rows.blocks():
        r = mixture.responsibilities(z, y) if mixture else y
        r = np.where(np.isfinite(r).all(axis=1, keepdims=True), r, 0.0)
        total += np.hstack([z[:, i] * z[:, j] * scale, b * z, np.full((len(z), 1), c)]).T @ r
    return BoundedSum(total, math.sqrt(A2 + B2 + C2))


def from_moments(noisy: Floats, *, width: int, classes: int, n: int, noise: float, shared: bool) -> Mixture:
    """The mixture of a round's noisy sum; `noise` is its standard deviation, and `shared` asks for one covariance.

    The noise of a covariance has eigenvalues of up to sqrt(2 q) times its standard deviation, a public number. It is
    subtracted from all eigenvalues, and what falls below MIN_VARIANCE is set to that.
    """
    a, b, c = math.sqrt(A2), math.sqrt(B2), math.sqrt(C2)
    size, groups = width * (width + 1) // 2, noisy.shape[1]
    counts = floor_counts(noisy[-1] / c, n=n)
    shares = counts / counts.sum()
    means = (noisy[size:-1] / b / counts).T
    means /= np.maximum(1.0, row_norms(means))
    seconds = np.stack([to_matrix(column, width) for column in (noisy[:size] / a / counts).T])
    covariances = seconds - means[:, :, None] * means[:, None, :]
    spreads = noise / (a * counts)
    if shared:
        covariances = np.repeat(np.einsum("g,gij->ij", shares, covariances)[None], groups, axis=0)
        spreads = np.full(groups, np.linalg.norm(shares * spreads))
    values, vectors = np.linalg.eigh(covariances)
    floor = math.sqrt(2.0 * width) * spreads[:, None]
    return Mixture(shares, means, np.maximum(values - floor, MIN_VARIANCE), vectors, classes)


def fit_decoder(
    latent: Rows, residual: NDArray[np.float32], method: P3GM, *, n: int, add_noise: AddNoise, seed: int
) -> nn.Module:
    """The network from z to the residual of x, from `method.steps` releases."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(method.hidden, residual.shape[1])
        model = nn.Sequential(nn.Linear(latent.width, method.hidden), nn.Tanh(), last)
    for weight in last.parameters():
        nn.init.zeros_(weight)  # it starts from the principal components alone
    z, target = torch.from_numpy(latent.x[latent.counted]), torch.from_numpy(residual[latent.counted])
    clipped = ClippedSum(model, _half_square, clip=method.clip, one_view=True)
    flat = parameters_to_vector(model.parameters()).detach().double().requires_grad_()
    optimiser = torch.optim.Adam([flat], lr=method.rate)
    for _ in range(method.steps):
        parts = (slice(start, start + DECODER_BLOCK) for start in range(0, len(z), DECODER_BLOCK))
        total = clipped.sum((z[part], target[part], [1] * len(z[part])) for part in parts)
        flat.grad = torch.from_numpy(add_noise(BoundedSum(total.numpy(), clipped.sensitivity)) / n)
        optimiser.step()
        vector_to_parameters(flat.detach().float(), model.parameters())
    return model


def _half_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(dim=1) / 2
