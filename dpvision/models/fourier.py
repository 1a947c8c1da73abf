"""Fourier transforms of small images as products with real matrices.

A complex number is a pair of numbers on an axis of its own. Whether that axis stands before or after that of the
positions is chosen so that each product finds its operand in one piece, and none need be moved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def of_real(side: int) -> Matrix:
    """(frequency pair, position): the transform of real numbers."""
    return _real(_frequencies(side)).transpose(1, 0, 2, 3)[:, :, 0].reshape(2 * side, side)


def of_pairs(side: int) -> Matrix:
    """(frequency pair, pair position): the transform of complex numbers."""
    return _real(_frequencies(side)).transpose(1, 0, 2, 3).reshape(2 * side, 2 * side)


def inverse(side: int) -> Matrix:
    """(pair position, frequency pair): back to complex numbers."""
    return _real(_frequencies(side).conj() / side).transpose(0, 1, 3, 2).reshape(2 * side, 2 * side)


def _frequencies(side: int) -> NDArray[np.complex128]:
    """exp(-2 pi i k p / n), with the product taken modulo n first: large angles would lose digits."""
    steps = np.arange(side)
    return np.exp(-2j * np.pi * (np.outer(steps, steps) % side) / side)


def _real(matrix: NDArray[np.complex128]) -> Matrix:
    """(pair, rows, pair, columns): multiplication by a complex matrix, on pairs."""
    blocks = [[matrix.real, -matrix.imag], [matrix.imag, matrix.real]]
    return np.array(blocks).transpose(0, 2, 1, 3)
