"""A mixture of Gaussians for each class, fitted by private moments: expectation-maximisation with noisy sums.

    released in a round:  sum_i ( a vec(z_i z_i^T), b z_i, c ) r_i^T + noise,    a^2 + b^2 + c^2 = 1

where r_ij, the responsibility of component j for row i, is 0 for components of other classes and adds up to 1.

Formal guarantee: |z| <= 1, so |vec(z z^T)| = |z|^2 <= 1 (second_moment.py) and the bracket has length at most 1; so
has r_i, for its numbers are not below 0 and add up to at most 1. So one row more moves the sum by at most 1, the
sensitivity. Each round is one release; its responsibilities are a function of the row alone and of noisy results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpvision.core.rows import BoundedSum, Floats, Rows, lengths
from dpvision.private.statistics.baselines.embedding import LEAST_OF_EVEN, spread
from dpvision.private.statistics.logistic import softmax
from dpvision.private.statistics.second_moment import to_matrix

A2, B2, C2 = 0.5, 0.45, 0.05
# The least variance of a component in any direction, beside rows of length 1.
LEAST_VARIANCE = 1e-5


@dataclass(frozen=True, eq=False)
class Mixture:
    """Components of class 0 come first, then those of class 1, and so on: as many for each."""

    shares: Floats  # (G,), of all rows
    means: Floats  # (G, q)
    values: Floats  # (G, q): eigenvalues of the covariances
    vectors: Floats  # (G, q, q): and eigenvectors
    classes: int

    @property
    def each(self) -> int:
        """Components of one class."""
        return len(self.shares) // self.classes

    def responsibilities(self, z: Floats, y: Floats) -> Floats:
        """(N, G). Of a row whose class is none, all are 0."""
        own = np.repeat(y, self.each, axis=1)
        if self.each == 1:
            return own
        scores = np.empty_like(own)
        for j, (mean, values, vectors) in enumerate(zip(self.means, self.values, self.vectors, strict=True)):
            square = (((z - mean) @ vectors) ** 2 / values).sum(axis=1)
            scores[:, j] = math.log(self.shares[j]) - square / 2 - np.log(values).sum() / 2
        grouped = scores.reshape(-1, self.each)
        return softmax(grouped).reshape(own.shape) * own

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
        """`count` points in proportion to the components' shares, and their classes."""
        component = spread(count, self.shares)
        stretched = rng.standard_normal((count, self.means.shape[1])) * np.sqrt(self.values[component])
        z = self.means[component] + np.einsum("nij,nj->ni", self.vectors[component], stretched)
        return z, component // self.each

    def split(self, each: int) -> Mixture:
        """Every class's one component made into `each` narrower ones, in a row along its longest axis: a start."""
        steps = 2 * (np.arange(each) + 0.5) / each - 1  # within one standard deviation
        axis = self.vectors[:, :, -1] * np.sqrt(self.values[:, -1:])  # eigenvalues ascend
        means = self.means[:, None] + steps[:, None] * axis[:, None]
        return Mixture(
            np.repeat(self.shares / each, each),
            means.reshape(-1, self.means.shape[1]),
            np.maximum(np.repeat(self.values, each, axis=0) / each**2, LEAST_VARIANCE),
            np.repeat(self.vectors, each, axis=0),
            self.classes,
        )


def component_moments(rows: Rows, mixture: Mixture | None) -> BoundedSum:
    """The sum that a round releases; without a mixture, one component is responsible for each class."""
    a, b, c = math.sqrt(A2), math.sqrt(B2), math.sqrt(C2)
    i, j = np.triu_indices(rows.width)
    scale = a * np.where(i == j, 1.0, math.sqrt(2.0))
    groups = rows.classes * (mixture.each if mixture else 1)
    total = np.zeros((len(i) + rows.width + 1, groups))
    for z, y in rows.blocks():
        r = mixture.responsibilities(z, y) if mixture else y
        r = np.where(np.isfinite(r).all(axis=1, keepdims=True), r, 0.0)
        total += np.hstack([z[:, i] * z[:, j] * scale, b * z, np.full((len(z), 1), c)]).T @ r
    return BoundedSum(total, math.sqrt(A2 + B2 + C2))


def from_moments(noisy: Floats, *, width: int, classes: int, n: int, noise: float, shared: bool) -> Mixture:
    """The mixture that a round's noisy sum shows; `noise` is its standard deviation, and `shared` asks for one shape.

    The noise of a covariance has eigenvalues of up to sqrt(2 q) times its standard deviation, a public number. It is
    taken off all eigenvalues, and what falls below LEAST_VARIANCE is set to that.
    """
    a, b, c = math.sqrt(A2), math.sqrt(B2), math.sqrt(C2)
    size, groups = width * (width + 1) // 2, noisy.shape[1]
    counts = np.maximum(noisy[-1] / c, LEAST_OF_EVEN * n / groups)
    shares = counts / counts.sum()
    means = (noisy[size:-1] / b / counts).T
    means /= np.maximum(1.0, lengths(means))
    seconds = np.stack([to_matrix(column, width) for column in (noisy[:size] / a / counts).T])
    covariances = seconds - means[:, :, None] * means[:, None, :]
    spreads = noise / (a * counts)
    if shared:
        covariances = np.repeat(np.einsum("g,gij->ij", shares, covariances)[None], groups, axis=0)
        spreads = np.full(groups, np.linalg.norm(shares * spreads))
    values, vectors = np.linalg.eigh(covariances)
    floor = math.sqrt(2.0 * width) * spreads[:, None]
    return Mixture(shares, means, np.maximum(values - floor, LEAST_VARIANCE), vectors, classes)
