"""Matrices of the scattering transform: Morlet wavelets, means under a Gaussian, and Fourier transforms.

The parameters of the filters are those of Bruna and Mallat 2013, as in kymatio. In space, with r = (r1, r2) the
position turned by the angle theta and s the slant,

    gabor(u) = exp(-(r1^2 + s^2 r2^2) / (2 sigma^2) + i xi r1) * s / (2 pi sigma^2),    made periodic,

and a Morlet wavelet is a Gabor function less as much of its envelope as makes its mean zero.

The Fourier transforms of small images are products with real matrices. A complex number is a pair of numbers on an axis
of its own. Whether that axis stands before or after that of the positions is chosen so that each product finds its
operand in one piece, and none need be moved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
# What kymatio takes for pi in this one place; its outputs are the reference, and 3e-5 would show.
PI = 3.1415
SIGMA, XI = 0.8, 3 * np.pi / 4
# Copies to each side that make a filter periodic.
COPIES = 2


def morlets(sides: tuple[int, int], *, scale: int, angles: int) -> NDArray[np.float64]:
    """(angles, *sides): the transforms of the wavelets of width 2^scale, which are real."""
    slant = 4 / angles
    found = []
    for number in range(angles):
        theta = (angles // 2 - 1 - number) * np.pi / angles
        wave, envelope = (_gabor(sides, SIGMA * 2**scale, theta, xi, slant) for xi in (XI / 2**scale, 0.0))
        found.append(np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real)
    return np.stack(found)


def _gabor(sides: tuple[int, int], sigma: float, theta: float, xi: float, slant: float) -> NDArray[np.complex128]:
    rows, columns = (np.arange(-COPIES * n, (COPIES + 1) * n, dtype=np.float64) for n in sides)
    along = np.cos(theta) * rows[:, None] + np.sin(theta) * columns
    across = np.cos(theta) * columns - np.sin(theta) * rows[:, None]
    whole = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2) + 1j * xi * along)
    copies = 2 * COPIES + 1
    once = whole.reshape(copies, sides[0], copies, sides[1]).sum((0, 2))
    return once * slant / (2 * PI * sigma**2)


def local_means(side: int, *, scale: int, resolution: int) -> NDArray[np.float64]:
    """The Gaussian of width 2^scale along one axis, as a matrix from `side` / 2^resolution values to every 2^scale-th.

    The window in two dimensions is a product, so two such matrices apply it. The first and last mean are left out: they
    belong to the padding. At a lower resolution the Gaussian's spectrum is cut to the frequencies that are left.
    """
    sigma = SIGMA * 2 ** (scale - 1)
    positions = np.arange(-COPIES * side, (COPIES + 1) * side, dtype=np.float64)
    once = np.exp(-(positions**2) / (2 * sigma**2)).reshape(-1, side).sum(0)
    spectrum = np.fft.fft(once / np.sqrt(2 * PI * sigma**2)).real
    length = side >> resolution
    kept = np.concatenate([spectrum[: length // 2], spectrum[side - (length - length // 2) :]])
    window = np.fft.ifft(kept).real
    centres = np.arange(0, length, 2 ** (scale - resolution))[1:-1]
    return window[(centres[:, None] - np.arange(length)) % length]


def fourier_of_real(side: int) -> Matrix:
    """(frequency pair, position): the transform of real numbers."""
    return _real(_frequencies(side)).transpose(1, 0, 2, 3)[:, :, 0].reshape(2 * side, side)


def fourier_of_pairs(side: int) -> Matrix:
    """(frequency pair, pair position): the transform of complex numbers."""
    return _real(_frequencies(side)).transpose(1, 0, 2, 3).reshape(2 * side, 2 * side)


def inverse_fourier(side: int) -> Matrix:
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
