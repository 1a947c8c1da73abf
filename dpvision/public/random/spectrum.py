"""Spectrum: noise whose Fourier magnitudes fall as a random power of the frequency (Baradad et al. 2021).

The three channels share the magnitudes and have phases of their own, so their colours are independent. An image fills
the range from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.fft import irfft2, rfft2

from dpvision.public.random.coins import Coins

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

SLOPES = (0.5, 3.5)
TILT = 0.05  # standard deviation of half the difference between the slopes across and down


def falling_spectra(coins: Sequence[Coins], side: int) -> Floats:
    """Noise whose spectrum falls with a random power of the frequency."""
    return np.reshape([_image(each.own(), side) for each in coins], (len(coins), side, side, 3))


def magnitudes(toss: Generator, side: int) -> Floats:
    """Of a half spectrum (side, side // 2 + 1): 1 / (|fx|^a + |fy|^b), and no mean."""
    slope, tilt = toss.uniform(*SLOPES), TILT * toss.standard_normal()
    down, across = np.arange(side), np.arange(side // 2 + 1)
    falling = np.minimum(down, side - down)[:, None] ** (slope - tilt) + across ** (slope + tilt)
    falling[0, 0] = np.inf
    return 1 / falling


def with_magnitudes(spectra: Complexes, magnitudes: Floats) -> Complexes:
    """The same phases."""
    return spectra * (magnitudes / np.maximum(np.abs(spectra), np.finfo(float).tiny))


def _image(toss: Generator, side: int) -> Floats:
    falling = magnitudes(toss, side)
    noise = toss.random((3, side, side))
    image = irfft2(with_magnitudes(rfft2(noise), falling), (side, side)).transpose(1, 2, 0)
    return (image - image.min()) / np.ptp(image)
