"""Noise with statistics of photographs: their spectrum, colours, wavelet marginals, or all three (Baradad et al. 2021).

Spectrum: Fourier magnitudes fall as a random power of the frequency. The three channels share the magnitudes and have
phases of their own, so their colours are independent. An image fills the range from 0 to 1.

Colour: an area divided among 3 to 22 random colours by random shares, blurred. Other processes take its colours along
their principal axes, for which it hardly matters where a colour is. Rectangles make it an image of its own; where the
original puts the colours, and how wide it blurs, we do not know.

Wavelet marginals: subbands have histograms exp(-|x|^r), r from 0.4 to 0.8. Such subbands are nearly empty but for a few
large values, as those of photographs. Each has its own r, the same in all three channels; a small r makes a strong
subband, so images differ in scale and orientation. Differences:

* The original writes |x / 4^scale|. We take it that its subbands grow fourfold with each scale, as those of a pyramid
  do whose Fourier transforms are not rescaled; ours keep the size of the image's values, so 4^scale cancels.
* The highpass residual, which has neither scale nor orientation, is left as the lowpass residual is.
* With tails as heavy, an image ranges over three standard deviations to each side, and is clipped there.

All three: noise projected on each in turn. Until the end the channels are the principal axes of a random palette. A
power law and subbands of given variances contradict each other; so here the spectrum says how strong a subband is, and
the wavelet marginal model only what shape its histogram has. Then five rounds do, where the original has ten. The
histograms come last, so that along each axis the colours are those of the palette; where they leave the colour cube
together they are clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.fft import irfft2, rfft2
from scipy.ndimage import uniform_filter

from dpvision.public.random.image_random import ImageRandom
from dpvision.public.random.pyramid import ORIENTATIONS, pyramid

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

SLOPES = (0.5, 3.5)  # of the spectrum
TILT = 0.05  # standard deviation of half the difference between the slopes across and down
FEWEST, MOST = 3, 22  # colours
EXPONENTS = (0.4, 0.8)  # r of the wavelet marginals
TABLE = np.linspace(0, 6, 256)  # of |x|^(r/2); hardly ever more
STEP = 1.5  # times the way to where each subband matches: two rounds come as close as three of 1
WAVELET_ROUNDS = 2  # subbands overlap, so that matching one disturbs others, every time less
ALL_ROUNDS = 5


def falling_spectra(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Noise whose spectrum falls with a random power of the frequency."""
    return _each(spectrum_image, draws, side)


