"""The Gaussian mechanism: takes a sum of bounded contributions, returns the sum on a grid plus Gaussian noise.

Formal guarantee: let S be a sum such that adding or removing one unit moves it by at most `sensitivity` in Euclidean
norm. Then `add_noise` is the Gaussian mechanism with noise multiplier at least `sigma`, up to a total variation
distance of DISTANCE per number:

  1. S is rounded to a grid of width g, a power of two near sigma * sensitivity * 2^-22. Rounding moves neighbours apart
     by at most sqrt(d) * g more, and arithmetic by at most ARITHMETIC_SLACK * sensitivity; both are added to the
     sensitivity before the noise is scaled.
  2. The noise is a Gaussian rounded to the same grid. Since the sum is on the grid, rounding (sum + noise) equals sum +
     rounded noise: post-processing of the ideal mechanism, so its privacy loss distribution applies. Every output is a
     multiple of g, whatever the data: the low bits reveal nothing.
  3. The rounded Gaussian is exact. A pair of numbers is round(c R cos 2 pi V), round(c R sin 2 pi V), where
     R = sqrt(-2 ln U), c is the standard deviation in grid steps, and U, V = (k + 1/2) 2^-128 for independent uniform
     128-bit k. Both are *correctly rounded*: float64 computes them first, and a number that is closer to the midpoint
     of two grid points than float64's possible error (about one in 300,000) is computed again with 60 digits.
  4. Distance from the ideal distribution, jointly for the pair: let U', V' be real uniforms in the cells of U and V, so
     that their pair is ideal. A rounded number differs only if a midpoint lies between the two, which are at most
     h = c 2^-129 (1 / (U R) + 2 pi R) apart. The ideal number lies within h of a midpoint with probability 2 E[h] (the
     points near one are strips of a plane on which the pair's density is smooth), and E[1 / (U R)] is the integral of
     dR from 0 to 13.4, 2 pi E[R] < 8: together 44 c 2^-129, below 2^-100 for c up to 2^23.4. Pairs are independent, so
     distances add up: d numbers are, jointly, within d 2^-100 of the ideal. The accountant subtracts SAMPLER from delta
     to cover them.

Trusted without proof: that AES-CTR's words cannot be distinguished from uniform ones, and that numpy's log, sqrt, cos
and sin are accurate to 16 units in the last place (tests compare them with 60 digits). The only branch on values checks
whether a number is near a midpoint, which does not depend on its magnitude. A sum that is not finite is refused.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from dpvision.core.keys import Stream
from dpvision.errors import PrivacyError

GRID_BITS = 22  # the grid's width is the power of two below the noise's standard deviation times 2^-GRID_BITS
# What arithmetic may add to the sensitivity, relative to it: norms are computed in float32 by blocks, and factors of a
# gradient are rounded (slots.MAX_ROUNDING). Other units' contributions are bitwise unaffected.
ARITHMETIC_SLACK = 1e-4
# Number of values drawn at a time, so that they stay in the processor's cache. It determines which random word makes
# which value, so a resumed run must use the same number.
BLOCK = 1 << 15
DISTANCE = 2.0**-100  # total variation distance of one released number from the ideal distribution (point 4 above)
# Bound on float64's error, in standard deviations: the errors of U and V's conversion, log, sqrt, cos, sin and products
# add up to at most 2^-45 if every function is accurate to 4 units in the last place, and to 2^-44 at 16.
FLOAT_ERROR = 2.0**-42
SMALL = 2.0**-16  # if 1 - U is below it, use 1 - U instead of U: near 1, float64 has too few bits for a small radius


def add_noise(
    total: NDArray[np.float64],
    stream: Stream,
    *,
    sensitivity: float,
    sigma: float,
    drawn: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the noisy sum: `total` on the grid plus N(0, (sigma * sensitivity)^2) on the grid.

    `drawn` is the result of `draw` for this size, stream, sensitivity and sigma, if the noise was drawn in advance.
    """
    scale, grid = noise_scale(total.size, sensitivity=sensitivity, sigma=sigma)
    flat = np.ascontiguousarray(total, dtype=np.float64).reshape(-1)
    out = np.empty_like(flat)
    to_grid, noise_to_grid = 1.0 / grid, scale / grid
    for start in range(0, flat.size, BLOCK):
        part = out[start : start + BLOCK]
        np.multiply(flat[start : start + BLOCK], to_grid, out=part)
        np.rint(part, out=part)
        # The sum is exact, of whole numbers below 2^53.
        part += rounded_normal(stream, part.size, noise_to_grid) if drawn is None else drawn[start : start + BLOCK]
        part *= grid  # a power of two, so this is exact too
    if not np.isfinite(out).all() or (flat.size and np.abs(out).max() > grid * 2.0**52):
        raise PrivacyError("the sum to release is not finite, so some contribution was not bounded.")
    return out.reshape(total.shape)


