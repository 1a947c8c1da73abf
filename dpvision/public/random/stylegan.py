"""Images from untrained StyleGAN2 synthesis networks (Karras et al. 2020), after Baradad et al. 2021.

Each process extends the previous one. `random` has Gaussian weights but no noise and no biases, and draws soft blobs.
`high_freq` adds noise of all frequencies to every layer. `sparse` confines the noise to blotches and draws biases.
`oriented` restricts the weights to edges, bars and spots. A new network is drawn for every 400 images.

In `oriented`, the weight of output o for input i is a_o f_i, with f_i a filter of the bank. Demodulation divides it by
the norm over all i, so only the sign of a_o matters: the outputs of a layer are one map, up to sign, noise and bias.
Therefore one map per layer is computed for all of the original's 512 channels, and this is the fastest of the four.

Differences from the original:

* Size: networks draw images of twice the side, which are then averaged by area (in the original: 256 pixels for 128),
  so textures look alike at all sizes.
* Channels: there are at most 32 if weights are Gaussian, because sums over them hardly depend on their number.
* Styles: they are drawn as Gaussian numbers. In the original, a random affine layer computes them from 512 numbers w,
  which makes them Gaussian.
* Noise: it is drawn at the network's size, not at 512 pixels.
* Files: images are not compressed.

Numbers are float64, so that the order in which a library adds them does not affect the bytes.
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
MIN_FILTERS = 5  # of the bank, used by one layer
EXPONENTS = (0.5, 1.5)  # of the noise
GAIN = np.sqrt(2.0)  # compensates for ReLU, which removes half of the variance
# A style is 1 + A w, where the network has A ~ N(0, 1 / 512) and the image has 512 numbers w ~ LeakyReLU(N(0, 1)).
SLOPE = 0.2
W_MEAN = (1 - SLOPE) / np.sqrt(2 * np.pi)
W_STD = np.sqrt((1 + SLOPE**2) / 2 - W_MEAN**2)
# For red, green and blue: mean and standard deviation over images, of an image's mean and of its standard deviation.
MEANS = ((0.483, 0.455, 0.401), (0.145, 0.142, 0.161))
STDS = ((0.219, 0.213, 0.213), (0.063, 0.062, 0.069))


@dataclass(frozen=True)
class Variant:
    """The features that one of the four processes adds to plain Gaussian weights."""

    noise: float = 0.0  # maximum strength in a layer
    blotchy: bool = False
    bias: float = 0.0  # maximum absolute value
    tied: bool = False  # whether weights come from the filter bank


RANDOM = Variant()
HIGH_FREQ = replace(RANDOM, noise=0.3)
SPARSE = replace(HIGH_FREQ, blotchy=True, bias=0.2)
ORIENTED = replace(SPARSE, tied=True)


def draw_random(image_rng: ImageRandom, side: int) -> Floats:
    """Draw soft blobs."""
    return _draw(image_rng, side, RANDOM)


def draw_high_freq(image_rng: ImageRandom, side: int) -> Floats:
    """Draw clouds and grain everywhere."""
    return _draw(image_rng, side, HIGH_FREQ)


def draw_sparse(image_rng: ImageRandom, side: int) -> Floats:
    """Draw grain in a few places."""
    return _draw(image_rng, side, SPARSE)


def draw_oriented(image_rng: ImageRandom, side: int) -> Floats:
    """Draw strokes and reliefs, in directions shared by all images of a network."""
    return _draw(image_rng, side, ORIENTED)


@dataclass(frozen=True)
class Convolution:
    """A modulated convolution from C maps to O maps."""

    weights: Floats  # (O, C, 3, 3); if tied, (1, C, 3, 3), up to signs
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
    """Draw the constant input (C, 4, 4) and the blocks of the network for the 400 images that start with `first`."""
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
    """Return the number of channels: as in StyleGAN2 for tied weights, else fewer, as each needs a convolution."""
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
    """Run the network on the styles and noise of one image; return (3, size, size), with values of any range."""
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
    """Multiply the weights by their inputs' styles and normalise each output (Karras et al. 2020, eq. 1 and 3)."""
    styled = weights * style[:, None, None]
    return styled / np.sqrt((styled**2).sum((1, 2, 3), keepdims=True))


def _draw_noises(rng: Generator, size: int, variant: Variant) -> list[Floats]:
    """Draw one noise map at all sizes from 4 to `size`, with standard deviation 1 at the last."""
    noise = pink_noise(rng, size, rng.uniform(*EXPONENTS))
    if variant.blotchy:
        noise *= draw_blotches(rng, size)
    noises = [noise / noise.std()]
    while size > MIN_SIDE:
        size //= 2
        noises.insert(0, noises[0].reshape(size, 2, size, 2).mean((1, 3)))
    return noises


