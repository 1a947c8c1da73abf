"""Bounded sums over rows of length at most 1: the mean row, class sums and counts, and second moments.

A symmetric matrix is released as a vector: `to_vector` lists its upper triangle, with the entries off the diagonal
multiplied by sqrt(2), so that the Euclidean length of the vector is the Frobenius norm of the matrix. For one row of
length at most 1 that is |x x^T| = |x|^2 <= 1, and each number is released once and not twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpvision.core.rows import BoundedSum, Floats, Rows

# Adds noise to a bounded sum: `Gate.next` in a private fit.
AddNoise = Callable[[BoundedSum], Floats]


def sum_of_rows(rows: Rows) -> BoundedSum:
    """Return sum_i x_i, which one row moves by at most 1."""
    total = np.zeros(rows.width)
    for x, _ in rows.blocks():
        total += x.sum(axis=0)
    return BoundedSum(total, 1.0)


def class_statistics(rows: Rows, *, a: float, b: float, c: float) -> BoundedSum:
    """( b X^T Y, c counts, a vec(X^T X) ): class sums, class counts and the second moment, each left out at weight 0.

    Formal guarantee: one row x of class y adds ( b x y^T, c y, a vec(x x^T) ) with |x y^T| = |x| <= 1, |y| = 1 and
    |vec(x x^T)| = |x|^2 <= 1, so its length is at most sqrt(a^2 + b^2 + c^2), the sensitivity.
    """
    sums, counts = np.zeros((rows.width, rows.classes)), np.zeros(rows.classes)
    for x, y in rows.blocks():
        sums += x.T @ y
        counts += y.sum(axis=0)
    parts = [b * sums.reshape(-1)]
    if c:
        parts.append(c * counts)
    if a:
        parts.append(a * to_vector(second_moment(rows)))
    return BoundedSum(np.concatenate(parts), math.sqrt(a**2 + b**2 + c**2))


def split_statistics(
    noisy: Floats, *, width: int, classes: int, a: float, b: float, c: float
) -> tuple[Floats, Floats | None, Floats | None]:
    """The class sums (width, classes), the counts and the second moment of a noisy vector; None for what it lacks."""
    size = width * classes
    sums, rest = noisy[:size].reshape(width, classes) / b, noisy[size:]
    counts = rest[:classes] / c if c else None
    return sums, counts, to_matrix(rest[classes * (c > 0) :] / a, width) if a else None


def second_moment(rows: Rows) -> Floats:
    """Return the second moment sum_i x_i x_i^T."""
    total = np.zeros((rows.width, rows.width))
    for x, _ in rows.blocks():
        total += x.T @ x
    return total


def to_vector(matrix: Floats) -> Floats:
    """The upper triangle of a symmetric matrix as a vector whose length is the Frobenius norm of the matrix."""
    upper = np.triu_indices(len(matrix))
    return matrix[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))


def to_matrix(vector: Floats, width: int) -> Floats:
    """The inverse of `to_vector`; noise of standard deviation s becomes s on the diagonal and s/sqrt(2) off it."""
    upper = np.triu_indices(width)
    matrix = np.zeros((width, width))
    matrix[upper] = vector * np.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))
    return matrix + np.triu(matrix, 1).T
