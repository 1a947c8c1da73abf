"""A simple form of P3GM (Takagi et al. 2021, arXiv 2006.12101): principal components, a mixture model and a decoder.

    1. V, the first `latent` eigenvectors of sum_i vec(x_i x_i^T) + noise        private principal components
    2. a mixture of Gaussians for each class, of z_i = V^T x_i, by expectation-maximisation with noisy sums; a round
       releases  sum_i ( a vec(z_i z_i^T), b z_i, c ) r_i^T + noise,    a^2 + b^2 + c^2 = 1
       where r_ij, the responsibility of component j for row i, is 0 for components of other classes and adds up to 1
    3. x = V z, or x = V z + f(z), where the network f is trained by full-batch DP-SGD on the loss
       1/2 sum_i | x_i - V z_i - f(z_i) |^2

Formal guarantee: all sums are releases of one event, Gaussian(sigma, releases), each computed from rows and earlier
noisy results.

    1. |x| <= 1, so |vec(x x^T)| = |x|^2 <= 1 (row_sums.py), the sensitivity.
    2. V has orthonormal columns, so |z| <= |x| <= 1 (z is also clipped to norm 1), and the vector in parentheses has
       norm at most 1. So does r_i, since its entries are nonnegative and add up to at most 1. The sensitivity is 1.
    3. Rows are read only by `ClippedSum` (private/engine), once per step: each row's gradient is clipped to norm
       `clip`, the sensitivity. Every row takes part in every step. Adam takes the steps, on noisy gradient sums divided
       by the public n. Rows that are excluded from all sums (nonfinite rows) are not summed here either. The rows of
       a person are the views of one unit: their gradients are averaged, and the mean is clipped.

With `repeats` r, the sums of 1 and 2 are each released r times and averaged, which gives each of them the same share of
the budget as r steps of the network.

Simplifications compared with the paper: the components are those of x x^T about zero, not about the mean; every class
has a separate mixture, instead of labels among the features; the rounds of the mixture start from one Gaussian for each
class; the network adds to the linear map V instead of replacing it; and it is trained on the points z themselves, with
no encoder variance, on all rows in each step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
# The minimum variance of a component in any direction, for rows of norm at most 1.
MIN_VARIANCE = 1e-5
# Rows that the decoder processes at a time.
DECODER_BLOCK = 2048


@dataclass(frozen=True)
class P3GM:
    """P3GM. Each class has `components` Gaussians, fitted in `rounds` rounds; one needs only the first moments.

    With `shared`, all components have the same covariance. The network takes `steps` steps, one release each; with 0
    steps the decoder is V alone.
    """

    title: ClassVar[str] = "P3GM, in a simple form"
    rows_are: ClassVar[str] = (
        "drawn with public randomness from a noisy mixture of Gaussians for each class, in noisy principal components"
    )
    latent: int = whole(20)
    components: int = whole(1)
    rounds: int = whole(0, minimum=0)
    shared: bool = False
    repeats: int = whole(1)
    steps: int = whole(0, minimum=0)
    rate: float = positive(3e-3)
    clip: float = positive(0.5)
    hidden: int = whole(100)
    nonnegative: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.components > 1) != (self.rounds > 0):
            raise ConfigError("components and rounds: several components need rounds, and a single one needs rounds=0.")

    @property
    def releases(self) -> int:
        return self.repeats * (2 + self.rounds) + self.steps

    def check(self, *, width: int) -> None:
        if self.latent > width:
            raise ConfigError(f"latent is {self.latent}, but a row has only {width} features.")

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
    """Return z = V^T x, of norm at most 1, and the residual x - V z; both are zero for rows that are in no sum."""
    z = np.zeros((len(rows.x), basis.shape[1]), dtype=np.float32)
    residual = np.zeros_like(rows.x)
    for start in range(0, len(rows.x), AT_A_TIME):
        count = min(AT_A_TIME, len(rows.x) - start)
        x = np.zeros((AT_A_TIME, rows.width))  # a fixed number of rows, because the rounding of a product depends on it
        x[:count] = rows.x[start : start + count]
        part = x @ basis
        part = (part / np.maximum(1.0, row_norms(part)) * SHORTER).astype(np.float32)
        z[start : start + count] = part[:count]
        residual[start : start + count] = (x - part.astype(np.float64) @ basis.T)[:count]
    return replace(rows, x=z), residual


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of Gaussians for each class. The components of class 0 come first, then those of class 1, and so on."""

    shares: Floats  # (G,): shares of all rows
    means: Floats  # (G, q)
    values: Floats  # (G, q): eigenvalues of the covariances
    vectors: Floats  # (G, q, q): eigenvectors of the covariances
    classes: int

    @property
    def per_class(self) -> int:
        """The number of components of one class."""
        return len(self.shares) // self.classes

    def responsibilities(self, z: Floats, y: Floats) -> Floats:
        """Return the (N, G) responsibilities; those of a row without a class are all 0."""
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
        """Draw `count` points, in proportion to the shares of the components, and return them with their classes."""
        component = allocate(count, self.shares)
        stretched = rng.standard_normal((count, self.means.shape[1])) * np.sqrt(self.values[component])
        z = self.means[component] + np.einsum("nij,nj->ni", self.vectors[component], stretched)
        return z, component // self.per_class

    def split(self, parts: int) -> Mixture:
        """Split the single component of each class along its longest axis, as initial components for the rounds."""
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
    """Return the sum that a round releases; without a mixture, each class has one component."""
    a, b, c = math.sqrt(A2), math.sqrt(B2), math.sqrt(C2)
    i, j = np.triu_indices(rows.width)
    scale = a * np.where(i == j, 1.0, math.sqrt(2.0))
    groups = rows.classes * (mixture.per_class if mixture else 1)
    total = np.zeros((len(i) + rows.width + 1, groups))
    for z, y, share in rows.blocks():
        r = mixture.responsibilities(z, y) if mixture else y
        r = np.where(np.isfinite(r).all(axis=1, keepdims=True), r, 0.0)
        total += np.hstack([z[:, i] * z[:, j] * scale, b * z, np.full((len(z), 1), c)]).T @ (r * share)
    return BoundedSum(total, math.sqrt(A2 + B2 + C2))