def _normalise_colours(rng: Generator, rgb: Floats) -> Floats:
    """Give each colour channel a mean and a standard deviation, drawn from their distribution over photographs."""
    mean, deviation = (rng.normal(*moments)[:, None, None] for moments in (MEANS, STDS))
    standard = (rgb - rgb.mean((1, 2), keepdims=True)) / rgb.std((1, 2), keepdims=True)
    return np.clip(mean + deviation * standard, 0.0, 1.0)


@cache
def _area_average(size: int, side: int) -> Floats:
    """Return the (side, size) matrix that averages `size` pixels to `side` pixels by area."""
    pixels, borders = np.arange(size), np.arange(side + 1)[:, None] * size / side
    overlap = np.minimum(borders[1:], pixels + 1) - np.maximum(borders[:-1], pixels)
    return np.maximum(0.0, overlap) * side / size


@cache
def filter_bank() -> Floats:
    """Return forty filters (40, 3, 3): edges and bars in eight directions, four spots, and the negatives of all.

    In the original bank (Baradad et al. 2021), a step and a line are rotated on a finer grid, interpolated and cropped.
    Here they are a ramp and a tent across the direction.
    """
    angle = np.arange(DIRECTIONS)[:, None, None] * np.pi / DIRECTIONS
    y, x = np.mgrid[-1:2, -1:2]
    across = x * np.cos(angle) + y * np.sin(angle)
    edges, bars = np.clip(across, -1, 1), np.maximum(0, 1 - abs(across))
    half = np.concatenate([edges, bars - bars.mean((1, 2), keepdims=True), np.array(SPOTS)])
    return np.concatenate([half, -half])


def pink_noise(rng: Generator, side: int, exponent: float) -> Floats:
    """Draw Gaussian noise (side, side) with amplitudes |f|^-exponent and mean zero."""
    spectrum = rng.standard_normal((2, side, side // 2 + 1))
    return np.fft.irfft2((spectrum[0] + 1j * spectrum[1]) * _frequencies(side) ** -exponent, (side, side))


def draw_blotches(rng: Generator, side: int) -> Floats:
    """Draw a 4 x 4 grid of Laplace numbers, interpolated to (side, side): large in a few places, else near zero."""
    enlarge = _lanczos(side)
    return enlarge @ rng.laplace(size=(GRID, GRID)) @ enlarge.T


@cache
def _frequencies(side: int) -> Floats:
    frequencies = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) * side
    frequencies[0, 0] = np.inf
    return frequencies


@cache
def _lanczos(side: int) -> Floats:
    """Return the (side, GRID) matrix of Lanczos interpolation from GRID to `side` points."""
    positions = (np.arange(side) + 0.5) * GRID / side - 0.5
    distance = positions[:, None] - np.arange(GRID)
    weights = np.where(abs(distance) < LOBES, np.sinc(distance) * np.sinc(distance / LOBES), 0.0)
    return weights / weights.sum(1, keepdims=True)


def relu(x: Floats) -> Floats:
    """Return ReLU times sqrt(2), which preserves the second moment."""
    return GAIN * np.maximum(0.0, x)


class Maps(Protocol):
    """The C output maps of a layer. They may stay implicit, because a convolution needs only weighted sums of them."""

    side: int

    def mix(self, weights: Floats) -> Iterator[Floats]:
        """For each of the K weight matrices (K, O, C), yield the weighted sums of the C maps (O, side, side)."""


class Plain:
    """Maps stored as an array (C, side, side). They are summed row by row, in products too small to use threads."""

    def __init__(self, maps: Floats) -> None:
        self.side = maps.shape[-1]
        self._rows = np.moveaxis(maps, 1, 0)

    def mix(self, weights: Floats) -> Iterator[Floats]:
        for matrix in weights:
            yield np.moveaxis(matrix @ self._rows, 0, 1)


class TiedMaps:
    """The C maps relu(sign y + noise + bias) of one y and one noise.

    For each sign, the weighted sum of the maps is piecewise linear in u = sign y + noise, with a breakpoint at the
    negative of each bias. With a table of these pieces, hundreds of maps cost no more than two.
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
    """Return the sums of the first 0, 1, ... terms along the last axis."""
    sums = np.zeros((*terms.shape[:-1], terms.shape[-1] + 1))
    np.cumsum(terms, -1, out=sums[..., 1:])
    return sums


def convolve(x: Maps, weights: Floats, *, upsample: bool) -> Floats:
    """Convolve C zero-padded maps with weights (O, C, 3, 3) to O maps; `upsample` doubles their side."""
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
    """Convolve both ways with [1, 3, 3, 1] / 8, which is [1, 1] / 2 three times; multiply by 4 for the zero pixels."""
    for _ in range(3):
        canvas = canvas[:, :-1] + canvas[:, 1:]
    for _ in range(3):
        canvas = canvas[:, :, :-1] + canvas[:, :, 1:]
    return canvas / 16
