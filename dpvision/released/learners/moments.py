"""A linear classifier directly from released moments: class sums, class counts and the second moment, with their noise.

    sums (d, K)             X^T Y + noise of standard deviation noise_sums in each number
    counts (K,)             of the classes, noise_counts
    second_moment (d, d)    X^T X; noise_moment is the standard deviation on its diagonal, with 1/sqrt(2) of it
                            beside: so it is for noise on the upper triangle as a vector of the same length, and for
                            noise on all d^2 numbers, once both halves have been averaged, as is done here

The same mathematics as in heads/: closed_form.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpvision.errors import ConfigError
from dpvision.released.closed_form import (
    LEAST_RIDGE,
    Floats,
    class_means,
    discriminant,
    inverse,
    not_too_small,
    ridge_weights,
    within_classes,
)
from dpvision.released.learners.closed import DiscriminantLearner, RidgeLearner
from dpvision.released.learners.learner import require

METHODS = ("discriminant", "ridge")


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
    """A fitted learner. n is how many records there were, where that is public; else the counts' own sum.

    `ridge` is in units of the noise (closed_form.py); `longest` is the bound on a row's length that the release had.
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


def _finite(value: Any, name: str) -> Floats:
    found = np.asarray(value)
    if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        raise ConfigError(f"{name} must be an array of finite numbers.")
    return found.astype(np.float64)
