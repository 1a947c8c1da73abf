"""The maps that one layer of a StyleGAN2 (Karras et al. 2020) hands to the next, and its convolutions.

All that a convolution asks of its input is weighted sums of the C maps, so these need not be written down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GAIN = np.sqrt(2.0)  # makes up for the half of the variance that is below zero


def ramp(x: Floats) -> Floats:
    return GAIN * np.maximum(0.0, x)


class Maps(Protocol):
    side: int

    def mix(self, weights: Floats) -> Iterator[Floats]:
        """For each of the weights (K, O, C) in turn, the sums of the C maps (O, side, side)."""


class Plain:
    """Any maps (C, side, side); summed row by row of the image, in products too small for threads to be worth it."""

    def __init__(self, maps: Floats) -> None:
        self.side = maps.shape[-1]
        self._rows = np.moveaxis(maps, 1, 0)

    def mix(self, weights: Floats) -> Iterator[Floats]:
        for each in weights:
            yield np.moveaxis(each @ self._rows, 0, 1)


class Ramps:
    """The C maps ramp(sign y + noise + bias) of one y and one noise.

    Where the same ramps of a sign are above zero, their weighted sum is the same straight line in u = sign y + noise:
    with a table of these lines, hundreds of maps cost no more than two.
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
            lines.append((u, above, _sums(slopes), _sums(slopes * biases)))
        part = np.empty(self.side**2)
        for k in range(len(weights)):
            out = np.zeros((weights.shape[1], self.side**2))
            for u, above, slopes, offsets in lines:
                for row, slope, offset in zip(out, slopes[k], offsets[k], strict=True):
                    row += np.multiply(slope.take(above, out=part, mode="clip"), u, out=part)
                    row += offset.take(above, out=part, mode="clip")
            yield out.reshape(-1, self.side, self.side)


def _sums(terms: Floats) -> Floats:
    """Of the first 0, 1, ... terms along the last axis."""
    sums = np.zeros((*terms.shape[:-1], terms.shape[-1] + 1))
    np.cumsum(terms, -1, out=sums[..., 1:])
    return sums


def convolved(x: Maps, weights: Floats, *, doubles: bool) -> Floats:
    """C maps by weights (O, C, 3, 3), with zeros around: O maps of the same or the double side."""
    step = 2 if doubles else 1
    reach = step * (x.side - 1) + 1
    canvas = np.zeros((len(weights), reach + 4, reach + 4))
    parts = x.mix(np.moveaxis(weights, (2, 3), (0, 1)).reshape(9, *weights.shape[:2]))
    for (i, j), part in zip(np.ndindex(3, 3), parts, strict=True):
        canvas[:, i + 1 : i + 1 + reach : step, j + 1 : j + 1 + reach : step] += part
    return _blurred(canvas) if doubles else canvas[:, 2:-2, 2:-2]


def doubled(maps: Floats) -> Floats:
    """(C, n, n) to (C, 2 n, 2 n)."""
    count, side, _ = maps.shape
    canvas = np.zeros((count, 2 * side + 3, 2 * side + 3))
    canvas[:, 2:-1:2, 2:-1:2] = maps
    return _blurred(canvas)


def _blurred(canvas: Floats) -> Floats:
    """By [1, 3, 3, 1] / 8 both ways, which is three times [1, 1] / 2; times 4, as three of four pixels were empty."""
    for _ in range(3):
        canvas = canvas[:, :-1] + canvas[:, 1:]
    for _ in range(3):
        canvas = canvas[:, :, :-1] + canvas[:, :, 1:]
    return canvas / 16
