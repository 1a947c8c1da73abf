"""Checks whether an accountant ever states too little: a lower bound on epsilon that shares no code with the accountants.

One step of rate q and noise sigma has the worst pair P = (1 - q) N(0, sigma^2) + q N(1, sigma^2) and Q = N(0, sigma^2).
The line is cut into cells, each with its mass under P and the least loss log(dP/dQ) in it, rounded down to a grid;
steps are added up by the Fourier transform. Losses only get smaller on the way, and mass only gets lost, so

    delta(epsilon) >= sum of mass (1 - e^(epsilon - loss)) over losses above epsilon

is below the truth, and an accountant whose epsilon is below the one that this gives is too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from dpvision.core.events import Event, PoissonGaussian

# (rate, sigma, steps): few and many steps, small and large rates, little and much noise.
SETTINGS = (
    (1.0, 2.0, 1),
    (1.0, 20.0, 50),
    (0.5, 3.0, 20),
    (0.1, 1.0, 30),
    (0.01, 0.8, 300),
    (0.02, 1.5, 500),
    (0.002, 0.5, 100),
)
DELTAS = (1e-5, 1e-3)
CELLS, REACH = 200_000, 9.0  # of x, and the range in standard deviations
FINE = 0.02  # what rounding down may take off the loss of all steps, as a share of its spread
WINDOW = 40.0  # the sum of losses is searched within this many standard deviations
HIDDEN = 1e-11  # what the transform may add


def too_low(epsilon: Callable[[Event, float], float]) -> list[str]:
    """Settings at which `epsilon(event, delta)` is below what is certain."""
    results = []
    for rate, sigma, steps in SETTINGS:
        for delta in DELTAS:
            result, least = (
                epsilon(PoissonGaussian(rate, sigma, steps), delta),
                certain(rate, sigma, steps, delta=delta),
            )
            if not result >= least:
                what = f"{steps} steps at rate {rate:g}, sigma {sigma:g}"
                results.append(f"{result:.4f} for {what}: it is {least:.4f} or more")
    return results


@lru_cache(maxsize=64)
def certain(rate: float, sigma: float, steps: int, *, delta: float) -> float:
    """An epsilon that the truth is not below."""
    losses, mass = _composed(rate, sigma, steps)

    def at(epsilon: float) -> float:
        above = losses > epsilon
        return float(mass[above] @ -np.expm1(epsilon - losses[above])) - HIDDEN

    low, high = 0.0, float(losses[-1])
    if at(low) <= delta:
        return 0.0
    for _ in range(60):
        mid = (low + high) / 2
        low, high = (mid, high) if at(mid) > delta else (low, mid)
    return low


def _composed(q: float, sigma: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses of all steps on a grid, and their mass under P."""
    x = np.linspace(-REACH * sigma, 1 + REACH * sigma, CELLS + 1)
    below = (1 - q) * ndtr(x / sigma) + q * ndtr((x - 1) / sigma)
    mass = np.diff(below)
    whole = (2 * x - 1) / (2 * sigma**2)
    loss = whole if q == 1 else np.logaddexp(math.log1p(-q), math.log(q) + whole)
    mean = float(mass @ loss[:-1])
    spread = math.sqrt(steps * float(mass @ (loss[:-1] - mean) ** 2))
    width = FINE * spread / steps
    places = np.floor(loss[:-1] / width).astype(np.int64)  # rounded down, from the lower end of the cell
    one = np.bincount(places - places[0], weights=mass)
    # The transform is periodic. What lies outside of the window comes in at its other end; HIDDEN is far above it.
    size = 1 << max(int(WINDOW * spread / width).bit_length(), len(one).bit_length())
    summed = np.maximum(np.fft.irfft(np.fft.rfft(one, size) ** steps, size), 0.0)
    middle = round(steps * float(one @ np.arange(len(one))))
    start = middle - size // 2
    summed = np.roll(summed, -(start % size))
    return (start + np.arange(size) + steps * int(places[0])) * width, summed
