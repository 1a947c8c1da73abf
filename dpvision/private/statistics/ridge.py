"""Ridge regression on the classes from second moments that are released once: perturbed sufficient statistics.

One vector is released for all: ( a vec(X^T X), b X^T Z ), where row i of Z is its class as 0 and 1, less 1/k, and
a^2 + b^2 = 1. Regression is linear in Z, so taking 1/k off changes every class alike and no decision.

Formal guarantee: one row x with target z adds ( a vec(x x^T), b x z^T ) with |x| <= 1, |vec(x x^T)| = |x|^2
(second_moment.py) and |z|^2 = 1 - 1/k. So its length is at most sqrt(a^2 + b^2 (1 - 1/k)), which is the sensitivity.
The event is Gaussian(sigma, 1). The regression is computed from the noisy vector, n, d and sigma: post-processing.

After Wang 2018 (Revisiting differentially private linear regression, arXiv 1803.02596, AdaSSP), whose regulariser is
made from the noise and a noisy smallest eigenvalue; here it is made from the noise alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpvision.core.rows import BoundedSum, Floats, Rows
from dpvision.errors import ConfigError
from dpvision.private.statistics.logistic import Noisy
from dpvision.private.statistics.second_moment import second_moment, to_matrix, to_vector
from dpvision.private.statistics.whitening import require_ridge
from dpvision.released.moments import ridge_weights


@dataclass(frozen=True)
class Moments:
    """`share` is a^2, what the second moment gets of the sensitivity; `ridge` is in units of the noise."""

    share: float = 0.5
    ridge: float = 1.0

    def __post_init__(self) -> None:
        require_ridge(self.ridge)
        if not (isinstance(self.share, int | float) and 0 < self.share < 1):
            raise ConfigError(f"share is {self.share!r}: the second moment's share must be between 0 and 1.")

    @property
    def releases(self) -> int:
        return 1

    @property
    def needs_public(self) -> bool:
        return False

    def fit(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        a, b = math.sqrt(self.share), math.sqrt(1 - self.share)
        d, k = rows.width, rows.classes
        asked = moments(rows, share=self.share)
        got = noisy(asked) / n
        size = d * (d + 1) // 2
        xx, xz = to_matrix(got[:size] / a, d), got[size:].reshape(d, k) / b
        return ridge_weights(xx, xz, noise=sigma * asked.sensitivity / (a * n), ridge=self.ridge), None


def moments(rows: Rows, *, share: float) -> BoundedSum:
    """( a vec(X^T X), b X^T (Y - 1/k) ) with a^2 = share and b^2 = 1 - share."""
    a, b, k = math.sqrt(share), math.sqrt(1 - share), rows.classes
    xz = np.zeros((rows.width, k))
    for x, y in rows.blocks():
        xz += x.T @ (y - 1.0 / k)  # a row without a class is zero, so it adds nothing
    total = np.concatenate([a * to_vector(second_moment(rows)), b * xz.reshape(-1)])
    return BoundedSum(total, math.sqrt(share + (1 - share) * (1 - 1.0 / k)))
