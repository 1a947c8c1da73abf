"""Private rows of norm at most 1, made from features one row at a time by public rules; and bounded sums of them.

Formal guarantee: row i of the result of `Preparation.apply` depends only on row i of the features and on public
numbers, and its Euclidean norm is at most 1, whatever the features are. So adding or removing one image adds or removes
one row of norm at most 1 and changes no other row.

If the unit is a person, what the person adds to a sum is the mean of what each of their finite rows would add alone.
A mean of vectors of norm at most S has norm at most S, so a sum that one row changes by at most S is changed by at most
S by a person with any number of rows. The mean is over the rows of that person only; it changes no other contribution.

    row of features                prepared row
    norm below `bound`             divided by `bound`
    norm above `bound`             scaled to norm 1
    contains NaN or Inf            zero, without a class: excluded from all sums and counts
    norm underflows                norm at most 1 (it is computed again after scaling)

Rounding to float32 changes a row by at most 2^-24 of its norm; rows are scaled by 1 - 2^-22 first, so norms stay within
1. That a row's last bit does not depend on neighbouring rows is tested, not proven: it is up to the library that
multiplies matrices. What it may add to the sensitivity is far below noise.ARITHMETIC_SLACK.
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
AT_A_TIME = 256  # number of rows processed at once, in float64
MAX_FEATURE = 1e100  # features are clipped to this magnitude, so that no square overflows
SHORTER = 1 - 2.0**-22  # margin for rounding to float32


class BoundedSum(NamedTuple):
    """A sum over private units; adding or removing one unit moves it by at most `sensitivity` in Euclidean norm."""

    total: Floats
    sensitivity: float


@runtime_checkable
class PublicMap(Protocol):
    """A linear map with public coefficients that is applied to each row separately, such as whitening.Whitening."""

    @property
    def mean(self) -> Floats: ...

    @property
    def matrix(self) -> Floats: ...

    @property
    def width(self) -> int: ...

    def apply(self, x: Floats) -> Floats: ...


@dataclass(frozen=True)
class Preparation:
    """How each row is prepared, for learning from it and in the same way for classifying it.

    bound       rows with a larger norm are scaled down to it; then all rows are divided by it
    unit        every row is scaled to norm 1
    whitening   a public linear map that is applied first; its rows are then scaled to norm 1
    intercept   appends a constant feature of this value to rows of norm at most 1, and scales both to norm at most 1
    centre      spends one more release on the mean row, which is then subtracted from each row
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
            raise ConfigError(f"bound is {self.bound!r}: the largest norm of a row must be a finite number above 0.")
        if not (isinstance(self.intercept, int | float) and 0 <= self.intercept < math.inf):
            raise ConfigError(f"intercept is {self.intercept!r}: it must be a finite number, 0 for none.")
        if self.whitening is not None and not isinstance(self.whitening, PublicMap):
            raise ConfigError("whitening must be made by Whitening.of(public features).")
        if self.bound != 1 and (self.unit or self.whitening):
            raise ConfigError("bound has no effect on rows that are scaled to norm 1. Fix: leave bound out.")

    @property
    def constant(self) -> float:
        """The value of the constant feature in a prepared row."""
        return float(np.float32(self.intercept / math.hypot(1.0, self.intercept) * SHORTER))

    def apply(self, features: Any, *, name: str = "features") -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return (N, d) features as rows of norm at most 1, plus a column for an intercept; and which were finite."""
        matrix = as_matrix(features, name)
        if self.whitening is not None and matrix.shape[1] != len(self.whitening.mean):
            expected = len(self.whitening.mean)
            raise ConfigError(f"{name} have {matrix.shape[1]} columns, but the whitening expects {expected}.")
        width = matrix.shape[1] if self.whitening is None else self.whitening.width
        out = np.zeros((len(matrix), width + (self.intercept > 0)), dtype=np.float32)
        finite = np.zeros(len(matrix), dtype=np.bool_)
        for start in range(0, len(matrix), AT_A_TIME):
            count = min(AT_A_TIME, len(matrix) - start)
            block = np.zeros((AT_A_TIME, matrix.shape[1]))  # always this size, so products round every row alike
            block[:count] = matrix[start : start + count]
            with np.errstate(over="ignore", invalid="ignore"):  # rows that overflow become zero
                x, good = self._apply(block)
            out[start : start + count], finite[start : start + count] = x[:count], good[:count]
        return out, finite

    def _apply(self, x: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        finite = np.asarray(np.isfinite(x).all(axis=1))
        x = np.where(finite[:, None], np.clip(x, -MAX_FEATURE, MAX_FEATURE), 0.0)
        if self.whitening is not None:
            x = self.whitening.apply(x)
        if self.unit or self.whitening is not None:
            norms = row_norms(x)
            x = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
        else:
            x = x / self.bound
        x = x / np.maximum(1.0, row_norms(x))
        if self.intercept:
            x = np.hstack([x, np.full((len(x), 1), self.intercept)]) / math.hypot(1.0, self.intercept)
        finite = finite & np.isfinite(x).all(axis=1)
        return np.where(finite[:, None], x * SHORTER, 0.0), finite


@dataclass(frozen=True, eq=False)
class Rows:
    """Prepared rows with their classes; class -1 excludes a row from all sums.

    With several labels per row, labels are (N, classes) of 1, 0, and -1 if unknown. `persons` has the number of each
    row's person, from 0 and without gaps, if the unit is a person.
    """

    x: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: int
    persons: NDArray[np.int64] | None = None

    @staticmethod
    def of(
        features: Any,
        labels: Any,
        preparation: Preparation,
        *,
        classes: int,
        persons: Any = None,
        several: bool = False,
    ) -> Rows:
        numbers = (as_several if several else as_classes)(labels, "labels", classes=classes)
        x, finite = preparation.apply(features)
        if len(numbers) != len(x):
            raise ConfigError(f"there are {len(x)} rows of features and {len(numbers)} labels: each row needs one.")
        units = None if persons is None else as_persons(persons, "persons", count=len(x))
        return Rows(x, np.where(finite[:, None] if several else finite, numbers, -1), classes, units)

    @staticmethod
    def public(features: Any, preparation: Preparation) -> Rows:
        """Prepare public rows, without classes, like private ones."""
        x, finite = preparation.apply(features, name="public")
        if len(x) < 2 or not finite.all():
            raise ConfigError("public must have at least 2 rows, of finite numbers only.")
        return Rows(x, np.full(len(x), -1), classes=0)

    @staticmethod
    def none(classes: int) -> Rows:
        """Return an empty set of rows, for checking settings."""
        return Rows(np.zeros((0, 1), np.float32), np.zeros(0, np.int64), classes)

    @property
    def width(self) -> int:
        return self.x.shape[1]

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which rows have a class or a known label, as all finite rows with a class do; all public rows count."""
        if not self.classes:
            return np.ones(len(self.x), dtype=np.bool_)
        known = np.asarray(self.labels >= 0)
        return np.asarray(known.any(axis=1)) if known.ndim == 2 else known

    @property
    def units(self) -> int:
        """The number of units: of persons, if there are any, or of rows. It is private unless it was declared."""
        return len(self.x) if self.persons is None else int(self.persons.max(initial=-1)) + 1

    @property
    def shares(self) -> Floats:
        """The weight of each row in what its unit adds to a sum: 1, or one over the number of its person's rows.

        Rows that are in no sum are not counted, and have weight 0 if units are persons.
        """
        if self.persons is None:
            return np.ones(len(self.x))
        rows = np.bincount(self.persons[self.counted], minlength=self.units)
        return np.where(self.counted, 1.0 / np.maximum(rows, 1)[self.persons], 0.0)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Everything that a sum depends on, for the name of its noise."""
        return (self.x, self.labels, *(() if self.persons is None else (self.persons,)))

    def blocks(self) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Yield AT_A_TIME rows at a time, with one-hot classes (all 0 for class -1) and their shares, in float64.

        Whatever a row adds to a sum must be multiplied by its share, in its own column. The last block is padded
        with rows in no sum, since rounding of products depends on the number of rows.
        """
        one_hot, weights = np.vstack([np.eye(self.classes), np.zeros(self.classes)]), self.shares
        for start in range(0, len(self.x), AT_A_TIME):
            rows = self.x[start : start + AT_A_TIME]
            x, labels = np.zeros((AT_A_TIME, self.width)), np.full((AT_A_TIME, *self.labels.shape[1:]), -1)
            x[: len(rows)], labels[: len(rows)] = rows, self.labels[start : start + AT_A_TIME]
            shares = np.zeros((AT_A_TIME, 1))
            shares[: len(rows), 0] = weights[start : start + AT_A_TIME]
            yield x, labels.astype(np.float64) if labels.ndim == 2 else one_hot[labels], shares


