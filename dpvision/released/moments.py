"""What follows from moments, exact or noisy: linear classifiers in closed form, and rows that anyone may draw.

    ridge            W = (C + floor)^(-1) X^T Z / n
    discriminant     score of class j = x^T S^(-1) m_j - 1/2 m_j^T S^(-1) m_j + log prior_j,   S inside the classes

Noise makes the eigenvalues of a second moment spread by a known amount, and m_j^T S^(-1) m_j larger by its variance
times tr S^(-1): what is known is taken off. Nothing here reads private data; moments come in as they were released.

Rows come from one Gaussian for each class, with one covariance for all:

    mean_k = sums_k / counts_k
    S      = second / n - sum_k p_k mean_k mean_k^T + what the noise of the means added to that, known, as I times it
    row    ~ N( m_k, S+ )    k drawn by p; S+ is S without eigenvalues below 0, plus the noise floor

The noise makes means longer. In the metric of S it adds v_k tr(S^-1) to their squared distance from the mean of all,
with v_k its known variance: so m_k is drawn to the mean of all by 1 - v_k tr(S^-1) / distance^2 (James and Stein 1961).
So are noisy counts to even ones: with few records, the means' lengths would suffer most from their noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Added to every eigenvalue, of which none is above 1, so that no noise still means no division by 0.
LEAST_RIDGE = 1e-6
# No class is taken to be smaller than this share of an even one: a noisy count may be near or below 0.
LEAST_OF_EVEN = 0.1
# The noise floor of drawn rows, in units of the largest eigenvalue that noise alone would have.
RIDGE = 0.3


def without_noise_floor(
    noisy: Floats, *, noise: float, ridge: float, least: float = LEAST_RIDGE
) -> tuple[Floats, Floats]:
    """Eigenvalues and eigenvectors of a noisy second moment, made safe to invert from public numbers alone.

    `noise` is the standard deviation on the diagonal. The noise is a symmetric Gaussian matrix whose largest eigenvalue
    is about sqrt(2 d) * noise; `ridge` times that is added, after eigenvalues below 0, which only noise can make, are
    set to 0.
    """
    values, vectors = np.linalg.eigh(noisy)
    floor = ridge * math.sqrt(2.0 * len(noisy)) * noise
    return np.maximum(values, 0.0) + floor + least, vectors


def inverse(noisy: Floats, *, noise: float, ridge: float, least: float = LEAST_RIDGE) -> Floats:
    """Of a noisy second moment or covariance, its eigenvalues made safe."""
    values, vectors = without_noise_floor(noisy, noise=noise, ridge=ridge, least=least)
    return np.asarray(vectors / values @ vectors.T)


def ridge_weights(xx: Floats, xz: Floats, *, noise: float, ridge: float, least: float = LEAST_RIDGE) -> Floats:
    """(d, k) weights of the regression of z on x, from mean(x x^T) and mean(x z^T)."""
    values, vectors = without_noise_floor(xx, noise=noise, ridge=ridge, least=least)
    return np.asarray(vectors / values @ (vectors.T @ xz))


def not_too_small(counts: Floats, *, n: float) -> Floats:
    """Noisy counts of the classes of n records, safe to divide by."""
    return np.maximum(counts, LEAST_OF_EVEN * n / len(counts))


def class_means(sums: Floats, counts: Floats, *, longest: float = 1.0) -> Floats:
    """(k, d) from (d, k) sums; no mean of rows is longer than the longest row."""
    means = (sums / counts).T
    return np.asarray(means / np.maximum(1.0, np.linalg.norm(means, axis=1, keepdims=True) / longest))


def within_classes(xx: Floats, means: Floats, priors: Floats) -> Floats:
    """mean(x x^T) - sum_j prior_j m_j m_j^T, the covariance inside the classes."""
    return np.asarray(xx - means.T @ (means * priors[:, None]))


def discriminant(
    means: Floats, priors: Floats, inverse_within: Floats, *, noise: Floats | float
) -> tuple[Floats, Floats]:
    """(d, k) weights and (k,) intercepts; `noise` is the standard deviation of each number in a class's mean."""
    weight = inverse_within @ means.T
    square = np.einsum("kd,dk->k", means, weight) - np.square(noise) * np.trace(inverse_within)
    return weight, np.log(priors) - np.maximum(square, 0.0) / 2


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Released numbers and the standard deviation of the noise in each of them."""

    sums: Floats  # (d, classes)
    counts: Floats  # (classes,)
    second: Floats  # (d, d)
    n: int
    noise_of_sums: float
    noise_of_counts: float
    noise_of_second: float  # on the diagonal; off it, over sqrt(2)

    @cached_property
    def sizes(self) -> Floats:
        """Of the classes: drawn to even ones by as much as noise alone would scatter them; none of them empty."""
        even = self.n / len(self.counts)
        away = self.counts - even
        kept = max(0.0, 1.0 - len(away) * self.noise_of_counts**2 / max(float(away @ away), np.finfo(np.float64).tiny))
        return not_too_small(even + kept * away, n=self.n)

    @property
    def shares(self) -> Floats:
        return self.sizes / self.sizes.sum()

    @cached_property
    def spread(self) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of S+."""
        inside = within_classes(self.second / self.n, class_means(self.sums, self.sizes), self.shares)
        inside += np.eye(len(inside)) * float(self.shares @ (self.noise_of_sums / self.sizes) ** 2)
        return without_noise_floor(inside, noise=self.noise_of_second / self.n, ridge=RIDGE)

    @cached_property
    def means(self) -> Floats:
        """m_k."""
        values, vectors = self.spread
        means = class_means(self.sums, self.sizes)
        middle = self.shares @ means
        away = means - middle
        distance = ((away @ vectors) ** 2 / values).sum(axis=1)
        excess = (self.noise_of_sums / self.sizes) ** 2 * (1 / values).sum()
        kept = np.maximum(0.0, 1.0 - excess / np.maximum(distance, np.finfo(np.float64).tiny))
        return middle + away * kept[:, None]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`count` rows and their classes. Coins need not be secret."""
        values, vectors = self.spread
        labels = rng.choice(len(self.counts), count, p=self.shares)
        rows = rng.standard_normal((count, len(values)), dtype=np.float32)
        root = (vectors * np.sqrt(values)).T.astype(np.float32)
        return self.means[labels].astype(np.float32) + rows @ root, labels
