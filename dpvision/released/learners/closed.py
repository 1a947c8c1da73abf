"""Ridge regression and the linear discriminant on released rows or moments, in closed form, corrected for known noise.

A released row is a weighted sum of records, and its labels the same sum of their classes: x~ = sum_i w_i x_i + noise,
y~ = sum_i w_i y_i + noise. However the weights were drawn, the mean of x given y is sum_k y_k m_k, where m_k is the
mean of class k. So the class means are the regression of features on labels, without an intercept, and the covariance
of its residual is sum_i w_i^2 times the covariance S inside the classes:

    M = (mean y~ y~^T - s_y^2 I)^(-1) mean y~ x~^T
    S = degree * ( cov x~ - s_x^2 I - M^T (cov y~ - s_y^2 I) M )

With exact classes and one record per row these are the usual means and covariance.

`noise_x` and `noise_y` are standard deviations in each released number. Eigenvalues below 0, which only noise can
cause, are set to 0. Then `ridge` times 2 v sqrt(d/T) is added to all, where v is the mean variance of a feature around
its class: this is how far noise spreads the eigenvalues. Values of `ridge` from 0.03 to 1 were best, and the more
directions records vary in, the smaller: 0.03 on scattering features of MNIST, 0.3 to 1 on pixels of small digits, many
of which never vary.
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
    MIN_RIDGE,
    Floats,
    class_means,
    discriminant,
    floor_counts,
    inverse,
    ridge_weights,
    within_classes,
)

METHODS = ("discriminant", "ridge")


@dataclass(frozen=True, eq=False)
class Averages:
    """Averages over T noisy rows, from which both learners are computed.

    Rows x~ = x + N(0, s_x^2) and labels y~ = y + N(0, s_y^2), whose noise is independent of everything else, have

        mean x~ x~^T = mean x x^T + s_x^2 I,    mean y~ y~^T = mean y y^T + s_y^2 I,    mean x~ y~^T = mean x y^T

    in expectation. The known variance is subtracted. The remaining noise has a standard deviation of s_x^2 sqrt(2/T) on
    the diagonal, and 1/sqrt(2) of that off it.
    """

    rows: int
    x: Floats  # (d,)
    y: Floats  # (K,)
    xx: Floats  # (d, d)
    xy: Floats  # (d, K)
    yy: Floats  # (K, K)

    @staticmethod
    def of(x: NDArray[np.float32], y: NDArray[np.float32]) -> Averages:
        """Compute products in float32 for a few rows at a time, around the mean row, and add them up in float64."""
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
        mean_y = y.mean(axis=0, dtype=np.float64)
        rounding = mean - shift  # the rounding error of the mean in float32, which is in every row
        xx = xx / count + np.outer(mean, mean) - np.outer(rounding, rounding)
        return Averages(count, mean, mean_y, xx, xy / count + np.outer(shift.astype(np.float64), mean_y), yy / count)


class RidgeLearner(LinearRule):
    """Ridge regression of labels on features, both centred. The noise of the labels needs no correction."""

    def __init__(self, *, classes: int | None = None, noise_x: float = 0.0, ridge: float = 0.3) -> None:
        self.classes, self.noise_x, self.ridge = classes, noise_x, ridge

    def _check(self) -> None:
        require("noise_x", self.noise_x, least=0)
        require("ridge", self.ridge, least=0, above=True)

    def _learn(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        avg = Averages.of(x, y)
        covariance = avg.xx - np.outer(avg.x, avg.x)
        noise, least = _spread(covariance, rows=avg.rows)
        self.weight_ = ridge_weights(
            _subtract_noise(covariance, self.noise_x),
            avg.xy - np.outer(avg.x, avg.y),
            noise=noise,
            ridge=self.ridge,
            least=least,
        )
        self.bias_ = avg.y - avg.x @ self.weight_

    def predict_proba(self, X: object) -> Floats:
        """Return the scores, with negative ones set to 0, divided by their sum."""
        shares = np.maximum(self.scores(X), 0.0) + np.finfo(np.float64).tiny
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))


class DiscriminantLearner(LinearRule):
    """The linear discriminant. `degree`, the mean number of records in a row, scales S to that of single records.

    If `balanced`, all classes get the same prior, however many rows they have.
    """

    def __init__(
        self,
        *,
        classes: int | None = None,
        noise_x: float = 0.0,
        noise_y: float = 0.0,
        degree: float = 1.0,
        ridge: float = 0.3,
        balanced: bool = False,
    ) -> None:
        self.classes, self.noise_x, self.noise_y = classes, noise_x, noise_y
        self.degree, self.ridge, self.balanced = degree, ridge, balanced

    def _check(self) -> None:
        require("noise_x", self.noise_x, least=0)
        require("noise_y", self.noise_y, least=0)
        require("degree", self.degree, least=0, above=True)
        require("ridge", self.ridge, least=0, above=True)

    def _learn(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        avg = Averages.of(x, y)
        shares = floor_counts(avg.y, n=float(np.abs(avg.y).sum()))
        labels = _subtract_noise(avg.yy, self.noise_y)
        undo = inverse(labels, noise=0.0, ridge=self.ridge, least=MIN_RIDGE * float(np.trace(avg.yy)))
        means = undo @ avg.xy.T
        around = (avg.xx - np.outer(avg.x, avg.x) - means.T @ (labels - np.outer(avg.y, avg.y)) @ means) * self.degree
        noise, least = _spread(around, rows=avg.rows)
        inverted = inverse(
            _subtract_noise(around, self.noise_x * math.sqrt(self.degree)), noise=noise, ridge=self.ridge, least=least
        )
        # The variance of the noise in a mean: s_x^2 (undo yy undo)_kk / T.
        noise_of_means = self.noise_x * np.sqrt(np.maximum(np.diag(undo @ avg.yy @ undo), 0.0) / avg.rows)
        priors = np.full(len(shares), 1 / len(shares)) if self.balanced else shares / shares.sum()
        self.weight_, self.bias_ = discriminant(means, priors, inverted, noise=noise_of_means)


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
    balanced: bool = False,
) -> DiscriminantLearner | RidgeLearner:
    """Fit a learner directly to released moments: class sums, class counts and the second moment, with their noise.

    sums (d, K)             X^T Y, with noise of standard deviation noise_sums in each number
    counts (K,)             class counts, with noise of standard deviation noise_counts
    second_moment (d, d)    X^T X; noise_moment is the standard deviation of the noise on its diagonal, and that off
                            the diagonal is 1/sqrt(2) of it. This is the case if the noise was added to the upper
                            triangle as a vector of the same norm, or to all d^2 numbers before both halves are
                            averaged, as is done here

    n is the number of records, if that is public; otherwise the sum of the counts is used. `ridge` is in units of the
    noise (moments.without_noise_floor); `longest` is the bound on the norm of a row in the release. With `balanced`,
    the discriminant gives all classes the same prior.
    """
    if balanced and method == "ridge":
        raise ConfigError("balanced: ridge regression has no priors. Fix: use method='discriminant'.")
    if method not in METHODS:
        raise ConfigError(f"method is {method!r}: it must be one of {', '.join(METHODS)}.")
    for name, value in (("noise_sums", noise_sums), ("noise_counts", noise_counts), ("noise_moment", noise_moment)):
        require(name, value, least=0)
    require("ridge", ridge, least=0, above=True)
    require("longest", longest, least=0, above=True)
    xy, sizes, xx = (
        _finite(value, name) for value, name in ((sums, "sums"), (counts, "counts"), (second_moment, "second_moment"))
    )
    if xy.ndim != 2 or xy.shape[1] < 2 or sizes.shape != xy.shape[1:] or xx.shape != (len(xy), len(xy)):
        raise ConfigError(
            f"sums are {xy.shape}, counts {sizes.shape} and second_moment {xx.shape}: "
            "they must be (d, K), (K,) and (d, d), with at least 2 classes."
        )
    total = float(np.maximum(sizes, 0.0).sum()) if n is None else n
    require("n" if n is not None else "the sum of counts", total, least=0, above=True)
    sizes = np.maximum(floor_counts(sizes, n=total), noise_counts)
    xx, noise, least = (xx + xx.T) / (2 * total), noise_moment / total, MIN_RIDGE * longest**2
    learner: DiscriminantLearner | RidgeLearner
    if method == "ridge":
        learner = RidgeLearner(classes=len(sizes), ridge=ridge)
        mean, shares = xy.sum(axis=1) / total, sizes / sizes.sum()
        learner.weight_ = ridge_weights(
            xx - np.outer(mean, mean), xy / total - np.outer(mean, shares), noise=noise, ridge=ridge, least=least
        )
        learner.bias_ = shares - mean @ learner.weight_
    else:
        learner = DiscriminantLearner(classes=len(sizes), ridge=ridge, balanced=balanced)
        means, priors = class_means(xy, sizes, longest=longest), sizes / sizes.sum()
        inverted = inverse(within_classes(xx, means, priors), noise=noise, ridge=ridge, least=least)
        priors = np.full(len(sizes), 1 / len(sizes)) if balanced else priors
        learner.weight_, learner.bias_ = discriminant(means, priors, inverted, noise=noise_sums / sizes)
    learner.classes_, learner.n_features_in_ = np.arange(len(sizes)), len(xy)
    return learner


def _subtract_noise(noisy: Floats, noise: float) -> Floats:
    """Subtract the variance of the noise from the diagonal."""
    return np.asarray(noisy - noise**2 * np.eye(len(noisy)))


def _spread(around: Floats, *, rows: int) -> tuple[float, float]:
    """Return the sampling noise on the diagonal of a covariance of similar features, and the smallest ridge."""
    variance = max(float(np.trace(around)) / len(around), 0.0)
    return variance * math.sqrt(2.0 / rows), MIN_RIDGE * variance + np.finfo(np.float64).tiny


def _finite(value: Any, name: str) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ConfigError(f"{name} must be an array of finite numbers.")
    return array.astype(np.float64)