def colours(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Rectangles in a random palette, blurred."""
    return _each(colour_image, draws, side)


def wavelet_marginals(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Noise whose wavelet subbands are nearly empty but for a few large values."""
    return _each(wavelet_image, draws, side)


def all_statistics(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Noise with a falling spectrum, a random palette and sparse wavelets."""
    return _each(image_of_all, draws, side)


def _each(image: Callable[[Generator, int], Floats], draws: Sequence[ImageRandom], side: int) -> Floats:
    return np.reshape([image(each.own(), side) for each in draws], (len(draws), side, side, 3))


def spectrum_image(rng: Generator, side: int) -> Floats:
    """(side, side, 3), as all of these."""
    falling = magnitudes(rng, side)
    noise = rng.random((3, side, side))
    image = irfft2(with_magnitudes(rfft2(noise), falling), (side, side)).transpose(1, 2, 0)
    return (image - image.min()) / np.ptp(image)


def colour_image(rng: Generator, side: int) -> Floats:
    count = rng.integers(FEWEST, MOST + 1)
    out = np.empty((side, side, 3))
    _divide(out, rng.random((count, 3)), rng.random(count))
    return uniform_filter(out, 1 + 2 * max(1, side // 32), axes=(0, 1), mode="nearest")


def wavelet_image(rng: Generator, side: int) -> Floats:
    goals = marginals(rng, side)
    spectra = rfft2(rng.random((3, side, side)), norm="forward")
    for _ in range(WAVELET_ROUNDS):
        spectra = [nearer_marginals(each, goals) for each in spectra]
    image = irfft2(spectra, (side, side), norm="forward").transpose(1, 2, 0)
    return np.clip(0.5 + (image - image.mean()) / (6 * image.std()), 0, 1)


def image_of_all(rng: Generator, side: int) -> Floats:
    found = palette(colour_image(rng, side))
    falling = magnitudes(rng, side)
    goals = [
        values * (subbands.std((1, 2)) / values.std(1))[:, None]
        for subbands, values in zip(pyramid(side).split(falling.astype(complex)), marginals(rng, side), strict=True)
    ]
    channels = rng.random((3, side, side))
    for _ in range(ALL_ROUNDS):
        spectra = with_magnitudes(rfft2(channels, norm="forward"), falling)
        nearer = [nearer_marginals(each, goals) for each in spectra]
        channels = with_values(irfft2(nearer, (side, side), norm="forward"), found.ascending)
    return np.clip(found.mean + np.einsum("ayx,ac->yxc", channels, found.axes), 0, 1)


def magnitudes(rng: Generator, side: int) -> Floats:
    """Of a half spectrum (side, side // 2 + 1): 1 / (|fx|^a + |fy|^b), and no mean."""
    slope, tilt = rng.uniform(*SLOPES), TILT * rng.standard_normal()
    down, across = np.arange(side), np.arange(side // 2 + 1)
    falling = np.minimum(down, side - down)[:, None] ** (slope - tilt) + across ** (slope + tilt)
    falling[0, 0] = np.inf
    return 1 / falling


def with_magnitudes(spectra: Complexes, magnitudes: Floats) -> Complexes:
    """The same phases."""
    return spectra * (magnitudes / np.maximum(np.abs(spectra), np.finfo(float).tiny))


class Palette(NamedTuple):
    """The colours of an image along their principal axes."""

    mean: Floats  # (3,)
    axes: Floats  # (3, 3): an axis a row
    ascending: Floats  # (3, pixels): what pixels have along each axis


def palette(image: Floats) -> Palette:
    """Of an image (side, side, 3)."""
    pixels = image.reshape(-1, 3)
    mean = pixels.mean(0)
    pixels = pixels - mean
    axes = np.linalg.eigh(np.einsum("pi,pj->ij", pixels, pixels))[1].T
    axes *= np.sign(axes.sum(1, keepdims=True))  # or else up to the linear algebra library
    return Palette(mean, axes, np.sort(np.einsum("ai,pi->ap", axes, pixels)))


def _divide(area: Floats, colours: Floats, shares: Floats) -> None:
    """Half of the colours to each side of a cut through the longer side, down to one colour a rectangle."""
    if len(colours) == 1:
        area[...] = colours
        return
    half = len(colours) // 2
    longer = area if area.shape[0] >= area.shape[1] else area.swapaxes(0, 1)
    cut = round(len(longer) * shares[:half].sum() / shares.sum())
    _divide(longer[:cut], colours[:half], shares[:half])
    _divide(longer[cut:], colours[half:], shares[half:])


def marginals(rng: Generator, side: int) -> list[Floats]:
    """What values the subbands of each scale of the pyramid have, ascending (orientations, pixels)."""
    return [
        np.stack([quantiles(r, scale.side**2) for r in rng.uniform(*EXPONENTS, ORIENTATIONS)])
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


def with_values(arrays: Floats, ascending: Floats) -> Floats:
    """Arrays (N, side, side) with their values replaced, rank by rank, by these (N, side^2)."""
    out = np.empty_like(ascending)
    for each, order, values in zip(out, _order(arrays.reshape(ascending.shape)), ascending, strict=True):
        each[order] = values
    return out.reshape(arrays.shape)


def _order(values: Floats) -> NDArray[np.int64]:
    """argsort, at half its time: the last bits of each value become its number, which sorting carries along."""
    count = values.shape[-1]
    last = (1 << count.bit_length()) - 1
    keys = values.copy()
    bits = keys.view(np.int64)
    bits &= ~last
    bits |= np.arange(count)
    keys.sort(-1)
    bits &= last
    return bits
