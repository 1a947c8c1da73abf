"""Images of StyleGAN2 synthesis networks (Karras et al. 2020) that were never trained, after Baradad et al. 2021.

Each process adds to the one before: `random` has Gaussian weights, no noise and no biases, and makes soft blobs;
`high_freq` adds noise of all frequencies to every layer; `sparse` confines the noise to blotches and draws biases;
`oriented` ties the weights to edges, bars and spots. A network serves 400 images, then another is drawn.

In `oriented` the weight of output o for input i is a_o f_i, with f_i a filter of the bank. Demodulation divides it by
the norm over all i and leaves of a_o the sign: the outputs of a layer are one map, up to sign, noise and bias. So only
one map a layer is worked out, for all of the original's 512 channels, and this is the fastest of the four.

What differs. Size: a network makes twice the side and areas are averaged, as 256 pixels for 128 there, so textures look
alike at all sides. Channels: at most 32 where weights are Gaussian, as their sums hardly depend on it. Styles: there, a
random affine layer takes 512 numbers w to them, which makes them Gaussian; here they are drawn as such. Noise: drawn at
the size of the network, not at 512 pixels. Images are not compressed. Numbers are double, so that the order in which a
library adds them does not reach the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.feature_maps import Maps, Plain, Ramps, convolved, doubled, ramp
from dpvision.public.random.image_random import ImageRandom

Floats = NDArray[np.float64]

IMAGES = 400  # of one network
DIRECTIONS = 8  # of edges and bars, of half a turn
SPOTS = (
    ((0, 0, 0), (0, 1, 0), (0, 0, 0)),
    ((-1 / 8, -1 / 8, -1 / 8), (-1 / 8, 1, -1 / 8), (-1 / 8, -1 / 8, -1 / 8)),
    ((0, 1, 0), (1, 1, 1), (0, 1, 0)),
    ((-1, 1, -1), (1, 1, 1), (-1, 1, -1)),
)
LOBES, GRID = 3, 4  # of the Lanczos kernel, and blotches a side
SMALLEST, LARGEST = 4, 1024  # sides of a StyleGAN2
FEWEST_FILTERS = 5  # of the bank, in one layer
EXPONENTS = (0.5, 1.5)  # of the noise
# A style is 1 + A w with A = N(0, 1 / 512) of the network and w = LeakyReLU(N(0, 1)) of the image, 512 of them.
SLOPE = 0.2
W_MEAN = (1 - SLOPE) / np.sqrt(2 * np.pi)
W_STD = np.sqrt((1 + SLOPE**2) / 2 - W_MEAN**2)
# Of red, green and blue: means and deviations, over images, of an image's mean and of its deviation.
MEANS = ((0.483, 0.455, 0.401), (0.145, 0.142, 0.161))
STDS = ((0.219, 0.213, 0.213), (0.063, 0.062, 0.069))


@dataclass(frozen=True)
class Variant:
    noise: float = 0.0  # greatest strength in a layer
    blotchy: bool = False
    bias: float = 0.0  # greatest
    tied: bool = False


RANDOM = Variant()
HIGH_FREQ = replace(RANDOM, noise=0.3)
SPARSE = replace(HIGH_FREQ, blotchy=True, bias=0.2)
ORIENTED = replace(SPARSE, tied=True)


def random(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Soft blobs."""
    return _images(draws, side, RANDOM)