def draw(size: int, stream: Stream, *, sensitivity: float, sigma: float) -> NDArray[np.float64]:
    """Draw the noise that `add_noise` adds to a sum of this size, in grid steps; it does not depend on the sum."""
    scale, grid = noise_scale(size, sensitivity=sensitivity, sigma=sigma)
    sizes = [min(BLOCK, size - start) for start in range(0, size, BLOCK)]
    return np.concatenate([np.empty(0), *(rounded_normal(stream, n, scale / grid) for n in sizes)])


def noise_scale(size: int, *, sensitivity: float, sigma: float) -> tuple[float, float]:
    """Return the standard deviation of the noise on `size` numbers, and the width of the grid."""
    if not (sensitivity > 0 and sigma > 0 and math.isfinite(sensitivity * sigma)):
        raise PrivacyError(f"noise needs a sensitivity and a sigma above 0, not {sensitivity} and {sigma}.")
    grid = 2.0 ** math.floor(math.log2(sigma * sensitivity) - GRID_BITS)
    bound = sensitivity * (1 + ARITHMETIC_SLACK) + math.sqrt(size) * grid
    return sigma * bound, grid


def rounded_normal(stream: Stream, count: int, deviation: float) -> NDArray[np.float64]:
    """Draw `count` times from N(0, deviation^2), each draw correctly rounded to a whole number."""
    half = (count + 1) // 2
    words = stream.words(4 * half).reshape(4, half)
    numbers = _box_muller(words) * deviation
    whole = np.rint(numbers)
    for place in np.flatnonzero(np.abs(numbers - whole) > 0.5 - deviation * FLOAT_ERROR):
        k = [int(word) for word in words[:, place % half]]
        whole[place] = round_exactly(k[0] << 64 | k[1], k[2] << 64 | k[3], deviation, sine=bool(place >= half))
    return whole[:count]


def _box_muller(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return sqrt(-2 ln U) times cos 2 pi V, then times sin 2 pi V, in float64 and without branches on values."""
    high, low, turn, _ = words  # the last 64 bits of V are below float64's precision
    rest = low.astype(np.float64) * 2.0**-64
    squared = -2.0 * np.log((high.astype(np.float64) + rest + 2.0**-65) * 2.0**-64)
    # Near U = 1: -2 ln(1 - x) = 2x + x^2 + 2/3 x^3 + ..., with x = 1 - U to full precision.
    x = (np.invert(high).astype(np.float64) + (1.0 - rest)) * 2.0**-64
    np.copyto(squared, x * (2.0 + x * (1.0 + x * (2.0 / 3.0))), where=x < SMALL)
    angle = turn.astype(np.float64) * (2.0 * math.pi * 2.0**-64)
    out = np.sqrt(squared) * np.stack([np.cos(angle), np.sin(angle)])
    return out.reshape(-1)


# With 60 digits, rounding errors are far below DISTANCE.
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534")


def round_exactly(u: int, v: int, deviation: float, *, sine: bool) -> float:
    """Return round(deviation * sqrt(-2 ln U) * cos(2 pi V)), or with sin, where U, V = (u + 1/2, v + 1/2) 2^-128."""
    with localcontext(_EXACT):
        cell = Decimal(2) ** -129
        radius = (-2 * ((2 * u + 1) * cell).ln()).sqrt()
        return float((Decimal(deviation) * radius * _cosine((2 * v + 1) * cell, sine=sine)).to_integral_value())


def _cosine(turns: Decimal, *, sine: bool) -> Decimal:
    """Return cos(2 pi turns), or sin, for 0 <= turns < 1, by Taylor's series around the nearest quarter turn."""
    quarter = int((4 * turns).to_integral_value())
    x = 2 * _PI * (turns - Decimal(quarter) / 4)  # at most pi / 4
    quarter = (quarter - sine) % 4  # sin y = cos(y - pi/2)
    term = total = x if quarter % 2 else Decimal(1)
    first = quarter % 2
    for k in range(first, 60, 2):
        term = -term * x * x / ((k + 1) * (k + 2))
        total += term
    # cos(x + j pi/2) = cos x, -sin x, -cos x, sin x
    return total if quarter in (0, 3) else -total
