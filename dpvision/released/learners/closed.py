"""Ridge regression and the linear discriminant on released rows or moments, in closed form, known noise taken off.

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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError
from dpvision.released.learners.learner import AT_A_TIME, LinearRule, require
from dpvision.released.moments import (
    LEAST_RIDGE,
    Floats,
    class_means,
    discriminant,
    inverse,
    not_too_small,
    ridge_weights,
    within_classes,
)

METHODS = ("discriminant", "ridge")


@dataclass(frozen=True, eq=False)
class Averages:
    """Of T rows, from which both learners are made; the noise is still in.

    Rows x~ = x + N(0, s_x^2) and labels y~ = y + N(0, s_y^2), with noise that is independent of all else, have

        mean x~ x~^T = mean x x^T + s_x^2 I,    mean y~ y~^T = mean y y^T + s_y^2 I,    mean x~ y~^T = mean x y^T

    in expectation. What is known of the noise is taken off. What is left of it has a standard deviation of
    s_x^2 sqrt(2/T) on the diagonal, and 1/sqrt(2) of that beside it.
    """

    rows: int
    x: Floats  # (d,)
    y: Floats  # (K,)
    xx: Floats  # (d, d)
    xy: Floats  # (d, K)
    yy: Floats  # (K, K)

    @staticmethod
    def of(x: NDArray[np.float32], y: NDArray[np.float32]) -> Averages:
        """Products in float32 for a few rows at a time, around the mean row, added up in float64."""
        count, width = x.shape
        mean = x.mean(axis=0, dtype=np.float64)
        shift = mean.astype(np.float32)
        xx, xy, yy = np.zeros((width, width)), np.zeros((width, y.shape[1])), np.zeros((y.shape[1],) * 2)
        for start in range(0, count, AT_A_TIME):
            labels = y[start : start + AT_A_TIME].astype(np.float64)
            part = x[start : start + AT_A_TIME] - shift
            xx += part.T @ part
            xy += part.T @ labels.astype(np.float32)
            yy += labels.T @ labels
        own = y.mean(axis=0, dtype=np.float64)
        left = mean - shift  # what rounding the mean to float32 left in every row
        xx = xx / count + np.outer(mean, mean) - np.outer(left, left)
        return Averages(count, mean, own, xx, xy / count + np.outer(shift.astype(np.float64), own), yy / count)


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


def fit_moments(
    sums: Any,
    counts: Any,
    second_moment: Any,
    *,
    method: str = "discriminant",
    n: float | None = None,
    noise_sums: float = 0.0,
    noise_counts: float = 0.0,
    noise_moment: float = 0.0,
    ridge: float = 1.0,
    longest: float = 1.0,
) -> DiscriminantLearner | RidgeLearner:
    """A learner fitted directly to released moments: class sums, class counts and the second moment, with their noise.

    sums (d, K)             X^T Y + noise of standard deviation noise_sums in each number
    counts (K,)             of the classes, noise_counts
    second_moment (d, d)    X^T X; noise_moment is the standard deviation on its diagonal, with 1/sqrt(2) of it
                            beside: so it is for noise on the upper triangle as a vector of the same length, and for
                            noise on all d^2 numbers, once both halves have been averaged, as is done here

    n is how many records there were, where that is public; else the counts' own sum. `ridge` is in units of the noise
    (moments.without_noise_floor); `longest` is the bound on a row's length that the release had.
    """
    if method not in METHODS:
        raise ConfigError(f"method is {method!r}: there is {', '.join(METHODS)}.")
    for name, value in (("noise_sums", noise_sums), ("noise_counts", noise_counts), ("noise_moment", noise_moment)):
        require(name, value, least=0)
    require("ridge", ridge, least=0, above=True)
    require("longest", longest, least=0, above=True)
    xy, of_class, xx = (
        _finite(value, name) for value, name in ((sums, "sums"), (counts, "counts"), (second_moment, "second_moment"))
    )
    if xy.ndim != 2 or xy.shape[1] < 2 or of_class.shape != xy.shape[1:] or xx.shape != (len(xy), len(xy)):
        raise ConfigError(
            f"sums are {xy.shape}, counts {of_class.shape} and second_moment {xx.shape}: "
            "they must be (d, K), (K,) and (d, d), with 2 classes at least."
        )
    total = float(np.maximum(of_class, 0.0).sum()) if n is None else n
    require("n" if n is not None else "the sum of counts", total, least=0, above=True)
    of_class = np.maximum(not_too_small(of_class, n=total), noise_counts)
    xx, noise, least = (xx + xx.T) / (2 * total), noise_moment / total, LEAST_RIDGE * longest**2
    learner: DiscriminantLearner | RidgeLearner
    if method == "ridge":
        learner = RidgeLearner(classes=len(of_class), ridge=ridge)
        mean, shares = xy.sum(axis=1) / total, of_class / of_class.sum()
        learner.weight_ = ridge_weights(
            xx - np.outer(mean, mean), xy / total - np.outer(mean, shares), noise=noise, ridge=ridge, least=least
        )
        learner.bias_ = shares - mean @ learner.weight_
    else:
        learner = DiscriminantLearner(classes=len(of_class), ridge=ridge)
        means, priors = class_means(xy, of_class, longest=longest), of_class / of_class.sum()
        inverted = inverse(within_classes(xx, means, priors), noise=noise, ridge=ridge, least=least)
        learner.weight_, learner.bias_ = discriminant(means, priors, inverted, noise=noise_sums / of_class)
    learner.classes_, learner.n_features_in_ = np.arange(len(of_class)), len(xy)
    return learner


def _less(noisy: Floats, noise: float) -> Floats:
    """Without the noise's own variance, on the diagonal."""
    return np.asarray(noisy - noise**2 * np.eye(len(noisy)))


def _spread(around: Floats, *, rows: int) -> tuple[float, float]:
    """The standard deviation on the diagonal of a covariance of T rows, were features alike; and the least ridge."""
    variance = max(float(np.trace(around)) / len(around), 0.0)
    return variance * math.sqrt(2.0 / rows), LEAST_RIDGE * variance + np.finfo(np.float64).tiny


def _finite(value: Any, name: str) -> Floats:
    found = np.asarray(value)
    if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        raise ConfigError(f"{name} must be an array of finite numbers.")
    return found.astype(np.float64)
