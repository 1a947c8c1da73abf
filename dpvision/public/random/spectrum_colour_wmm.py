"""Spectrum, colour and wavelet marginals in one image: noise projected on each in turn (Baradad et al. 2021).

Until the end the channels are the principal axes of a random palette. A power law and subbands of given variances
contradict each other; so here the spectrum says how strong a subband is, and the wavelet marginal model only what shape
its histogram has. Then five rounds do, where the original has ten. The histograms come last, so that along each axis
the colours are those of the palette; where they leave the colour cube together they are clipped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.fft import irfft2, rfft2

from dpvision.public.random import colour
from dpvision.public.random.coins import Coins
from dpvision.public.random.histogram import with_values
from dpvision.public.random.pyramid import pyramid
from dpvision.public.random.spectrum import magnitudes, with_magnitudes
from dpvision.public.random.wmm import marginals, nearer_marginals

Floats = NDArray[np.float64]

ROUNDS = 5


def all_statistics(coins: Sequence[Coins], side: int) -> Floats:
    """Noise with a falling spectrum, a random palette and sparse wavelets."""
    return np.reshape([image(each.own(), side) for each in coins], (len(coins), side, side, 3))


def image(toss: Generator, side: int) -> Floats:
    """(side, side, 3)."""
    palette = colour.palette(colour.image(toss, side))
    falling = magnitudes(toss, side)
    goals = [
        values * (subbands.std((1, 2)) / values.std(1))[:, None]
        for subbands, values in zip(pyramid(side).split(falling.astype(complex)), marginals(toss, side), strict=True)
    ]
    channels = toss.random((3, side, side))
    for _ in range(ROUNDS):
        spectra = with_magnitudes(rfft2(channels, norm="forward"), falling)
        nearer = [nearer_marginals(each, goals) for each in spectra]
        channels = with_values(irfft2(nearer, (side, side), norm="forward"), palette.ascending)
    return np.clip(palette.mean + np.einsum("ayx,ac->yxc", channels, palette.axes), 0, 1)