def from_moments(noisy: Floats, *, width: int, classes: int, n: int, noise: float, shared: bool) -> Mixture:
    """Compute the mixture from a round's noisy sum; `noise` is the standard deviation of the noise.

    With `shared`, all components get the same covariance. The noise in a covariance has eigenvalues of up to sqrt(2 q)
    times its standard deviation, a public number. This bound is subtracted from all eigenvalues, and the results are
    raised to at least MIN_VARIANCE.
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
    """Train the network that maps z to the residual of x, with `method.steps` noisy steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last = nn.Linear(method.hidden, residual.shape[1])
        model = nn.Sequential(nn.Linear(latent.width, method.hidden), nn.Tanh(), last)
    for weight in last.parameters():
        nn.init.zeros_(weight)  # the initial decoder is the principal components alone
    z, target, each = torch.from_numpy(latent.x), torch.from_numpy(residual), group_by_unit(latent)
    clipped = ClippedSum(model, _half_square, clip=method.clip, one_view=latent.persons is None)
    flat = parameters_to_vector(model.parameters()).detach().double().requires_grad_()
    optimiser = torch.optim.Adam([flat], lr=method.rate)
    for _ in range(method.steps):
        parts = (each[start : start + DECODER_BLOCK] for start in range(0, len(each), DECODER_BLOCK))
        rows = ((np.concatenate(part), [len(unit) for unit in part]) for part in parts)
        total = clipped.sum((z[part], target[part], views) for part, views in rows)
        flat.grad = torch.from_numpy(add_noise(BoundedSum(total.numpy(), clipped.sensitivity)) / n)
        optimiser.step()
        vector_to_parameters(flat.detach().float(), model.parameters())
    return model


def group_by_unit(rows: Rows) -> list[NDArray[np.int64]]:
    """Return the numbers of the rows of each unit that is in any sum."""
    counted = np.flatnonzero(rows.counted)
    if rows.persons is None:
        return list(counted[:, None])
    order = counted[np.argsort(rows.persons[counted], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(rows.persons[order])) + 1) if len(order) else []


def _half_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(dim=1) / 2