def row_norms(x: Floats) -> Floats:
    """Return the Euclidean norms of rows, with shape (N, 1)."""
    return np.sqrt(np.einsum("nd,nd->n", x, x))[:, None]


def as_matrix(features: Any, name: str) -> NDArray[Any]:
    """Return features as an (N, d) array of floats."""
    matrix = _as_array(features, name)
    if matrix.ndim != 2 or matrix.shape[1] == 0 or matrix.dtype.kind != "f":
        raise ConfigError(
            f"{name} must be a matrix of floats with one row per image, not {matrix.dtype} of shape {matrix.shape}."
        )
    return matrix


def as_classes(labels: Any, name: str, *, classes: int) -> NDArray[np.int64]:
    """Return labels as whole numbers below `classes`, which is public and never derived from the labels."""
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise ConfigError(f"classes is {classes!r}: the public number of classes must be an integer above 1.")
    numbers = _as_array(labels, name)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ConfigError(f"{name} must be a list of whole numbers, not {numbers.dtype} of shape {numbers.shape}.")
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < classes):
        raise ConfigError(f"{name} must be from 0 to {classes - 1}, since there are {classes} classes; some are not.")
    return numbers.astype(np.int64)


def as_persons(persons: Any, name: str, *, count: int) -> NDArray[np.int64]:
    """Return the person of each of `count` rows as numbers from 0, in the order of their names or numbers."""
    names = _as_array(persons, name)
    if names.dtype == object and all(isinstance(person, str) for person in names.flat):  # a column of pandas
        names = names.astype(str)
    mixed = isinstance(persons, list | tuple) and len({isinstance(person, str) for person in persons}) > 1
    if names.shape != (count,) or names.dtype.kind not in "iuSU" or mixed:
        raise ConfigError(
            f"{name} must be a list of {count:,} whole numbers or of {count:,} texts, one for each row, not "
            f"{'both' if mixed else names.dtype} of shape {names.shape}."
        )
    return np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int64)


def as_several(labels: Any, name: str, *, classes: int) -> NDArray[np.int64]:
    """Return several labels per row, (N, classes): 1, 0, or -1 if unknown."""
    numbers = _as_array(labels, name)
    if numbers.ndim != 2 or numbers.shape[1] != classes or numbers.dtype.kind not in "iu":
        raise ConfigError(f"{name} must be (N, {classes}) whole numbers, not {numbers.dtype} of shape {numbers.shape}.")
    if not np.isin(numbers, (-1, 0, 1)).all():
        raise ConfigError(f"{name} must be 1, 0, or -1 if unknown; some are not.")
    return numbers.astype(np.int64)


def _as_array(values: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{name} cannot be read as an array ({exc}).") from exc
