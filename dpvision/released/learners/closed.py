"""Ridge regression and the linear discriminant on released rows, in closed form, with the known noise taken off.

A released row is a weighted sum of records, and its labels the same sum of their classes: x~ = sum_i w_i x_i + noise,
y~ = sum_i w_i y_i + noise. However the weights were drawn, given y the mean of x is sum_k y_k m_k, with m_k the mean of
class k. So the class means are the regression of features on labels, without an intercept, and what it leaves is the
covariance S inside the classes, times sum_i w_i^2:

    M = (mean y~ y~^T - s_y^2 I)^(-1) mean y~ x~^T
    S = degree * ( cov x~ - s_x^2 I - M^T (cov y~ - s_y^2 I) M )

With exact classes and one record a row these are the usual means and covariance.

`noise_x` and `noise_y` are standard deviations in each released number. Eigenvalues below 0, which only noise can make,
become 0, and then all get `ridge` times 2 v sqrt(d/T), with v the mean variance of a feature around its class: that is
how far noise spreads eigenvalues. From 0.03 to 1 was best, the less the more directions there are in which records
vary: 0.03 on scattering features of MNIST, 0.3 to 1 on pixels of small digits, many of which never vary.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpvision.released.closed_form import LEAST_RIDGE, Floats, discriminant, inverse, not_too_small, ridge_weights
from dpvision.released.learners.averages import Averages
from dpvision.released.learners.learner import LinearRule, require


class RidgeLearner(LinearRule):
    """Regression of labels on features around their means; `noise_y` would change nothing, as it is in no product."""

    def __init__(self, *, classes: int | None = None, noise_x: float = 0.0, ridge: float = 0.3) -> None:
        self.classes, self.noise_x, self.ridge = classes, noise_x, ridge

    def _check(self) -> None:
        require("noise_x", self.noise_x, least=0)
        require("ridge", self.ridge, least=0, above=True)

    def _learn(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        of = Averages.of(x, y)
        covariance = of.xx - np.outer(of.x, of.x)
        noise, least = _spread(covariance, rows=of.rows)
        self.weight_ = ridge_weights(
            _less(covariance, self.noise_x), of.xy - np.outer(of.x, of.y), noise=noise, ridge=self.ridge, least=least
        )
        self.bias_ = of.y - of.x @ self.weight_

    def predict_proba(self, X: object) -> Floats:
        """Scores are shares already, but for those below 0."""
        shares = np.maximum(self.scores(X), 0.0) + np.finfo(np.float64).tiny
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))


class DiscriminantLearner(LinearRule):
    """`degree` is how many records are in a row, on average: by it, S is that of single records, which are scored."""

    def __init__(
        self,
        *,
        classes: int | None = None,
        noise_x: float = 0.0,
        noise_y: float = 0.0,
        degree: float = 1.0,
        ridge: float = 0.3,
    ) -> None:
        self.classes, self.noise_x, self.noise_y = classes, noise_x, noise_y
        self.degree, self.ridge = degree, ridge

    def _check(self) -> None:
        require("noise_x", self.noise_x, least=0)
        require("noise_y", self.noise_y, least=0)
        require("degree", self.degree, least=0, above=True)
        require("ridge", self.ridge, least=0, above=True)

    def _learn(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        of = Averages.of(x, y)
        shares = not_too_small(of.y, n=float(np.abs(of.y).sum()))
        labels = _less(of.yy, self.noise_y)
        undo = inverse(labels, noise=0.0, ridge=self.ridge, least=LEAST_RIDGE * float(np.trace(of.yy)))
        means = undo @ of.xy.T
        around = (of.xx - np.outer(of.x, of.x) - means.T @ (labels - np.outer(of.y, of.y)) @ means) * self.degree
        noise, least = _spread(around, rows=of.rows)
        inverted = inverse(
            _less(around, self.noise_x * math.sqrt(self.degree)), noise=noise, ridge=self.ridge, least=least
        )
        # Of the noise in a mean: s_x^2 (undo yy undo)_kk / T.
        own = self.noise_x * np.sqrt(np.maximum(np.diag(undo @ of.yy @ undo), 0.0) / of.rows)
        self.weight_, self.bias_ = discriminant(means, shares / shares.sum(), inverted, noise=own)


def _less(noisy: Floats, noise: float) -> Floats:
    """Without the noise's own variance, on the diagonal."""
    return np.asarray(noisy - noise**2 * np.eye(len(noisy)))


def _spread(around: Floats, *, rows: int) -> tuple[float, float]:
    """The standard deviation on the diagonal of a covariance of T rows, were features alike; and the least ridge."""
    variance = max(float(np.trace(around)) / len(around), 0.0)
    return variance * math.sqrt(2.0 / rows), LEAST_RIDGE * variance + np.finfo(np.float64).tiny
