"""Bounded sums over rows of norm at most 1: the sum of rows, class sums and counts, and second moments.

A row's contribution is multiplied by its share (rows.py), so a person adds the mean of what their rows add.

A symmetric matrix is released as a vector: `to_vector` lists its upper triangle, with the off-diagonal entries
multiplied by sqrt(2), so that the Euclidean norm of the vector equals the Frobenius norm of the matrix. For one row of
norm at most 1 this is |x x^T| = |x|^2 <= 1, and each number is released once instead of twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpvision.core.rows import BoundedSum, Floats, Rows
from dpvision.errors import ConfigError
from dpvision.released.moments import floor_counts

# A function that adds noise to a bounded sum; in a private fit it is `Gate.next`.
AddNoise = Callable[[BoundedSum], Floats]


def sum_of_rows(rows: Rows) -> BoundedSum:
    """Return sum_i x_i, which one row changes by at most 1."""
    total = np.zeros(rows.width)
    for x, _, share in rows.blocks():
        total += (x * share).sum(axis=0)
    return BoundedSum(total, 1.0)


def class_counts(rows: Rows) -> BoundedSum:
    """Return the class counts, which one row changes by 1."""
    require_one_class_each(rows)
    return BoundedSum(sum((y * share).sum(axis=0) for _, y, share in rows.blocks()) + np.zeros(rows.classes), 1.0)


def require_one_class_each(rows: Rows) -> None:
    """Refuse rows with several labels: each of them would count, so a row would add more than the sensitivity."""
    if rows.labels.ndim != 1:
        raise ConfigError("counts of classes need rows of one class each. Fix: use --task classes.")


def log_shares(rows: Rows, *, n: int, add_noise: AddNoise) -> Floats:
    """Release the class counts, and return the logarithm of the share of each class, none below a minimum.

    Formal guarantee: the counts are read only as one noisy sum, which the event counts; the rest is post-processing.
    """
    counts = floor_counts(add_noise(class_counts(rows)), n=n)
    return np.log(counts / counts.sum())


def class_statistics(rows: Rows, *, a: float, b: float, c: float) -> BoundedSum:
    """Return ( b X^T Y, c counts, a vec(X^T X) ): class sums, class counts and the second moment.

    The counts are left out if c is 0, and the second moment if a is 0.

    Formal guarantee: one row x of class y adds ( b x y^T, c y, a vec(x x^T) ) with |x y^T| = |x| <= 1, |y| = 1 and
    |vec(x x^T)| = |x|^2 <= 1, a vector of norm at most sqrt(a^2 + b^2 + c^2), the sensitivity.
    """
    require_one_class_each(rows)
    sums, counts = np.zeros((rows.width, rows.classes)), np.zeros(rows.classes)
    for x, y, share in rows.blocks():
        sums += x.T @ (y * share)
        counts += (y * share).sum(axis=0)
    parts = [b * sums.reshape(-1)]
    if c:
        parts.append(c * counts)
    if a:
        parts.append(a * to_vector(second_moment(rows)))
    return BoundedSum(np.concatenate(parts), math.sqrt(a**2 + b**2 + c**2))


def split_statistics(
    noisy: Floats, *, width: int, classes: int, a: float, b: float, c: float
) -> tuple[Floats, Floats | None, Floats | None]:
    """Split a noisy vector into (width, classes) class sums, counts and second moment; omitted parts are None."""
    size = width * classes
    sums, rest = noisy[:size].reshape(width, classes) / b, noisy[size:]
    counts = rest[:classes] / c if c else None
    return sums, counts, to_matrix(rest[classes * (c > 0) :] / a, width) if a else None


def second_moment(rows: Rows) -> Floats:
    """Return the second moment sum_i x_i x_i^T."""
    total = np.zeros((rows.width, rows.width))
    for x, _, share in rows.blocks():
        scaled = x * np.sqrt(share)
        total += scaled.T @ scaled
    return total


def to_vector(matrix: Floats) -> Floats:
    """Convert a symmetric matrix to a vector of its upper triangle, with the same Euclidean (Frobenius) norm."""
    upper = np.triu_indices(len(matrix))
    return matrix[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))


def to_matrix(vector: Floats, width: int) -> Floats:
    """Invert `to_vector`; noise of standard deviation s becomes s on the diagonal and s/sqrt(2) off the diagonal."""
    upper = np.triu_indices(width)
    matrix = np.zeros((width, width))
    matrix[upper] = vector * np.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))
    return matrix + np.triu(matrix, 1).T
