"""Images of untrained StyleGAN2 synthesis networks (Karras et al. 2020), after Baradad et al. 2021.

Each process adds to the one before: `random` has Gaussian weights, no noise and no biases, and makes soft blobs;
`high_freq` adds noise of all frequencies to every layer; `sparse` confines the noise to blotches and draws biases;
`oriented` ties the weights to edges, bars and spots. A new network is drawn for every 400 images.

In `oriented` the weight of output o for input i is a_o f_i, with f_i a filter of the bank. Demodulation divides it by
the norm over all i, which leaves only the sign of a_o: the outputs of a layer are one map, up to sign, noise and bias.
So only one map per layer is computed for all of the original's 512 channels, which makes it the fastest of the four.

Differences from the original. Size: a network makes images of twice the side, whose areas are averaged (there: 256
pixels for 128), so textures look alike at all sizes. Channels: at most 32 where weights are Gaussian, as sums over them
hardly depend on their number. Styles: there, a random affine layer maps 512 numbers w to them, which makes them
Gaussian; here they are drawn as Gaussian. Noise: drawn at the size of the network, not at 512 pixels. Images are not
compressed. Numbers are float64, so that the order in which a library adds them does not affect the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpvision.public.random.image_random import ImageRandom

Floats = NDArray[np.float64]

IMAGES_PER_NETWORK = 400
DIRECTIONS = 8  # of edges and bars, over half a turn
SPOTS = (
    ((0, 0, 0), (0, 1, 0), (0, 0, 0)),
    ((-1 / 8, -1 / 8, -1 / 8), (-1 / 8, 1, -1 / 8), (-1 / 8, -1 / 8, -1 / 8)),
    ((0, 1, 0), (1, 1, 1), (0, 1, 0)),
    ((-1, 1, -1), (1, 1, 1), (-1, 1, -1)),
)
LOBES, GRID = 3, 4  # of the Lanczos kernel, and blotches per side
MIN_SIDE, MAX_SIDE = 4, 1024  # of the maps of a StyleGAN2
MIN_FILTERS = 5  # of the bank, in one layer
EXPONENTS = (0.5, 1.5)  # of the noise
GAIN = np.sqrt(2.0)  # compensates for the half of the variance that ReLU removes
# A style is 1 + A w with A = N(0, 1 / 512) of the network and w = LeakyReLU(N(0, 1)) of the image, 512 of them.
SLOPE = 0.2
W_MEAN = (1 - SLOPE) / np.sqrt(2 * np.pi)
W_STD = np.sqrt((1 + SLOPE**2) / 2 - W_MEAN**2)
# Of red, green and blue: mean and standard deviation, over images, of an image's mean and of its standard deviation.
MEANS = ((0.483, 0.455, 0.401), (0.145, 0.142, 0.161))
STDS = ((0.219, 0.213, 0.213), (0.063, 0.062, 0.069))


@dataclass(frozen=True)
class Variant:
    """What one of the four processes adds to plain Gaussian weights."""

    noise: float = 0.0  # greatest strength in a layer
    blotchy: bool = False
    bias: float = 0.0  # greatest absolute value
    tied: bool = False


RANDOM = Variant()
HIGH_FREQ = replace(RANDOM, noise=0.3)
SPARSE = replace(HIGH_FREQ, blotchy=True, bias=0.2)
ORIENTED = replace(SPARSE, tied=True)


def draw_random(image_rng: ImageRandom, side: int) -> Floats:
    """Draw soft blobs."""
    return _draw(image_rng, side, RANDOM)


def draw_high_freq(image_rng: ImageRandom, side: int) -> Floats:
    """Draw clouds and grain in all places."""
    return _draw(image_rng, side, HIGH_FREQ)


def draw_sparse(image_rng: ImageRandom, side: int) -> Floats:
    """Draw grain in a few places."""
    return _draw(image_rng, side, SPARSE)


def draw_oriented(image_rng: ImageRandom, side: int) -> Floats:
    """Draw strokes and reliefs, in directions that the images of a network share."""
    return _draw(image_rng, side, ORIENTED)


@dataclass(frozen=True)
class Convolution:
    """A modulated convolution of C maps to O maps."""

    weights: Floats  # (O, C, 3, 3); tied ones (1, C, 3, 3), up to signs
    style: Floats  # mean over images (C)
    signs: Floats  # (O)
    biases: Floats  # (O)
    strength: float  # of the noise
    upsample: bool  # doubles the side


@dataclass(frozen=True)
class Block:
    """The layers of a network at one size."""

    convolutions: list[Convolution]
    rgb: Floats  # weights (3, O)
    rgb_style: Floats  # mean over images (O)


def _draw(image_rng: ImageRandom, side: int, variant: Variant) -> Floats:
    size = MIN_SIDE
    while size < min(2 * side, MAX_SIDE):
        size *= 2
    shrink = _area_average(size, side)
    rgb = _synthesise(image_rng, *_network(image_rng.group_start(IMAGES_PER_NETWORK), size, variant), variant)
    return np.moveaxis(shrink @ _normalise_colours(image_rng.generator("colours"), rgb) @ shrink.T, 0, -1)


@lru_cache(maxsize=8)
def _network(first: ImageRandom, size: int, variant: Variant) -> tuple[Floats, list[Block]]:
    """The constant input (C, 4, 4) and the blocks of the network for the 400 images from `first` on."""
    rng = first.group_generator(IMAGES_PER_NETWORK, "network")
    width, blocks = _width(MIN_SIDE, variant), list[Block]()
    constant = rng.standard_normal((width, MIN_SIDE, MIN_SIDE))
    block_size = MIN_SIDE
    while block_size <= size:
        previous, width = width, _width(block_size, variant)
        convolutions = [_convolution(rng, width, width, variant, upsample=False)]
        if block_size > MIN_SIDE:
            convolutions.insert(0, _convolution(rng, previous, width, variant, upsample=True))
        rgb = rng.standard_normal((3, width)) / np.sqrt(width)
        blocks.append(Block(convolutions, rgb, _mean_style(rng, width)))
        block_size *= 2
    return constant, blocks


def _width(size: int, variant: Variant) -> int:
    """Number of channels: as in StyleGAN2, or fewer where each needs a convolution."""
    return min(512, 32768 // size) if variant.tied else min(32, max(8, 2048 // size))


def _convolution(rng: Generator, c: int, o: int, variant: Variant, *, upsample: bool) -> Convolution:
    if variant.tied:
        filters = rng.permutation(filter_bank())[: rng.integers(MIN_FILTERS, len(filter_bank()) + 1)]
        weights, signs = filters[rng.integers(len(filters), size=(1, c))], np.sign(rng.standard_normal(o))
    else:
        weights, signs = rng.standard_normal((o, c, 3, 3)), np.ones(o)
    biases, strength = rng.uniform(-variant.bias, variant.bias, o), rng.uniform(0.0, variant.noise)
    return Convolution(weights, _mean_style(rng, c), signs, biases, strength, upsample)


def _mean_style(rng: Generator, c: int) -> Floats:
    return 1 + W_MEAN * rng.standard_normal(c)


def _draw_style(rng: Generator, mean: Floats) -> Floats:
    return mean + W_STD * rng.standard_normal(len(mean))


def _synthesise(image_rng: ImageRandom, constant: Floats, blocks: list[Block], variant: Variant) -> Floats:
    """Run the network on the styles and noise of one image: (3, size, size), in colours of any range."""
    rng = image_rng.generator("styles")
    noises = _draw_noises(image_rng.generator("noise"), MIN_SIDE << len(blocks) - 1, variant)
    x: Maps = Plain(constant)
    rgb = np.zeros((3, MIN_SIDE // 2, MIN_SIDE // 2))
    for block, noise in zip(blocks, noises, strict=True):
        for layer in block.convolutions:
            y = convolve(x, _modulate(layer.weights, _draw_style(rng, layer.style)), upsample=layer.upsample)
            if variant.tied:
                x = TiedMaps(y[0], layer.strength * noise, signs=layer.signs, biases=layer.biases)
            else:
                x = Plain(relu(y + layer.strength * noise + layer.biases[:, None, None]))
        weights = block.rgb * _draw_style(rng, block.rgb_style)
        rgb = double(rgb) + next(x.mix(weights[None]))
    return rgb


def _modulate(weights: Floats, style: Floats) -> Floats:
    """Multiply weights by the style of their input and normalise each output (Karras et al. 2020, eq. 1 and 3)."""
    styled = weights * style[:, None, None]
    return styled / np.sqrt((styled**2).sum((1, 2, 3), keepdims=True))


def _draw_noises(rng: Generator, size: int, variant: Variant) -> list[Floats]:
    """One noise map at all sizes from 4 to `size`, with standard deviation 1 at the last."""
    noise = pink_noise(rng, size, rng.uniform(*EXPONENTS))
    if variant.blotchy:
        noise *= draw_blotches(rng, size)
    noises = [noise / noise.std()]
    while size > MIN_SIDE:
        size //= 2
        noises.insert(0, noises[0].reshape(size, 2, size, 2).mean((1, 3)))
    return noises


def _normalise_colours(rng: Generator, rgb: Floats) -> Floats:
    """Give each colour a mean and a standard deviation drawn as those of photographs are distributed."""
    mean, deviation = (rng.normal(*moments)[:, None, None] for moments in (MEANS, STDS))
    standard = (rgb - rgb.mean((1, 2), keepdims=True)) / rgb.std((1, 2), keepdims=True)
    return np.clip(mean + deviation * standard, 0.0, 1.0)


@cache
def _area_average(size: int, side: int) -> Floats:
    """(side, size): the matrix that averages `size` pixels to `side` pixels by area."""
    pixels, borders = np.arange(size), np.arange(side + 1)[:, None] * size / side
    overlap = np.minimum(borders[1:], pixels + 1) - np.maximum(borders[:-1], pixels)
    return np.maximum(0.0, overlap) * side / size


@cache
def filter_bank() -> Floats:
    """Forty filters (40, 3, 3): edges and bars in eight directions, four spots, and the negatives of all of them.

    The bank of Baradad et al. 2021, who rotate a step and a line on a finer grid, interpolate, and crop the centre,
    where these are a ramp and a tent across the direction.
    """
    angle = np.arange(DIRECTIONS)[:, None, None] * np.pi / DIRECTIONS
    y, x = np.mgrid[-1:2, -1:2]
    across = x * np.cos(angle) + y * np.sin(angle)
    edges, bars = np.clip(across, -1, 1), np.maximum(0, 1 - abs(across))
    half = np.concatenate([edges, bars - bars.mean((1, 2), keepdims=True), np.array(SPOTS)])
    return np.concatenate([half, -half])


def pink_noise(rng: Generator, side: int, exponent: float) -> Floats:
    """Gaussian noise with amplitudes |f|^-exponent and mean zero (side, side)."""
    spectrum = rng.standard_normal((2, side, side // 2 + 1))
    return np.fft.irfft2((spectrum[0] + 1j * spectrum[1]) * _frequencies(side) ** -exponent, (side, side))


def draw_blotches(rng: Generator, side: int) -> Floats:
    """A 4 x 4 grid of Laplace numbers, interpolated to (side, side): near zero in most places, large in few."""
    enlarge = _lanczos(side)
    return enlarge @ rng.laplace(size=(GRID, GRID)) @ enlarge.T


@cache
def _frequencies(side: int) -> Floats:
    frequencies = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) * side
    frequencies[0, 0] = np.inf
    return frequencies


@cache
def _lanczos(side: int) -> Floats:
    """(side, GRID): the matrix of Lanczos interpolation from GRID to `side` points."""
    positions = (np.arange(side) + 0.5) * GRID / side - 0.5
    distance = positions[:, None] - np.arange(GRID)
    weights = np.where(abs(distance) < LOBES, np.sinc(distance) * np.sinc(distance / LOBES), 0.0)
    return weights / weights.sum(1, keepdims=True)


def relu(x: Floats) -> Floats:
    """ReLU times sqrt(2), which preserves the second moment."""
    return GAIN * np.maximum(0.0, x)


class Maps(Protocol):
    """The C maps that a layer passes on. A convolution needs only weighted sums of them, so they may stay implicit."""

    side: int

    def mix(self, weights: Floats) -> Iterator[Floats]:
        """Yield, for each of the K weight matrices (K, O, C), the weighted sums of the C maps (O, side, side)."""


class Plain:
    """Maps stored as an array (C, side, side), summed image row by image row: products too small for threads."""

    def __init__(self, maps: Floats) -> None:
        self.side = maps.shape[-1]
        self._rows = np.moveaxis(maps, 1, 0)

    def mix(self, weights: Floats) -> Iterator[Floats]:
        for matrix in weights:
            yield np.moveaxis(matrix @ self._rows, 0, 1)


class TiedMaps:
    """The C maps relu(sign y + noise + bias) of one y and one noise.

    For each sign, the weighted sum of the maps is piecewise linear in u = sign y + noise, with a breakpoint at the
    negative of each bias: with a table of these pieces, hundreds of maps cost no more than two.
    """

    def __init__(self, y: Floats, noise: Floats, *, signs: Floats, biases: Floats) -> None:
        self.side = y.shape[-1]
        self._halves = []
        for sign in (1, -1):
            channels = np.flatnonzero(signs == sign)
            channels = channels[np.argsort(-biases[channels])]
            u = (sign * y + noise).ravel()
            above = np.searchsorted(-biases[channels], u)
            self._halves.append((u, above, channels, biases[channels]))

    def mix(self, weights: Floats) -> Iterator[Floats]:
        lines = []
        for u, above, channels, biases in self._halves:
            slopes = GAIN * weights[..., channels]
            lines.append((u, above, _partial_sums(slopes), _partial_sums(slopes * biases)))
        part = np.empty(self.side**2)
        for k in range(len(weights)):
            out = np.zeros((weights.shape[1], self.side**2))
            for u, above, slopes, offsets in lines:
                for row, slope, offset in zip(out, slopes[k], offsets[k], strict=True):
                    row += np.multiply(slope.take(above, out=part, mode="clip"), u, out=part)
                    row += offset.take(above, out=part, mode="clip")
            yield out.reshape(-1, self.side, self.side)


def _partial_sums(terms: Floats) -> Floats:
    """Sums of the first 0, 1, ... terms along the last axis."""
    sums = np.zeros((*terms.shape[:-1], terms.shape[-1] + 1))
    np.cumsum(terms, -1, out=sums[..., 1:])
    return sums


def convolve(x: Maps, weights: Floats, *, upsample: bool) -> Floats:
    """Convolve C zero-padded maps with weights (O, C, 3, 3): O maps of the same side or, with `upsample`, twice it."""
    step = 2 if upsample else 1
    reach = step * (x.side - 1) + 1
    canvas = np.zeros((len(weights), reach + 4, reach + 4))
    parts = x.mix(np.moveaxis(weights, (2, 3), (0, 1)).reshape(9, *weights.shape[:2]))
    for (i, j), part in zip(np.ndindex(3, 3), parts, strict=True):
        canvas[:, i + 1 : i + 1 + reach : step, j + 1 : j + 1 + reach : step] += part
    return _blur(canvas) if upsample else canvas[:, 2:-2, 2:-2]


def double(maps: Floats) -> Floats:
    """Upsample (C, n, n) to (C, 2 n, 2 n)."""
    count, side, _ = maps.shape
    canvas = np.zeros((count, 2 * side + 3, 2 * side + 3))
    canvas[:, 2:-1:2, 2:-1:2] = maps
    return _blur(canvas)


def _blur(canvas: Floats) -> Floats:
    """Convolve with [1, 3, 3, 1] / 8 both ways, three times [1, 1] / 2; times 4, as three of four pixels are zero."""
    for _ in range(3):
        canvas = canvas[:, :-1] + canvas[:, 1:]
    for _ in range(3):
        canvas = canvas[:, :, :-1] + canvas[:, :, 1:]
    return canvas / 16
