"""What all learners share: scikit-learn's interface, over scores of each class.

    fit(X, y)            X (T, d), used as float32; y (T, K) soft labels or (T,) classes
    scores(X)            (N, K): the highest is the class
    predict, predict_proba, score, get_params, set_params, clone, pipelines: as scikit-learn has them

X that cannot be used is refused by scikit-learn itself, with its ValueError; settings and labels with ConfigError.
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

# Rows that are worked on at a time.
AT_A_TIME = 2048


class Learner(ClassifierMixin, BaseEstimator, ABC):
    """A subclass learns from (T, d) and (T, K) float32 in `_learn`, and gives scores in `_scores`."""

    classes: int | None

    def fit(self, X: Any, y: Any) -> Self:
        self._check()
        x = validate_data(self, X, dtype=np.float32)
        labels, self.classes_ = soft_labels(y, classes=self.classes, rows=len(x))
        self._learn(x, labels)
        return self

    def scores(self, X: Any) -> Floats:
        """(N, K)."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float32, reset=False)
        return np.concatenate([self._scores(part) for part in blocks(x)])

    def predict(self, X: Any) -> NDArray[Any]:
        best = self.scores(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Floats:
        """(N, K), each row adding up to 1."""
        return np.asarray(softmax(self.scores(X), axis=1))

    @abstractmethod
    def _check(self) -> None:
        """Refuses settings that make no sense."""

    @abstractmethod
    def _learn(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None: ...

    @abstractmethod
    def _scores(self, x: NDArray[np.float32]) -> Floats: ...


class LinearRule(Learner):
    """Scores x @ weight_ + bias_."""

    weight_: Floats  # (d, K)
    bias_: Floats  # (K,)

    def _scores(self, x: NDArray[np.float32]) -> Floats:
        return np.asarray(x.astype(np.float64) @ self.weight_ + self.bias_)


def blocks(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """A few rows at a time; all of them in float64 may be more than there is room for."""
    return (x[start : start + AT_A_TIME] for start in range(0, len(x), AT_A_TIME))


def require(name: str, value: Any, *, least: float, above: bool = False, whole: bool = False) -> None:
    """A finite number of at least `least`, or above it."""
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    good = isinstance(value, kinds) and not isinstance(value, bool) and bool(np.isfinite(value))
    if not good or value < least or (above and value == least):
        kind = "whole number" if whole else "finite number"
        raise ConfigError(f"{name} is {value!r}: it must be a {kind} {'above' if above else 'of at least'} {least:g}.")


def soft_labels(y: Any, *, classes: int | None, rows: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """(T, K) float32, and the names of the K classes.

    y                       classes       names
    (T, K) numbers          None or K     0 to K - 1; numbers below 0 and above 1 are fine
    (T,) whole numbers      K             0 to K - 1, whether or not there are rows of each
    (T,) anything           None          those that are there, sorted
    """
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int) or classes < 2):
        raise ConfigError(f"classes is {classes!r}: the number of classes is a whole number above 1, or None.")
    if y is None:
        raise ConfigError("y is None: a learner requires y to be passed, soft labels (T, K) or classes (T,).")
    found = np.asarray(y)
    if found.shape[:1] != (rows,):
        raise ConfigError(f"y has shape {found.shape}, but there are {rows} rows: there must be as many labels.")
    if found.ndim == 2:
        return _soft(found, classes)
    if found.ndim != 1:
        raise ConfigError(f"y has shape {found.shape}: it must be soft labels (T, K) or classes (T,).")
    if classes is not None:
        if found.dtype.kind not in "iu" or not (found.min() >= 0 and found.max() < classes):
            raise ConfigError(f"y must be whole numbers from 0 to {classes - 1}, as classes={classes} was given.")
        names = np.arange(classes)
        return np.eye(classes, dtype=np.float32)[found], names
    if found.dtype.kind == "f" and not (np.isfinite(found).all() and (found == np.trunc(found)).all()):
        raise ConfigError("Unknown label type: y has numbers that are not whole. Fix: classes, or labels (T, K).")
    names, places = np.unique(found, return_inverse=True)
    if len(names) < 2:
        raise ConfigError(f"y has one class only ({names[0]!r}). Fix: classes=, where others were possible.")
    return np.eye(len(names), dtype=np.float32)[places], names


def _soft(found: NDArray[Any], classes: int | None) -> tuple[NDArray[np.float32], NDArray[Any]]:
    if found.shape[1] < 2 or found.dtype.kind not in "fiu":
        raise ConfigError(f"y is {found.dtype} of shape {found.shape}: soft labels need a column for each class.")
    if classes not in (None, found.shape[1]):
        raise ConfigError(f"y has {found.shape[1]} columns, but classes={classes} was given.")
    soft = found.astype(np.float32, copy=False)
    if not np.isfinite(soft).all():
        raise ConfigError("y has numbers that are not finite. Fix: leave those rows out.")
    return soft, np.arange(found.shape[1])