def high_freq(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Clouds and grain all over."""
    return _images(draws, side, HIGH_FREQ)


def sparse(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Grain in a few places."""
    return _images(draws, side, SPARSE)


def oriented(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Strokes and reliefs, in directions that are the network's own."""
    return _images(draws, side, ORIENTED)


@dataclass(frozen=True)
class Convolution:
    """Of C maps to O."""

    weights: Floats  # (O, C, 3, 3); tied ones (1, C, 3, 3), up to signs
    style: Floats  # mean over images (C)
    signs: Floats  # (O)
    biases: Floats  # (O)
    strength: float  # of the noise
    doubles: bool  # the side


@dataclass(frozen=True)
class Block:
    """What a network does at one size."""

    convolutions: list[Convolution]
    rgb: Floats  # weights (3, O)
    rgb_style: Floats  # mean over images (O)


def _images(draws: Sequence[ImageRandom], side: int, variant: Variant) -> Floats:
    size = SMALLEST
    while size < min(2 * side, LARGEST):
        size *= 2
    shrink = _shares(size, side)
    out = np.empty((len(draws), side, side, 3))
    for image, each in zip(out, draws, strict=True):
        first = replace(each, index=each.index // IMAGES * IMAGES)
        rgb = _synthesised(each, *_network(first, size, variant), variant)
        image[...] = np.moveaxis(shrink @ _coloured(each.own("colours"), rgb) @ shrink.T, 0, -1)
    return out


@lru_cache(maxsize=8)
def _network(first: ImageRandom, size: int, variant: Variant) -> tuple[Floats, list[Block]]:
    """Of the 400 images from this one on: the constant (C, 4, 4) to begin with, and the blocks."""
    rng = first.shared(IMAGES, "network")
    width, blocks = _width(SMALLEST, variant), list[Block]()
    constant = rng.standard_normal((width, SMALLEST, SMALLEST))
    for here in _sizes(size):
        before, width = width, _width(here, variant)
        convolutions = [_convolution(rng, width, width, variant, doubles=False)]
        if here > SMALLEST:
            convolutions.insert(0, _convolution(rng, before, width, variant, doubles=True))
        rgb = rng.standard_normal((3, width)) / np.sqrt(width)
        blocks.append(Block(convolutions, rgb, _mean_style(rng, width)))
    return constant, blocks


def _sizes(size: int) -> list[int]:
    return [1 << k for k in range(SMALLEST.bit_length() - 1, size.bit_length())]


def _width(size: int, variant: Variant) -> int:
    """Channels: as in StyleGAN2, or fewer where each takes a convolution."""
    return min(512, 32768 // size) if variant.tied else min(32, max(8, 2048 // size))


def _convolution(rng: Generator, c: int, o: int, variant: Variant, *, doubles: bool) -> Convolution:
    if variant.tied:
        filters = rng.permutation(bank())[: rng.integers(FEWEST_FILTERS, len(bank()) + 1)]
        weights, signs = filters[rng.integers(len(filters), size=(1, c))], np.sign(rng.standard_normal(o))
    else:
        weights, signs = rng.standard_normal((o, c, 3, 3)), np.ones(o)
    biases, strength = rng.uniform(-variant.bias, variant.bias, o), rng.uniform(0.0, variant.noise)
    return Convolution(weights, _mean_style(rng, c), signs, biases, strength, doubles)


def _mean_style(rng: Generator, c: int) -> Floats:
    return 1 + W_MEAN * rng.standard_normal(c)


def _style(rng: Generator, mean: Floats) -> Floats:
    return mean + W_STD * rng.standard_normal(len(mean))


def _synthesised(draws: ImageRandom, constant: Floats, blocks: list[Block], variant: Variant) -> Floats:
    """The image of these coins (3, size, size), in colours of any range."""
    rng, noises = draws.own("styles"), _noises(draws.own("noise"), SMALLEST << len(blocks) - 1, variant)
    x: Maps = Plain(constant)
    rgb = np.zeros((3, SMALLEST // 2, SMALLEST // 2))
    for block, noise in zip(blocks, noises, strict=True):
        for layer in block.convolutions:
            y = convolved(x, _modulated(layer.weights, _style(rng, layer.style)), doubles=layer.doubles)
            if variant.tied:
                x = Ramps(y[0], layer.strength * noise, signs=layer.signs, biases=layer.biases)
            else:
                x = Plain(ramp(y + layer.strength * noise + layer.biases[:, None, None]))
        weights = block.rgb * _style(rng, block.rgb_style)
        rgb = doubled(rgb) + next(x.mix(weights[None]))
    return rgb


def _modulated(weights: Floats, style: Floats) -> Floats:
    """Weights times the style of their input, with norm 1 for each output (Karras et al. 2020, equations 1 and 3)."""
    styled = weights * style[:, None, None]
    return styled / np.sqrt((styled**2).sum((1, 2, 3), keepdims=True))


def _noises(rng: Generator, size: int, variant: Variant) -> list[Floats]:
    """One map at all sizes from 4 on, of deviation 1 at the last."""
    noise = pink(rng, size, rng.uniform(*EXPONENTS))
    if variant.blotchy:
        noise *= blotches(rng, size)
    noises = [noise / noise.std()]
    while size > SMALLEST:
        size //= 2
        noises.insert(0, noises[0].reshape(size, 2, size, 2).mean((1, 3)))
    return noises


def _coloured(rng: Generator, rgb: Floats) -> Floats:
    """The same, each colour with a mean and a deviation as photographs have."""
    mean, deviation = (rng.normal(*of)[:, None, None] for of in (MEANS, STDS))
    standard = (rgb - rgb.mean((1, 2), keepdims=True)) / rgb.std((1, 2), keepdims=True)
    return np.clip(mean + deviation * standard, 0.0, 1.0)


@cache
def _shares(size: int, side: int) -> Floats:
    """Of `size` pixels in each of `side` ones that cover them, adding up to 1 (side, size)."""
    pixels, borders = np.arange(size), np.arange(side + 1)[:, None] * size / side
    overlap = np.minimum(borders[1:], pixels + 1) - np.maximum(borders[:-1], pixels)
    return np.maximum(0.0, overlap) * side / size


@cache
def bank() -> NDArray[np.float64]:
    """Forty filters (40, 3, 3): edges and bars in eight directions, four spots, and all of them negated.

    The bank of Baradad et al. 2021, who turn a step and a line on a finer grid, interpolate, and cut out the middle:
    there these are a ramp and a tent across the direction.
    """
    angle = np.arange(DIRECTIONS)[:, None, None] * np.pi / DIRECTIONS
    y, x = np.mgrid[-1:2, -1:2]
    across = x * np.cos(angle) + y * np.sin(angle)
    edges, bars = np.clip(across, -1, 1), np.maximum(0, 1 - abs(across))
    half = np.concatenate([edges, bars - bars.mean((1, 2), keepdims=True), np.array(SPOTS)])
    return np.concatenate([half, -half])


def pink(rng: Generator, side: int, exponent: float) -> Floats:
    """Gaussian noise with amplitudes |f|^-exponent and mean zero (side, side)."""
    spectrum = rng.standard_normal((2, side, side // 2 + 1))
    return np.fft.irfft2((spectrum[0] + 1j * spectrum[1]) * _frequencies(side) ** -exponent, (side, side))


def blotches(rng: Generator, side: int) -> Floats:
    """A grid of 4 x 4 Laplace numbers, made smooth: near zero in most places, large in few (side, side)."""
    enlarge = _lanczos(side)
    return enlarge @ rng.laplace(size=(GRID, GRID)) @ enlarge.T


@cache
def _frequencies(side: int) -> Floats:
    frequencies = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) * side
    frequencies[0, 0] = np.inf
    return frequencies


@cache
def _lanczos(side: int) -> Floats:
    """From GRID to `side` points (side, GRID)."""
    places = (np.arange(side) + 0.5) * GRID / side - 0.5
    away = places[:, None] - np.arange(GRID)
    weights = np.where(abs(away) < LOBES, np.sinc(away) * np.sinc(away / LOBES), 0.0)
    return weights / weights.sum(1, keepdims=True)
