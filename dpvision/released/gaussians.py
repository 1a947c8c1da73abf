"""From released moments to rows that anyone may draw: one Gaussian for each class, with one covariance for all.

    mean_k = sums_k / counts_k
    S      = second / n - sum_k p_k mean_k mean_k^T + what the noise of the means added to that, known, as I times it
    row    ~ N( m_k, S+ )    k drawn by p; S+ is S without eigenvalues below 0, plus the noise floor (closed_form.py)

The noise makes means longer. In the metric of S it adds v_k tr(S^-1) to their squared distance from the mean of all,
with v_k its known variance: so m_k is drawn to the mean of all by 1 - v_k tr(S^-1) / distance^2 (James and Stein 1961).
So are noisy counts to even ones: with few records, the means' lengths would suffer most from their noise.
All of it is post-processing of released numbers: no private row is in reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpvision.released.closed_form import Floats, class_means, not_too_small, within_classes, without_noise_floor

# The noise floor, in units of the largest eigenvalue that noise alone would have.
RIDGE = 0.3


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

    def draw(self, count: int, coins: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`count` rows and their classes. Coins need not be secret."""
        values, vectors = self.spread
        labels = coins.choice(len(self.counts), count, p=self.shares)
        rows = coins.standard_normal((count, len(values)), dtype=np.float32)
        root = (vectors * np.sqrt(values)).T.astype(np.float32)
        return self.means[labels].astype(np.float32) + rows @ root, labels
