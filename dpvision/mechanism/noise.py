"""The Gaussian mechanism: a sum of bounded contributions goes in, the sum on a grid plus Gaussian noise comes out.

Formal guarantee: let S be a sum such that adding or removing one unit moves it by at most `sensitivity` in Euclidean
norm. Then `release` is the Gaussian mechanism with noise multiplier at least `sigma`:

  1. S is rounded to a grid of width g, a power of two near sigma * sensitivity * 2^-22. Rounding moves neighbours apart
     by at most sqrt(d) * g more, and arithmetic by at most ARITHMETIC_SLACK * sensitivity; both are added to the
     sensitivity before the noise is scaled.
  2. The noise is drawn in float64 and rounded to the same grid. As the sum is on the grid, rounding (sum + noise) is
     the same as sum + rounded noise: post-processing of the ideal mechanism, so its privacy loss distribution stands.
     Every output is a multiple of g, whatever the data: the low bits tell nothing.
  3. What is left is the sampler: 53-bit uniforms through Box-Muller, without branches on the values, cut at 8.57
     standard deviations (1e-17 per coordinate).

    edge case                      behaviour
    non-finite sum                 refused: a contribution was not bounded
    empty batch                    the sum is zero; noise only
    sigma = 0                      refused: that is no mechanism
    d = 0                          nothing to release
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import PrivacyError
from dpvision.mechanism.streams import Stream

# The grid's width as a power of two of the noise's standard deviation.
GRID_BITS = 22
# What arithmetic may add to the sensitivity, as a share of it: float64 sums (1e-9 at a batch of 4096), and float32
# kernels that round one unit's gradient otherwise when it is computed beside other units (up to 2e-6 seen).
ARITHMETIC_SLACK = 1e-4
# Values drawn at a time, so that what is worked on stays in the cache. It decides which word makes which value: a
# resumed run must use the same.
BLOCK = 1 << 15


def release(total: NDArray[np.float64], stream: Stream, *, sensitivity: float, sigma: float) -> NDArray[np.float64]:
    """The noisy sum: `total` on the grid plus N(0, (sigma * sensitivity)^2) on the grid."""
    if not (sensitivity > 0 and sigma > 0 and math.isfinite(sensitivity * sigma)):
        raise PrivacyError(f"noise needs a sensitivity and a sigma above 0, not {sensitivity} and {sigma}.")
    scale, grid = noise_scale(total.size, sensitivity=sensitivity, sigma=sigma)
    flat = np.ascontiguousarray(total, dtype=np.float64).reshape(-1)
    out = np.empty_like(flat)
    to_grid, noise_to_grid = 1.0 / grid, scale / grid
    for start in range(0, flat.size, BLOCK):
        part = out[start : start + BLOCK]
        np.multiply(flat[start : start + BLOCK], to_grid, out=part)
        np.rint(part, out=part)
        noise = standard_normal(stream, part.size)
        noise *= noise_to_grid
        np.rint(noise, out=noise)
        part += noise  # both are whole numbers below 2^53, so the sum is exact
        part *= grid  # a power of two, so this is exact too
    if not np.isfinite(out).all() or (flat.size and np.abs(out).max() > grid * 2.0**52):
        raise PrivacyError("the sum to be released is not finite, so some contribution was not bounded.")
    return out.reshape(total.shape)


def noise_scale(size: int, *, sensitivity: float, sigma: float) -> tuple[float, float]:
    """Standard deviation of the noise on `size` numbers, and the width of the grid."""
    grid = 2.0 ** math.floor(math.log2(sigma * sensitivity) - GRID_BITS)
    bound = sensitivity * (1 + ARITHMETIC_SLACK) + math.sqrt(size) * grid
    return sigma * bound, grid


def standard_normal(stream: Stream, count: int) -> NDArray[np.float64]:
    """`count` standard normal numbers by Box-Muller from 53-bit uniforms."""
    half = (count + 1) // 2
    bits = stream.words(2 * half) >> np.uint64(11)
    uniform = bits.astype(np.float64)
    radius, angle = uniform[:half], uniform[half:]
    radius += 1.0
    radius *= 2.0**-53  # in (0, 1]
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    angle *= 2.0 * math.pi * 2.0**-53
    out = np.empty(2 * half)
    np.cos(angle, out=out[:half])
    np.sin(angle, out=out[half:])
    out[:half] *= radius
    out[half:] *= radius
    return out[:count]
