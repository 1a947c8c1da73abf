"""A steerable pyramid: an image as subbands of one scale and orientation each, and the image back from its subbands.

As Simoncelli and Freeman 1995, in the Fourier domain: the squared filters sum to one at every frequency, so filtering
twice gives the image back. A subband has the values of the filtered image at every 2^scale-th pixel or, where the side
does not divide, on a grid hardly finer. What is above the finest scale and below the coarsest, the residuals, stays in
the Fourier domain.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import ifftshift, irfft2, rfft2

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

ORIENTATIONS = 4


@dataclass(frozen=True)
class Scale:
    """The orientations of one scale."""

    side: int
    where: tuple[Any, Any]  # of its frequencies in the image's half spectrum
    filters: Complexes  # (orientations, side, side // 2 + 1)
    back: Complexes  # their conjugates


@dataclass(frozen=True)
class Pyramid:
    scales: tuple[Scale, ...]  # finest first
    residuals: Floats  # squared highpass and lowpass filter together

    def split(self, spectrum: Complexes) -> list[Floats]:
        """Subbands (orientations, side, side) of each scale; the spectrum is rfft2(image, norm="forward")."""
        return [irfft2(spectrum[s.where] * s.filters, (s.side, s.side), norm="forward") for s in self.scales]

    def merge(self, spectrum: Complexes, subbands: list[Floats]) -> Complexes:
        """The spectrum that has these subbands and the given one's residuals."""
        out = spectrum * self.residuals
        for s, some in zip(self.scales, subbands, strict=True):
            out[s.where] += np.einsum("oyx,oyx->yx", rfft2(some, norm="forward"), s.back)
        return out


@lru_cache(maxsize=4)
def pyramid(side: int) -> Pyramid:
    """Three scales at 128 pixels a side, one more or less for twice or half as many."""
    y, x = _frequencies(side)
    radius, angle = np.hypot(x, y) / (side / 2), np.arctan2(y, x)
    turns = np.arange(ORIENTATIONS)[:, None, None] * np.pi / ORIENTATIONS
    # cos^6 sums to 5/4 over four orientations; cos^3 is odd, so that it takes an i to make a real subband.
    oriented = 1j * np.cos(angle - turns) ** 3 / np.sqrt(5 / 4)
    lowpasses = [_lowpass(radius * 2**scale) for scale in range(max(1, side.bit_length() - 5) + 1)]
    scales = [
        _scale(oriented * np.sqrt(above - below), 2**scale)
        for scale, (above, below) in enumerate(itertools.pairwise(lowpasses))
    ]
    return Pyramid(tuple(scales), 1 - lowpasses[0] + lowpasses[-1])


def _scale(filters: Complexes, every: int) -> Scale:
    side = -(-filters.shape[1] // every)
    where = _frequencies(side)
    cropped = filters[:, *where]
    return Scale(side, where if every > 1 else np.s_[:, :], cropped, cropped.conj())


def _frequencies(side: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of a half spectrum, down and across."""
    return ifftshift(np.arange(side) - side // 2)[:, None], np.arange(side // 2 + 1)


def _lowpass(radius: Floats) -> Floats:
    """Squared: one up to half the Nyquist frequency, zero from it on, a cosine in log frequency between."""
    with np.errstate(divide="ignore"):
        return np.cos(np.pi / 2 * np.clip(np.log2(2 * radius), 0, 1)) ** 2
