"""The base class of all learners: scikit-learn's interface, from a score of each class.

    fit(X, y)            X (T, d), used as float32; y (T, K) soft labels or (T,) classes
    scores(X)            (N, K); the class is the one with the highest score
    predict, predict_proba, score, get_params, set_params, clone, pipelines: as in scikit-learn

scikit-learn refuses an invalid X with ValueError; invalid settings and labels raise ConfigError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dpvision.errors import ConfigError
from dpvision.released.moments import Floats

# Number of rows processed at a time.
AT_A_TIME = 2048


class Learner(ClassifierMixin, BaseEstimator, ABC):
    """A classifier trained on released rows. Subclasses learn from (T, d) and (T, K) float32 in `_learn`."""

    classes: int | None

    def fit(self, X: Any, y: Any) -> Self:
        self._check()
        x = validate_data(self, X, dtype=np.float32)
        labels, self.classes_ = soft_labels(y, classes=self.classes, rows=len(x))
        self._learn(x, labels)
        return self

    def scores(self, X: Any) -> Floats:
        """Return the (N, K) scores of the classes."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float32, reset=False)
        return np.concatenate([self._scores(part) for part in blocks(x)])

    def predict(self, X: Any) -> NDArray[Any]:
        best = self.scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Floats:
        """Return the (N, K) probabilities of the classes."""
        return np.asarray(softmax(self.scores(X), axis=1))

    @abstractmethod
    def _check(self) -> None:
        """Refuse settings that are out of range."""

    @abstractmethod
    def _learn(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None: ...

    @abstractmethod
    def _scores(self, x: NDArray[np.float32]) -> Floats: ...


class LinearRule(Learner):
    """A learner whose scores are x @ weight_ + bias_."""

    weight_: Floats  # (d, K)
    bias_: Floats  # (K,)

    def _scores(self, x: NDArray[np.float32]) -> Floats:
        return np.asarray(x.astype(np.float64) @ self.weight_ + self.bias_)


def blocks(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Iterate over AT_A_TIME rows at a time, because all of them in float64 may not fit in memory."""
    return (x[start : start + AT_A_TIME] for start in range(0, len(x), AT_A_TIME))


def require(name: str, value: Any, *, least: float, above: bool = False, whole: bool = False) -> None:
    """Refuse anything but a finite number of at least `least`, or above it."""
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    good = isinstance(value, kinds) and not isinstance(value, bool) and bool(np.isfinite(value))
    if not good or value < least or (above and value == least):
        kind = "whole number" if whole else "finite number"
        raise ConfigError(f"{name} is {value!r}: it must be a {kind} {'above' if above else 'of at least'} {least:g}.")


def soft_labels(y: Any, *, classes: int | None, rows: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return labels as (T, K) float32, and the names of the K classes.

    y                       classes       names
    (T, K) numbers          None or K     0 to K - 1; numbers below 0 and above 1 are fine
    (T,) whole numbers      K             0 to K - 1, whether or not there are rows of each
    (T,) anything           None          those in y, sorted
    """
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int) or classes < 2):
        raise ConfigError(f"classes is {classes!r}: it must be the number of classes, a whole number above 1, or None.")
    if y is None:
        raise ConfigError("y is None: a learner requires y to be passed, as soft labels (T, K) or classes (T,).")
    labels = np.asarray(y)
    if labels.shape[:1] != (rows,):
        raise ConfigError(f"y has shape {labels.shape}, but there are {rows} rows: each row needs one label.")
    if labels.ndim == 2:
        return _check_soft(labels, classes)
    if labels.ndim != 1:
        raise ConfigError(f"y has shape {labels.shape}: it must be soft labels (T, K) or classes (T,).")
    if classes is not None:
        if labels.dtype.kind not in "iu" or not (labels.min() >= 0 and labels.max() < classes):
            raise ConfigError(f"y must be whole numbers from 0 to {classes - 1}, as classes={classes} was given.")
        names = np.arange(classes)
        return np.eye(classes, dtype=np.float32)[labels], names
    if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.trunc(labels)).all()):
        raise ConfigError(
            "Unknown label type: y has numbers that are not whole. Fix: give classes (T,) or soft labels (T, K)."
        )
    names, places = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise ConfigError(f"y has only one class ({names[0]}). Fix: set classes, if others are possible.")
    return np.eye(len(names), dtype=np.float32)[places], names


def _check_soft(labels: NDArray[Any], classes: int | None) -> tuple[NDArray[np.float32], NDArray[Any]]:
    if labels.shape[1] < 2 or labels.dtype.kind not in "fiu":
        raise ConfigError(
            f"y is {labels.dtype} of shape {labels.shape}: soft labels must be numbers, with a column per class."
        )
    if classes not in (None, labels.shape[1]):
        raise ConfigError(f"y has {labels.shape[1]} columns, but classes={classes} was given.")
    soft = labels.astype(np.float32, copy=False)
    if not np.isfinite(soft).all():
        raise ConfigError("y has values that are not finite. Fix: leave those rows out.")
    return soft, np.arange(labels.shape[1])
