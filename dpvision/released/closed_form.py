"""Linear classifiers in closed form from moments, exact or noisy: the mathematics alone, for whoever has the moments.

    ridge            W = (C + floor)^(-1) X^T Z / n
    discriminant     score of class j = x^T S^(-1) m_j - 1/2 m_j^T S^(-1) m_j + log prior_j,   S inside the classes

Noise makes the eigenvalues of a second moment spread by a known amount, and m_j^T S^(-1) m_j larger by its variance
times tr S^(-1): what is known is taken off. Nothing here reads private data; moments come in as they were released.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Added to every eigenvalue, of which none is above 1, so that no noise still means no division by 0.
LEAST_RIDGE = 1e-6
# No class is taken to be smaller than this share of an even one: a noisy count may be near or below 0.
LEAST_OF_EVEN = 0.1


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
