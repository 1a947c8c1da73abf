"""Wavelet marginal model: noise whose subbands have histograms exp(-|x|^r), r from 0.4 to 0.8 (Baradad et al. 2021).

Such subbands are nearly empty but for a few large values, as those of photographs. Each has its own r, the same in all
three channels; a small r makes a strong subband, so images differ in scale and orientation. Differences:

* The original writes |x / 4^scale|. We take it that its subbands grow fourfold with each scale, as those of a pyramid
  do whose Fourier transforms are not rescaled; ours keep the size of the image's values, so 4^scale cancels.
* The highpass residual, which has neither scale nor orientation, is left as the lowpass residual is.
* With tails as heavy, an image ranges over three standard deviations to each side, and is clipped there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.fft import irfft2, rfft2

from dpvision.public.random.coins import Coins
from dpvision.public.random.histogram import with_values
from dpvision.public.random.pyramid import ORIENTATIONS, pyramid

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

EXPONENTS = (0.4, 0.8)
ROUNDS = 2  # subbands overlap, so that matching one disturbs others, every time less
STEP = 1.5  # times the way to where each subband matches: two rounds come as close as three of 1
TABLE = np.linspace(0, 6, 256)  # of |x|^(r/2); hardly ever more


def wavelet_marginals(coins: Sequence[Coins], side: int) -> Floats:
    """Noise whose wavelet subbands are nearly empty but for a few large values."""
    return np.reshape([_image(each.own(), side) for each in coins], (len(coins), side, side, 3))


def marginals(toss: Generator, side: int) -> list[Floats]:
    """What values the subbands of each scale of the pyramid have, ascending (orientations, pixels)."""
    return [
        np.stack([quantiles(r, scale.side**2) for r in toss.uniform(*EXPONENTS, ORIENTATIONS)])
        for scale in pyramid(side).scales
    ]


def quantiles(r: float, count: int) -> Floats:
    """So many values of density exp(-|x|^r), ascending; that of t = |x|^(r/2) is t^(2/r - 1) exp(-t^2)."""
    density = TABLE ** (2 / r - 1) * np.exp(-(TABLE**2))
    below = np.cumsum(density) - density / 2
    positive = np.interp(np.arange(1 - count % 2, count, 2) / count, below / below[-1], TABLE ** (2 / r))
    return np.concatenate([-positive[::-1], positive[count % 2 :]])


def nearer_marginals(spectrum: Complexes, marginals: list[Floats]) -> Complexes:
    """A step towards subbands with these values; the residuals stay."""
    wavelets = pyramid(len(spectrum))
    subbands = [with_values(*each) for each in zip(wavelets.split(spectrum), marginals, strict=True)]
    return spectrum + STEP * (wavelets.merge(spectrum, subbands) - spectrum)


def _image(toss: Generator, side: int) -> Floats:
    goals = marginals(toss, side)
    spectra = rfft2(toss.random((3, side, side)), norm="forward")
    for _ in range(ROUNDS):
        spectra = [nearer_marginals(each, goals) for each in spectra]
    image = irfft2(spectra, (side, side), norm="forward").transpose(1, 2, 0)
    return np.clip(0.5 + (image - image.mean()) / (6 * image.std()), 0, 1)
