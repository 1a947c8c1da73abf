"""Sums of x x^T over rows, and symmetric matrices as vectors of the same length.

`to_vector` lists the upper triangle, with what is off the diagonal multiplied by sqrt(2): then the Euclidean length of
the vector is the Frobenius norm of the matrix. For one row of length at most 1 that is |x x^T| = |x|^2 <= 1, and each
number is released once and not twice.
"""

from __future__ import annotations

import math

import numpy as np

from dpvision.core.rows import Floats, Rows


def second_moment(rows: Rows) -> Floats:
    """sum_i x_i x_i^T."""
    total = np.zeros((rows.width, rows.width))
    for x, _ in rows.blocks():
        total += x.T @ x
    return total


def to_vector(matrix: Floats) -> Floats:
    """The upper triangle of a symmetric matrix, with its Frobenius norm as length."""
    upper = np.triu_indices(len(matrix))
    return matrix[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))


def to_matrix(vector: Floats, width: int) -> Floats:
    """What `to_vector` made, back again; noise of standard deviation s becomes s on the diagonal, s/sqrt(2) off it."""
    upper = np.triu_indices(width)
    matrix = np.zeros((width, width))
    matrix[upper] = vector * np.where(upper[0] == upper[1], 1.0, math.sqrt(0.5))
    return matrix + np.triu(matrix, 1).T
