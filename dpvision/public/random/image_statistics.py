"""Noise with statistics of photographs: their spectrum, colours, wavelet marginals, or all three (Baradad et al. 2021).

Spectrum: Fourier magnitudes fall with a random power of the frequency. The three channels have the same magnitudes but
independent phases, so their colours are independent. An image fills the range from 0 to 1.

Colour: the image is divided among 3 to 22 random colours in random proportions, and blurred. Other processes use the
distribution of these colours along their principal axes, for which positions hardly matter. Here the colours are
arranged in rectangles, so that the result is itself an image; the arrangement and the blur of the original are not
published.

Wavelet marginals: subbands of a steerable pyramid have histograms exp(-|x|^r) with r from 0.4 to 0.8. Such subbands are
nearly zero except for a few large values, like those of photographs. Each subband has its own r, the same in all three
channels. A small r makes a subband strong, so images differ in scale and orientation. Differences from the original:

* The original writes |x / 4^scale|. We assume that its subbands grow fourfold with each scale, as in a pyramid whose
  Fourier transforms are not rescaled. Ours keep the magnitude of the image's values, so 4^scale cancels.
* The highpass residual, which has neither scale nor orientation, is left unchanged, like the lowpass residual.
* Because the tails are heavy, an image is clipped at three standard deviations on each side of its mean.

All three: each of these statistics is imposed on noise in turn, several times. Until the end, the channels are the
principal axes of a random palette. A power law and subbands with given variances contradict each other, so here the
spectrum determines the strength of a subband, and the wavelet marginal model only the shape of its histogram. Five
rounds are then enough; the original uses ten. Histograms are matched last, so that the colours along each axis are
those of the palette. Colours outside the colour cube are clipped.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.fft import ifftshift, irfft2, rfft2
from scipy.ndimage import uniform_filter

from dpvision.public.random.image_random import ImageRandom

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

SLOPES = (0.5, 3.5)  # of the spectrum
TILT = 0.05  # standard deviation of half the difference between the horizontal and the vertical slope
MIN_COLOURS, MAX_COLOURS = 3, 22
ORIENTATIONS = 4  # of the pyramid
EXPONENTS = (0.4, 0.8)  # r of the wavelet marginals
TABLE = np.linspace(0, 6, 256)  # values of |x|^(r/2), which is hardly ever larger
STEP = 1.5  # over-relaxation: two rounds get as close to the target histograms as three with a step of 1
WAVELET_ROUNDS = 2  # subbands overlap, so matching one disturbs others, but less with every round
COMBINED_ROUNDS = 5


def draw_spectrum(image_rng: ImageRandom, side: int) -> Floats:
    """Draw noise whose spectrum falls with a random power of the frequency."""
    rng = image_rng.generator()
    magnitudes = draw_magnitudes(rng, side)
    noise = rng.random((3, side, side))
    image = irfft2(set_magnitudes(rfft2(noise), magnitudes), (side, side)).transpose(1, 2, 0)
    return (image - image.min()) / np.ptp(image)


def draw_colours(image_rng: ImageRandom, side: int) -> Floats:
    """Draw blurred rectangles in random colours."""
    return _colour_image(image_rng.generator(), side)


def draw_wavelet_marginals(image_rng: ImageRandom, side: int) -> Floats:
    """Draw noise whose wavelet subbands are nearly zero except for a few large values."""
    rng = image_rng.generator()
    marginals = draw_marginals(rng, side)
    spectra = rfft2(rng.random((3, side, side)), norm="forward")
    for _ in range(WAVELET_ROUNDS):
        spectra = [approach_marginals(spectrum, marginals) for spectrum in spectra]
    image = irfft2(spectra, (side, side), norm="forward").transpose(1, 2, 0)
    return np.clip(0.5 + (image - image.mean()) / (6 * image.std()), 0, 1)


def draw_combined(image_rng: ImageRandom, side: int) -> Floats:
    """Draw noise with a falling spectrum, a random palette and sparse wavelets."""
    return combined_image(image_rng.generator(), side)


def combined_image(rng: Generator, side: int) -> Floats:
    """Draw an image (side, side, 3) with all three statistics."""
    palette = principal_palette(_colour_image(rng, side))
    magnitudes = draw_magnitudes(rng, side)
    marginals = [
        values * (subbands.std((1, 2)) / values.std(1))[:, None]
        for subbands, values in zip(
            pyramid(side).split(magnitudes.astype(complex)), draw_marginals(rng, side), strict=True
        )
    ]
    channels = rng.random((3, side, side))
    for _ in range(COMBINED_ROUNDS):
        spectra = set_magnitudes(rfft2(channels, norm="forward"), magnitudes)
        closer = [approach_marginals(spectrum, marginals) for spectrum in spectra]
        channels = match_histograms(irfft2(closer, (side, side), norm="forward"), palette.ascending)
    return np.clip(palette.mean + np.einsum("ayx,ac->yxc", channels, palette.axes), 0, 1)


def draw_magnitudes(rng: Generator, side: int) -> Floats:
    """Draw magnitudes 1 / (|fx|^a + |fy|^b) of a half spectrum (side, side // 2 + 1), with 0 at frequency 0."""
    slope, tilt = rng.uniform(*SLOPES), TILT * rng.standard_normal()
    down, across = np.arange(side), np.arange(side // 2 + 1)
    inverse = np.minimum(down, side - down)[:, None] ** (slope - tilt) + across ** (slope + tilt)
    inverse[0, 0] = np.inf
    return 1 / inverse


def set_magnitudes(spectra: Complexes, magnitudes: Floats) -> Complexes:
    """Return spectra with these magnitudes and the phases of the given spectra."""
    return spectra * (magnitudes / np.maximum(np.abs(spectra), np.finfo(float).tiny))


def _colour_image(rng: Generator, side: int) -> Floats:
    count = rng.integers(MIN_COLOURS, MAX_COLOURS + 1)
    out = np.empty((side, side, 3))
    _divide(out, rng.random((count, 3)), rng.random(count))
    return uniform_filter(out, 1 + 2 * max(1, side // 32), axes=(0, 1), mode="nearest")


def _divide(area: Floats, colours: Floats, shares: Floats) -> None:
    """Cut the longer side, give each part half of the colours, and continue until each rectangle has one colour."""
    if len(colours) == 1:
        area[...] = colours
        return
    half = len(colours) // 2
    longer = area if area.shape[0] >= area.shape[1] else area.swapaxes(0, 1)
    cut = round(len(longer) * shares[:half].sum() / shares.sum())
    _divide(longer[:cut], colours[:half], shares[:half])
    _divide(longer[cut:], colours[half:], shares[half:])


class Palette(NamedTuple):
    """The colours of an image along their principal axes."""

    mean: Floats  # (3,)
    axes: Floats  # (3, 3): one axis per row
    ascending: Floats  # (3, pixels): coordinates of the pixels along each axis, sorted


def principal_palette(image: Floats) -> Palette:
    """Return the palette of an image (side, side, 3)."""
    pixels = image.reshape(-1, 3)
    mean = pixels.mean(0)
    pixels = pixels - mean
    axes = np.linalg.eigh(np.einsum("pi,pj->ij", pixels, pixels))[1].T
    axes *= np.sign(axes.sum(1, keepdims=True))  # otherwise the signs would depend on the linear algebra library
    return Palette(mean, axes, np.sort(np.einsum("ai,pi->ap", axes, pixels)))


def draw_marginals(rng: Generator, side: int) -> list[Floats]:
    """Draw the target values of the subbands of each scale, as (orientations, pixels) in ascending order."""
    return [
        np.stack([quantiles(r, scale.side**2) for r in rng.uniform(*EXPONENTS, ORIENTATIONS)])
        for scale in pyramid(side).scales
    ]


def quantiles(r: float, count: int) -> Floats:
    """Return `count` ascending quantiles of the density exp(-|x|^r).

    They are computed for t = |x|^(r/2), whose density is t^(2/r - 1) exp(-t^2).
    """
    density = TABLE ** (2 / r - 1) * np.exp(-(TABLE**2))
    below = np.cumsum(density) - density / 2
    positive = np.interp(np.arange(1 - count % 2, count, 2) / count, below / below[-1], TABLE ** (2 / r))
    return np.concatenate([-positive[::-1], positive[count % 2 :]])


def approach_marginals(spectrum: Complexes, marginals: list[Floats]) -> Complexes:
    """Take a step towards subbands with these values; the residuals do not change."""
    wavelets = pyramid(len(spectrum))
    subbands = [
        match_histograms(bands, values) for bands, values in zip(wavelets.split(spectrum), marginals, strict=True)
    ]
    return spectrum + STEP * (wavelets.merge(spectrum, subbands) - spectrum)


def match_histograms(arrays: Floats, ascending: Floats) -> Floats:
    """Replace the values of arrays (N, side, side) by the sorted values (N, side^2) of the same rank."""
    out = np.empty_like(ascending)
    for row, order, values in zip(out, _argsort(arrays.reshape(ascending.shape)), ascending, strict=True):
        row[order] = values
    return out.reshape(arrays.shape)


def _argsort(values: Floats) -> NDArray[np.int64]:
    """Return argsort in half the time, by storing each value's index in its last bits before sorting."""
    count = values.shape[-1]
    last = (1 << count.bit_length()) - 1
    keys = values.copy()
    bits = keys.view(np.int64)
    bits &= ~last
    bits |= np.arange(count)
    keys.sort(-1)
    bits &= last
    return bits


@dataclass(frozen=True)
class Scale:
    """The filters of one scale of a pyramid, one per orientation."""

    side: int
    where: tuple[Any, Any]  # indices of its frequencies in the half spectrum of the image
    filters: Complexes  # (orientations, side, side // 2 + 1)
    conjugates: Complexes


@dataclass(frozen=True)
class Pyramid:
    """A steerable pyramid, which splits an image into subbands of one scale and orientation each, and merges them.

    It follows Simoncelli and Freeman 1995, in the Fourier domain. The squared filters sum to one at every frequency, so
    filtering twice restores the image. A subband has the values of the filtered image at every 2^scale-th pixel or, if
    the side is not divisible, on a slightly finer grid. The residuals, above the finest scale and below the coarsest,
    stay in the Fourier domain.
    """

    scales: tuple[Scale, ...]  # finest first
    residuals: Floats  # squared highpass plus squared lowpass filter

    def split(self, spectrum: Complexes) -> list[Floats]:
        """Return the subbands (orientations, side, side) of each scale, for a spectrum rfft2(image, norm="forward")."""
        return [irfft2(spectrum[s.where] * s.filters, (s.side, s.side), norm="forward") for s in self.scales]

    def merge(self, spectrum: Complexes, subbands: list[Floats]) -> Complexes:
        """Return the spectrum with these subbands and the residuals of the given spectrum."""
        out = spectrum * self.residuals
        for s, bands in zip(self.scales, subbands, strict=True):
            out[s.where] += np.einsum("oyx,oyx->yx", rfft2(bands, norm="forward"), s.conjugates)
        return out


@lru_cache(maxsize=4)
def pyramid(side: int) -> Pyramid:
    """Build a pyramid with three scales at 128 pixels per side, and one more scale for each doubling of the side."""
    y, x = _frequencies(side)
    radius, angle = np.hypot(x, y) / (side / 2), np.arctan2(y, x)
    directions = np.arange(ORIENTATIONS)[:, None, None] * np.pi / ORIENTATIONS
    # cos^6 sums to 5/4 over four orientations; cos^3 is odd, so a real subband needs a factor i.
    oriented = 1j * np.cos(angle - directions) ** 3 / np.sqrt(5 / 4)
    lowpasses = [_squared_lowpass(radius * 2**scale) for scale in range(max(1, side.bit_length() - 5) + 1)]
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
    """Return the vertical and horizontal frequencies of a half spectrum."""
    return ifftshift(np.arange(side) - side // 2)[:, None], np.arange(side // 2 + 1)


def _squared_lowpass(radius: Floats) -> Floats:
    """Return a squared lowpass filter: one up to half the Nyquist frequency, then a cosine in log frequency to zero."""
    with np.errstate(divide="ignore"):
        return np.cos(np.pi / 2 * np.clip(np.log2(2 * radius), 0, 1)) ** 2
