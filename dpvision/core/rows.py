"""Private rows of length at most 1, made from features one row at a time by public rules; and bounded sums of them.

Formal guarantee: row i of what `Preparation.apply` returns depends on row i of the features and on public numbers only,
and its Euclidean length is at most 1, whatever is in it. So adding or removing one image adds or removes one row of
length at most 1 and moves no other.

    row of features                prepared row
    shorter than `bound`           divided by `bound`
    longer than `bound`            shortened to length 1
    NaN or infinite somewhere      zero, with no class: it is in no sum and in no count
    too small to be measured       at most length 1 (it is measured again after scaling)

float32 keeps a row within 2^-24 of itself, and the row is made shorter by 2^-22 first, so it stays within length 1.
That a row's last bit does not depend on the rows next to it is tested and not proven: it is up to the library that
multiplies matrices. What that may add to the sensitivity is far below noise.ARITHMETIC_SLACK.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError

Floats = NDArray[np.float64]
AT_A_TIME = 256  # rows that are processed together, in float64
LARGEST = 1e100  # features are clipped to this magnitude, so that no square overflows
SHORTER = 1 - 2.0**-22  # room for rounding to float32


class BoundedSum(NamedTuple):
    """A sum over private rows, with the most by which one row more or less moves it in Euclidean length."""

    total: Floats
    sensitivity: float


@runtime_checkable
class PublicMap(Protocol):
    """A linear map of public numbers that is applied to each row alone, such as whitening.Whitening."""

    @property
    def mean(self) -> Floats: ...

    @property
    def matrix(self) -> Floats: ...

    @property
    def width(self) -> int: ...

    def apply(self, x: Floats) -> Floats: ...


@dataclass(frozen=True)
class Preparation:
    """How each row is prepared, before anything is learned from it and again before it is classified.

    bound       rows longer than this are shortened to it; then all are divided by it
    unit        every row is brought to length 1, not only the longer ones
    whitening   a public linear map that goes first; its rows are brought to length 1
    intercept   a constant feature of this length next to a row of length 1; both together are then scaled to 1
    centre      one more release is spent on the mean row, which is then subtracted from each row
    """

    bound: float = 1.0
    unit: bool = False
    whitening: PublicMap | None = None
    intercept: float = 0.0
    centre: bool = False

    def __post_init__(self) -> None:
        if self.centre and self.intercept:
            raise ConfigError("intercept: subtracting the mean row removes it. Fix: leave intercept or centre out.")
        if not (isinstance(self.bound, int | float) and 0 < self.bound < math.inf):
            raise ConfigError(f"bound is {self.bound!r}: the largest length of a row must be a finite number above 0.")
        if not (isinstance(self.intercept, int | float) and 0 <= self.intercept < math.inf):
            raise ConfigError(f"intercept is {self.intercept!r}: it must be a finite number, 0 for none.")
        if self.whitening is not None and not isinstance(self.whitening, PublicMap):
            raise ConfigError("whitening must be made by Whitening.of(public features).")
        if self.bound != 1 and (self.unit or self.whitening):
            raise ConfigError("bound has no effect on rows that are brought to length 1. Fix: leave bound out.")

    @property
    def constant(self) -> float:
        """The value of the constant feature in a prepared row."""
        return float(np.float32(self.intercept / math.hypot(1.0, self.intercept) * SHORTER))

    def apply(self, features: Any, *, name: str = "features") -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(N, d) features -> rows of length at most 1, with a column more for an intercept; and which were finite."""
        matrix = as_matrix(features, name)
        if self.whitening is not None and matrix.shape[1] != len(self.whitening.mean):
            of = len(self.whitening.mean)
            raise ConfigError(f"{name} have {matrix.shape[1]} columns, but the whitening was made from {of}.")
        width = matrix.shape[1] if self.whitening is None else self.whitening.width
        out = np.zeros((len(matrix), width + (self.intercept > 0)), dtype=np.float32)
        finite = np.zeros(len(matrix), dtype=np.bool_)
        for start in range(0, len(matrix), AT_A_TIME):
            count = min(AT_A_TIME, len(matrix) - start)
            block = np.zeros((AT_A_TIME, matrix.shape[1]))  # of one size: a product then rounds each row alike
            block[:count] = matrix[start : start + count]
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes a row of zeros
                x, good = self._apply(block)
            out[start : start + count], finite[start : start + count] = x[:count], good[:count]
        return out, finite

    def _apply(self, x: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        finite = np.asarray(np.isfinite(x).all(axis=1))
        x = np.where(finite[:, None], np.clip(x, -LARGEST, LARGEST), 0.0)
        if self.whitening is not None:
            x = self.whitening.apply(x)
        if self.unit or self.whitening is not None:
            length = lengths(x)
            x = np.divide(x, length, out=np.zeros_like(x), where=length > 0)
        else:
            x = x / self.bound
        x = x / np.maximum(1.0, lengths(x))
        if self.intercept:
            x = np.hstack([x, np.full((len(x), 1), self.intercept)]) / math.hypot(1.0, self.intercept)
        finite = finite & np.isfinite(x).all(axis=1)
        return np.where(finite[:, None], x * SHORTER, 0.0), finite


@dataclass(frozen=True, eq=False)
class Rows:
    """Prepared rows with their classes; -1 is the class of a row that is in no sum."""

    x: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: int

    @staticmethod
    def of(features: Any, labels: Any, preparation: Preparation, *, classes: int) -> Rows:
        numbers = as_classes(labels, "labels", classes=classes)
        x, finite = preparation.apply(features)
        if len(numbers) != len(x):
            raise ConfigError(f"there are {len(x)} rows of features and {len(numbers)} labels: each row needs one.")
        return Rows(x, np.where(finite, numbers, -1), classes)

    @staticmethod
    def public(features: Any, preparation: Preparation) -> Rows:
        """Public rows without classes, prepared like the private ones."""
        x, finite = preparation.apply(features, name="public")
        if len(x) < 2 or not finite.all():
            raise ConfigError("public must have at least 2 rows, of finite numbers only.")
        return Rows(x, np.full(len(x), -1), classes=0)

    @staticmethod
    def none(classes: int) -> Rows:
        """No rows, to check settings with."""
        return Rows(np.zeros((0, 1), np.float32), np.zeros(0, np.int64), classes)

    @property
    def width(self) -> int:
        return self.x.shape[1]

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which rows are finite; public rows, which have no class, all are."""
        return np.asarray(self.labels >= 0) if self.classes else np.ones(len(self.x), dtype=np.bool_)

    def blocks(self) -> Iterator[tuple[Floats, Floats]]:
        """AT_A_TIME rows at a time, with one-hot classes (all 0 if there is none), in float64.

        The last block is padded with zeros, which are in no sum: how a product rounds depends on the number of rows.
        """
        one_hot = np.vstack([np.eye(self.classes), np.zeros(self.classes)])
        for start in range(0, len(self.x), AT_A_TIME):
            rows = self.x[start : start + AT_A_TIME]
            x, labels = np.zeros((AT_A_TIME, self.width)), np.full(AT_A_TIME, -1)
            x[: len(rows)], labels[: len(rows)] = rows, self.labels[start : start + AT_A_TIME]
            yield x, one_hot[labels]


def lengths(x: Floats) -> Floats:
    """(N, 1) Euclidean lengths."""
    return np.sqrt(np.einsum("nd,nd->n", x, x))[:, None]


def as_matrix(features: Any, name: str) -> NDArray[Any]:
    """The features as an (N, d) array of floats."""
    matrix = _as_array(features, name)
    if matrix.ndim != 2 or matrix.shape[1] == 0 or matrix.dtype.kind != "f":
        raise ConfigError(
            f"{name} must be a matrix of floats with a row for each image, not {matrix.dtype} of shape {matrix.shape}."
        )
    return matrix


def as_classes(labels: Any, name: str, *, classes: int) -> NDArray[np.int64]:
    """Whole numbers from 0 to classes - 1. The number of classes is public, and never taken from the labels."""
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise ConfigError(f"classes is {classes!r}: the number of classes is public, and a whole number above 1.")
    numbers = _as_array(labels, name)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ConfigError(f"{name} must be a list of whole numbers, not {numbers.dtype} of shape {numbers.shape}.")
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < classes):
        raise ConfigError(f"{name} must be from 0 to {classes - 1}, as there are {classes} classes; some are not.")
    return numbers.astype(np.int64)


def _as_array(values: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{name} cannot be read as an array ({exc}).") from exc
