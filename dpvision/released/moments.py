"""Closed-form linear classifiers, and synthetic rows, from exact or noisy moments.

    ridge            W = (C + floor)^(-1) X^T Z / n
    discriminant     score of class j = x^T S^(-1) m_j - 1/2 m_j^T S^(-1) m_j + log prior_j,   S within classes

Noise spreads the eigenvalues of a second moment by a known amount, and inflates m_j^T S^(-1) m_j by its variance times
tr S^(-1). Known amounts are subtracted. Nothing here reads private data: the inputs are released moments.

Rows are drawn from one Gaussian per class, with a shared covariance:

    mean_k = sums_k / counts_k
    S      = second / n - sum_k p_k mean_k mean_k^T + the known variance that noise adds to the means, times I
    row    ~ N( m_k, S+ )    k drawn from p; S+ is S without what noise does to its eigenvalues, plus a small floor

The noise of S is a symmetric Gaussian matrix with variance v / d in each number. It turns the eigenvectors and spreads
the eigenvalues; the best eigenvalue for the noisy eigenvector of the noisy eigenvalue l is, for large d,

    l - 2 v h(l),    h(l) = mean over all eigenvalues l_j of 1 / (l - l_j)        (Bun, Allez, Bouchaud, Potters 2016)

Noise inflates the norms of the means. In the metric of S it adds v_k tr(S^-1) to their squared distance from the
overall mean, where v_k is its known variance, so m_k is shrunk towards the overall mean by a factor of
1 - v_k tr(S^-1) / distance^2 (James and Stein 1961). Noisy counts are shrunk towards equal counts in the same way: with
few records, their noise would harm the norms of the means most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Added to every eigenvalue (none exceeds 1), so that there is no division by 0 even without noise.
MIN_RIDGE = 1e-6
# Class counts are raised to at least this fraction of n / classes: a noisy count may be near or below 0.
MIN_OF_EQUAL = 0.1
# What is added to all eigenvalues of a noisy S, in units of their mean, and of the root of v.
FLOOR, FLOOR_OF_NOISE = 0.3, 0.06


def without_noise_floor(
    noisy: Floats, *, noise: float, ridge: float, least: float = MIN_RIDGE
) -> tuple[Floats, Floats]:
    """Return the eigenvalues and eigenvectors of a noisy second moment, regularised using public numbers only.

    `noise` is the standard deviation on the diagonal. The noise is a symmetric Gaussian matrix whose largest eigenvalue
    is about sqrt(2 d) * noise. Negative eigenvalues, which only noise can cause, are set to 0; then `ridge` times that
    largest eigenvalue is added to all.
    """
    values, vectors = np.linalg.eigh(noisy)
    floor = ridge * math.sqrt(2.0 * len(noisy)) * noise
    return np.maximum(values, 0.0) + floor + least, vectors


def without_noise(noisy: Floats, *, noise: float) -> tuple[Floats, Floats]:
    """Return the best eigenvalues for the eigenvectors of a noisy second moment, and these eigenvectors.

    `noise` is the standard deviation on the diagonal, and 1/sqrt(2) of it off the diagonal. Without noise nothing but
    MIN_RIDGE is added.
    """
    values, vectors = np.linalg.eigh(noisy)
    d, width = len(noisy), noise * math.sqrt(len(noisy) / 2)  # the root of v
    if width > 0:
        gaps = values[:, None] - values
        smooth = width / math.sqrt(d)  # about the distance of neighbours, so that no gap is too small
        values = values - 2 * width**2 * (gaps / (gaps**2 + smooth**2)).mean(axis=1)
    rising = np.maximum.accumulate(np.maximum(values, 0.0))
    floor = FLOOR * rising.mean() + FLOOR_OF_NOISE * width if width > 0 else 0.0
    return rising + floor + MIN_RIDGE, vectors


def inverse(noisy: Floats, *, noise: float, ridge: float, least: float = MIN_RIDGE) -> Floats:
    """Return the inverse of a noisy second moment or covariance, with regularised eigenvalues."""
    values, vectors = without_noise_floor(noisy, noise=noise, ridge=ridge, least=least)
    return np.asarray(vectors / values @ vectors.T)


def ridge_weights(xx: Floats, xz: Floats, *, noise: float, ridge: float, least: float = MIN_RIDGE) -> Floats:
    """Return the (d, k) weights of the regression of z on x, from mean(x x^T) and mean(x z^T)."""
    values, vectors = without_noise_floor(xx, noise=noise, ridge=ridge, least=least)
    return np.asarray(vectors / values @ (vectors.T @ xz))


def floor_counts(counts: Floats, *, n: float) -> Floats:
    """Return noisy class counts of n records, raised to a minimum so that they can be divided by."""
    return np.maximum(counts, MIN_OF_EQUAL * n / len(counts))


def class_means(sums: Floats, counts: Floats, *, longest: float = 1.0) -> Floats:
    """Return (k, d) class means from (d, k) sums, clipped to `longest`, the bound on the norm of a row."""
    means = (sums / counts).T
    return np.asarray(means / np.maximum(1.0, np.linalg.norm(means, axis=1, keepdims=True) / longest))


def within_classes(xx: Floats, means: Floats, priors: Floats) -> Floats:
    """Return the within-class covariance, mean(x x^T) - sum_j prior_j m_j m_j^T."""
    return np.asarray(xx - means.T @ (means * priors[:, None]))


def discriminant(
    means: Floats, priors: Floats, inverse_within: Floats, *, noise: Floats | float
) -> tuple[Floats, Floats]:
    """Return (d, k) weights and (k,) intercepts; `noise` is the standard deviation of each number in a class mean."""
    weight = inverse_within @ means.T
    square = np.einsum("kd,dk->k", means, weight) - np.square(noise) * np.trace(inverse_within)
    return weight, np.log(priors) - np.maximum(square, 0.0) / 2


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Released moments of each class, and the standard deviation of the noise in each number."""

    sums: Floats  # (d, classes)
    counts: Floats  # (classes,)
    second: Floats  # (d, d)
    n: int
    noise_of_sums: float
    noise_of_counts: float
    noise_of_second: float  # on the diagonal; off the diagonal, divided by sqrt(2)

    @cached_property
    def sizes(self) -> Floats:
        """The class sizes, shrunk towards equal sizes according to the variance of the noise; none is 0."""
        equal = self.n / len(self.counts)
        away = self.counts - equal
        factor = max(
            0.0, 1.0 - len(away) * self.noise_of_counts**2 / max(float(away @ away), np.finfo(np.float64).tiny)
        )
        return floor_counts(equal + factor * away, n=self.n)

    @property
    def shares(self) -> Floats:
        return self.sizes / self.sizes.sum()

    @cached_property
    def spread(self) -> tuple[Floats, Floats]:
        """The eigenvalues and eigenvectors of S+."""
        inside = within_classes(self.second / self.n, class_means(self.sums, self.sizes), self.shares)
        inside += np.eye(len(inside)) * float(self.shares @ (self.noise_of_sums / self.sizes) ** 2)
        return without_noise(inside, noise=self.noise_of_second / self.n)

    @cached_property
    def means(self) -> Floats:
        """The shrunk class means m_k."""
        values, vectors = self.spread
        means = class_means(self.sums, self.sizes)
        middle = self.shares @ means
        away = means - middle
        distance = ((away @ vectors) ** 2 / values).sum(axis=1)
        excess = (self.noise_of_sums / self.sizes) ** 2 * (1 / values).sum()
        factor = np.maximum(0.0, 1.0 - excess / np.maximum(distance, np.finfo(np.float64).tiny))
        return middle + away * factor[:, None]

    def draw(
        self, count: int, rng: np.random.Generator, *, balanced: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Draw `count` rows and their classes; `balanced`: equally often. The randomness need not be secret."""
        values, vectors = self.spread
        labels = rng.choice(len(self.counts), count, p=None if balanced else self.shares)
        rows = rng.standard_normal((count, len(values)), dtype=np.float32)
        root = (vectors * np.sqrt(values)).T.astype(np.float32)
        return self.means[labels].astype(np.float32) + rows @ root, labels
