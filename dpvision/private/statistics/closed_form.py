"""Linear classifiers in closed form, from one noisy vector: ridge regression ("moments") and the linear discriminant
("lda"). Everything computed from the noisy vector is post-processing, and the event is Gaussian(sigma, 1).

Ridge regression releases ( a vec(X^T X), b X^T Z ), where row i of Z is the one-hot class of record i minus 1/k, and
a^2 + b^2 = 1. Regression is linear in Z, so subtracting 1/k shifts the scores of all classes equally and changes no
prediction.

Formal guarantee: one row x with target z adds ( a vec(x x^T), b x z^T ) with |x| <= 1, |vec(x x^T)| = |x|^2
(row_sums.py) and |z|^2 = 1 - 1/k. So its norm is at most sqrt(a^2 + b^2 (1 - 1/k)), which is the sensitivity.

The method follows Wang 2018 (Revisiting differentially private linear regression, arXiv 1803.02596, AdaSSP), where the
regulariser is computed from the noise and a noisy smallest eigenvalue; here it is computed from the noise alone.

The discriminant releases ( b X^T Y, c counts, a vec(X^T X) ) with a^2 + b^2 + c^2 = 1 and sensitivity 1
(row_sums.class_statistics). With `balanced`, no counts are released (c = 0); without a private covariance, no second
moment is released (a = 0).

    score of class j:  x^T S^(-1) m_j - 1/2 m_j^T S^(-1) m_j + log prior_j        (released/moments.py)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpvision.core.rows import BoundedSum, Floats, Rows, row_norms
from dpvision.errors import ConfigError
from dpvision.private.statistics.ranges import check_ranges, fraction, one_of, positive
from dpvision.private.statistics.row_sums import (
    AddNoise,
    class_statistics,
    require_one_class_each,
    second_moment,
    split_statistics,
    to_matrix,
    to_vector,
)
from dpvision.private.statistics.whitening import add_ridge, covariance
from dpvision.released.moments import (
    class_means,
    discriminant,
    floor_counts,
    inverse,
    ridge_weights,
    within_classes,
)
from dpvision.settings.setting import OBJECTIVES

# Without a covariance: the minimum share of a row's squared norm that is attributed to variation within its class.
MIN_VARIANCE = 1e-3


@dataclass(frozen=True)
class Moments:
    """Ridge regression. `share` is a^2, the share of the second moment; `ridge` is in units of the noise."""

    releases: ClassVar[int] = 1
    needs_public: ClassVar[bool] = False
    share: float = fraction(0.5)
    ridge: float = positive(1.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    def fit(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        a, b = math.sqrt(self.share), math.sqrt(1 - self.share)
        d, k = rows.width, rows.classes
        exact = regression_sums(rows, share=self.share)
        noisy = add_noise(exact) / n
        size = d * (d + 1) // 2
        xx, xz = to_matrix(noisy[:size] / a, d), noisy[size:].reshape(d, k) / b
        return ridge_weights(xx, xz, noise=sigma * exact.sensitivity / (a * n), ridge=self.ridge), None


def regression_sums(rows: Rows, *, share: float) -> BoundedSum:
    """Return ( a vec(X^T X), b X^T (Y - 1/k) ) with a^2 = share and b^2 = 1 - share."""
    require_one_class_each(rows)
    a, b, k = math.sqrt(share), math.sqrt(1 - share), rows.classes
    xz = np.zeros((rows.width, k))
    for x, y, each in rows.blocks():
        xz += x.T @ ((y - 1.0 / k) * each)  # a row without a class is zero, so it adds nothing
    total = np.concatenate([a * to_vector(second_moment(rows)), b * xz.reshape(-1)])
    return BoundedSum(total, math.sqrt(share + (1 - share) * (1 - 1.0 / k)))


@dataclass(frozen=True)
class Discriminant:
    """The linear discriminant, with a private covariance, a public covariance or none.

    `balanced` states that the classes are equally frequent. With the `objective` "balanced" all classes get the same
    prior, whatever their frequency. `share` is a^2 and `counts_share` is c^2; the class sums get the rest. `ridge` is
    in units of the noise or, with a public covariance, the ridge of whitening.py.
    """

    releases: ClassVar[int] = 1
    covariance: str = one_of("none", "private", "public")
    balanced: bool = False
    share: float = fraction(0.5)
    counts_share: float = fraction(0.05)
    ridge: float = positive(1.0)
    objective: str = one_of(*OBJECTIVES)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.share + self.counts_share >= 1:
            raise ConfigError("share and counts_share leave nothing for the class sums: their sum must be below 1.")

    @property
    def needs_public(self) -> bool:
        return self.covariance == "public"

    def weights(self) -> tuple[float, float, float]:
        """Return a, b and c, the weights of the second moment, the class sums and the counts."""
        a2 = self.share if self.covariance == "private" else 0.0
        c2 = 0.0 if self.balanced else self.counts_share
        return math.sqrt(a2), math.sqrt(1 - a2 - c2), math.sqrt(c2)

    def fit(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        a, b, c = self.weights()
        d, k = rows.width, rows.classes
        exact = class_statistics(rows, a=a, b=b, c=c)
        noisy = add_noise(exact)
        noise = sigma * exact.sensitivity
        sums, noisy_counts, second = split_statistics(noisy, width=d, classes=k, a=a, b=b, c=c)
        counts: Floats = np.full(k, n / k) if noisy_counts is None else floor_counts(noisy_counts, n=n)
        means = class_means(sums, counts)
        priors = counts / counts.sum()
        if second is not None:
            inverted = inverse(within_classes(second / n, means, priors), noise=noise / (a * n), ridge=self.ridge)
        elif self.needs_public:
            assert public is not None  # setup.py raises an error otherwise, before any charge
            inverted = np.linalg.inv(add_ridge(covariance(public.x.astype(np.float64)), self.ridge)).astype(np.float64)
        else:
            within = max(1.0 - float(priors @ row_norms(means)[:, 0] ** 2), MIN_VARIANCE) / d
            inverted = np.eye(d) / within
        if self.objective == "balanced":
            priors = np.full(k, 1.0 / k)
        return discriminant(means, priors, inverted, noise=noise / (b * counts))
