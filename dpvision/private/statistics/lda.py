"""The linear discriminant from private class sums and counts, and a covariance that is private, public, or none.

One vector is released for all: ( b X^T Y, c counts, a vec(X^T X) ) with a^2 + b^2 + c^2 = 1; with `balanced` there are
no counts (c = 0), and with a covariance that is not private no second moment (a = 0).

Formal guarantee: one row x of class y adds ( b x y^T, c y, a vec(x x^T) ) with |x y^T| = |x| <= 1, |y| = 1 and
|vec(x x^T)| = |x|^2 <= 1 (second_moment.py), so its length is at most sqrt(a^2 + b^2 + c^2) = 1, the sensitivity. The
event is Gaussian(sigma, 1). Means, priors, covariance and the discriminant are post-processing.

    score of class j:  x^T S^(-1) m_j - 1/2 m_j^T S^(-1) m_j + log prior_j        (released/moments.py)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpvision.core.rows import BoundedSum, Floats, Rows, lengths
from dpvision.errors import ConfigError
from dpvision.private.statistics.logistic import Noisy
from dpvision.private.statistics.second_moment import second_moment, to_matrix, to_vector
from dpvision.private.statistics.whitening import covariance, require_ridge, ridged
from dpvision.released.moments import class_means, discriminant, inverse, not_too_small, within_classes

COVARIANCES = ("none", "private", "public")
# Without a covariance: the least share of a row's squared length that is taken to be inside its class.
LEAST_VARIANCE = 1e-3


@dataclass(frozen=True)
class Discriminant:
    """`share` is a^2 and `counts_share` c^2; class sums get what is left. `ridge` as in moments.py or whitening.py."""

    covariance: str = "none"
    balanced: bool = False
    share: float = 0.5
    counts_share: float = 0.05
    ridge: float = 1.0

    def __post_init__(self) -> None:
        require_ridge(self.ridge)
        if self.covariance not in COVARIANCES:
            raise ConfigError(f"covariance is {self.covariance!r}: it must be one of {', '.join(COVARIANCES)}.")
        for name, value in (("share", self.share), ("counts_share", self.counts_share)):
            if not (isinstance(value, int | float) and 0 < value < 1):
                raise ConfigError(f"{name} is {value!r}: it must be between 0 and 1.")
        if self.share + self.counts_share >= 1:
            raise ConfigError("share and counts_share leave nothing for the class sums: they must add up to below 1.")

    @property
    def releases(self) -> int:
        return 1

    @property
    def needs_public(self) -> bool:
        return self.covariance == "public"

    def weights(self) -> tuple[float, float, float]:
        """a, b, c."""
        a2 = self.share if self.covariance == "private" else 0.0
        c2 = 0.0 if self.balanced else self.counts_share
        return math.sqrt(a2), math.sqrt(1 - a2 - c2), math.sqrt(c2)

    def fit(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        a, b, c = self.weights()
        d, k = rows.width, rows.classes
        asked = class_statistics(rows, a=a, b=b, c=c)
        got = noisy(asked)
        noise = sigma * asked.sensitivity
        sums = got[: d * k].reshape(d, k) / b
        counts: Floats = np.full(k, n / k)
        if c:
            counts = not_too_small(got[d * k : d * k + k] / c, n=n)
        means = class_means(sums, counts)
        priors = counts / counts.sum()
        if a:
            xx = to_matrix(got[d * k + k * (c > 0) :] / a, d) / n
            inverted = inverse(within_classes(xx, means, priors), noise=noise / (a * n), ridge=self.ridge)
        elif self.needs_public:
            assert public is not None  # setup.py refuses without, before anything is charged
            inverted = np.linalg.inv(ridged(covariance(public.x.astype(np.float64)), self.ridge)).astype(np.float64)
        else:
            within = max(1.0 - float(priors @ lengths(means)[:, 0] ** 2), LEAST_VARIANCE) / d
            inverted = np.eye(d) / within
        return discriminant(means, priors, inverted, noise=noise / (b * counts))


def class_statistics(rows: Rows, *, a: float, b: float, c: float) -> BoundedSum:
    """( b X^T Y, c counts, a vec(X^T X) ); what has weight 0 is left out."""
    sums, counts = np.zeros((rows.width, rows.classes)), np.zeros(rows.classes)
    for x, y in rows.blocks():
        sums += x.T @ y
        counts += y.sum(axis=0)
    parts = [b * sums.reshape(-1)]
    if c:
        parts.append(c * counts)
    if a:
        parts.append(a * to_vector(second_moment(rows)))
    return BoundedSum(np.concatenate(parts), math.sqrt(a**2 + b**2 + c**2))
