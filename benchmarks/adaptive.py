"""The ledger against its best attack: the next run is chosen, by what the last one showed, among all that it accepts.

A first run is a Gaussian release. The attacker sees its privacy loss, and picks for each value the second run (and
after that a third) that is best from there: releases of many sampling rates, each with the least noise that the ledger
accepts. Delta at the budget's epsilon is computed exactly, by dynamic programming over a grid of losses, for a record
removed and for a record added. Next to it: what composing privacy loss distributions would have let pass, and what
sound adaptivity costs in noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from benchmarks.results import Figure, main
from dpvision.core import accountant, adaptive
from dpvision.core.events import Adaptive, Budget, Composed, Event, Gaussian, Later, PoissonGaussian
from dpvision.settings import calibrate, gdp, quick

Floats = NDArray[np.float64]
DELTA = 1e-5
RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1.2e-5, 1e-6, 1.2e-7)
# The value of a strategy is convex in the loss, so interpolating between these points overstates it, by 0.02% per run.
LOSSES = np.linspace(-14.0, 16.0, 12_001)
FINENESS = 1.001  # of the noise that the attacker searches


@dataclass(frozen=True)
class Step:
    """One Poisson-sampled Gaussian release, with its loss and its hockey-stick divergence for any real epsilon."""

    rate: float
    sigma: float
    added: bool  # the record is in the second data set; otherwise in the first

    def _loss(self, x: Floats) -> Floats:
        whole = (2 * x - 1) / (2 * self.sigma**2)
        return whole if self.rate == 1 else np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + whole)

    def losses(self, places: int = 2001) -> tuple[Floats, Floats]:
        """The privacy loss at quadrature points, and their weights."""
        x = np.linspace(-9 * self.sigma, 1 + 9 * self.sigma, places)
        without, within = (np.exp(-((x - m) ** 2) / (2 * self.sigma**2)) for m in (0.0, 1.0))
        weights = without if self.added else (1 - self.rate) * without + self.rate * within
        return -self._loss(x) if self.added else self._loss(x), weights / weights.sum()

    def delta(self, epsilon: Floats) -> Floats:
        """Exact: the mass by which the one distribution exceeds e^epsilon times the other."""
        q, s = self.rate, self.sigma
        e = np.clip(epsilon, -600.0, 600.0)
        at = -e if self.added else e
        gain = np.expm1(at) / q + 1.0
        x = np.where(gain > 0, s**2 * np.log(np.maximum(gain, 1e-300)) + 0.5, -np.inf)
        if self.added:
            out, within = ndtr(x / s), ndtr((x - 1) / s)
            with np.errstate(over="ignore"):
                both = out - np.exp(np.minimum(e, 500.0)) * ((1 - q) * out + q * within)
        else:
            log_out = log_ndtr(-x / s)
            both = (1 - q) * np.exp(log_out) + q * ndtr((1 - x) / s) - np.exp(np.minimum(e + log_out, 0.0))
        return np.clip(both, 0.0, 1.0)


@lru_cache(maxsize=64)
def gaussian_left(first: Event, epsilon: float) -> float:
    """1/sigma^2 of the largest Gaussian that the ledger accepts after the first event; 0 where there is none."""
    low, high = 0.0, 100.0
    for _ in range(26):
        middle = (low + high) / 2
        total = Adaptive(first, (Later(Gaussian(1.0), middle**-0.5, 0.0),), adaptive.reserve(DELTA))
        low, high = (middle, high) if accountant.epsilon(total, DELTA) <= epsilon else (low, middle)
    return low


@lru_cache(maxsize=4096)
def accepted_noise(rate: float, left: float, number: int) -> float:
    """The least noise of one release at this rate, as a later one, that the ledger accepts with `left` of precision.

    It is searched among powers of FINENESS, so that searches for other values of `left` share what is expensive.
    """
    low, high = (math.ceil(math.log(end) / math.log(FINENESS)) for end in (0.02, 1e4))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _precision(rate, middle, number) <= left else (middle, high)
    return FINENESS**high


@cache
def _precision(rate: float, power: int, number: int) -> float:
    """1/sigma^2 of the Gaussian that stands in the ledger for one release at this rate with noise FINENESS^power."""
    event = PoissonGaussian(rate, FINENESS**power, 1)
    return adaptive.dominate_later(event, delta=DELTA, number=number).sigma ** -2


def best_last(steps: Sequence[Step], epsilon: float) -> Floats:
    """The attacker's delta when the last run is picked by the loss so far, for each of LOSSES."""
    return np.max([step.delta(epsilon - LOSSES) for step in steps], axis=0)


def before(step: Step, value: Floats) -> Floats:
    """The expected value before a run, for each of LOSSES."""
    losses, weights = step.losses()
    return np.array([weights @ np.interp(at + losses, LOSSES, value) for at in LOSSES])


def from_start(first: Step, value: Floats) -> float:
    losses, weights = first.losses(20_001)
    return float(weights @ np.interp(losses, LOSSES, value))


def attack(
    sigma: float,
    epsilon: float,
    *,
    added: bool,
    runs: int,
    rates: Sequence[float],
    shares: Sequence[float],
    sound: bool,
) -> float:
    """The true delta at `epsilon` that the best strategy reaches with a Gaussian release and 1 or 2 later runs."""
    first = Gaussian(sigma)
    if sound:
        left = gaussian_left(first, epsilon)
        last = [Step(q, accepted_noise(q, left, 1), added) for q in rates]
    else:
        budget = Budget(epsilon, DELTA)
        last = [
            Step(q, calibrate.sigma(budget, rate=q, steps=1, before=(first,), confirm=False), added)
            for q in rates
            if q > DELTA
        ]
    value = best_last(last, epsilon)
    if runs == 3:
        for q in rates:
            for share in shares:
                second = Step(q, accepted_noise(q, share * left, 1), added)
                third = [Step(p, accepted_noise(p, (1 - share) * left, 2), added) for p in rates]
                value = np.maximum(value, before(second, best_last(third, epsilon)))
    return from_start(Step(1.0, sigma, added), value)


def stopping(steps: int, epsilon: float) -> tuple[float, float]:
    """The best rule to stop a full-batch training: its delta if the steps so far are stated, and if the whole is."""
    mu = gdp.mu_of_point(epsilon, DELTA) / math.sqrt(steps)
    width = mu / 60  # of the grid, a small part of a step's loss, which is N(mu^2 / 2, mu^2)
    losses = np.arange(-4.0, 12.0, width)
    kernel = np.exp(-(((np.arange(-600, 601) * width - mu**2 / 2) / mu) ** 2) / 2)
    kernel /= kernel.sum()

    def expected(value: Floats) -> Floats:
        return np.convolve(np.pad(value, 600, mode="edge"), kernel[::-1], mode="valid")

    values = [np.zeros_like(losses), np.zeros_like(losses)]
    for t in range(steps, 0, -1):
        stated = gdp.gaussian_epsilon(mu * math.sqrt(t), DELTA), epsilon
        now = [np.maximum(0.0, -np.expm1(e - losses)) for e in stated]
        values = now if t == steps else [np.maximum(a, expected(b)) for a, b in zip(now, values, strict=True)]
    so_far, whole = (float(np.interp(0.0, losses, expected(value))) for value in values)
    return so_far, whole


SEQUENCES = {
    "two trainings, rate 0.05, 500 steps": lambda s: [PoissonGaussian(0.05, s, 500)] * 2,
    "two trainings, rate 0.082, 1,125 steps": lambda s: [PoissonGaussian(0.082, s, 1125)] * 2,
    "two trainings, rate 0.01, 2,000 steps": lambda s: [PoissonGaussian(0.01, s, 2000)] * 2,
    "two releases of moments": lambda s: [Gaussian(s)] * 2,
    "five trainings, rate 0.05, 500 steps": lambda s: [PoissonGaussian(0.05, s, 500)] * 5,
    "a release of mixtures, then a training run": lambda s: [
        PoissonGaussian(1e-3, s / 3, 60_000),
        PoissonGaussian(0.05, s, 500),
    ],
}


def cost(events, epsilon: float) -> float:  # type: ignore[no-untyped-def]
    """Noise that a sequence needs when each run is chosen later, over what it needs when all are planned."""

    def least(holds) -> float:  # type: ignore[no-untyped-def]
        low, high = math.log(0.3), math.log(60.0)
        for _ in range(16):
            middle = (low + high) / 2
            low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
        return math.exp(high)

    planned = least(lambda s: quick.epsilon(Composed(tuple(events(s))), DELTA) <= epsilon)
    chosen = least(lambda s: quick.epsilon(adaptive.compose(events(s), DELTA), DELTA) <= epsilon)
    return chosen / planned


def measure(quickly: bool) -> list[Figure]:
    figures = []
    rates, shares = (RATES[::3], (0.5,)) if quickly else (RATES[::2], (0.33, 0.67))
    naive = [attack(2.0, 3.0, added=False, runs=2, rates=RATES[:8], shares=(), sound=False) / DELTA]
    figures.append(Figure("composed distributions alone, best of 2 runs: true delta / delta", max(naive), low=1.5))
    for epsilon, firsts in (
        (3.0, (2.0,) if quickly else (1.7, 2.0, 3.0, 6.0)),
        (1.0, () if quickly else (5.0, 8.0)),
        (8.0, () if quickly else (0.9,)),
    ):
        for sigma in firsts:
            for runs in (2, 3):
                worst = max(
                    attack(sigma, epsilon, added=added, runs=runs, rates=rates, shares=shares, sound=True)
                    for added in (False, True)
                )
                name = f"ledger, epsilon {epsilon:g}, first sigma {sigma:g}, best of {runs} runs: true delta / delta"
                figures.append(Figure(name, worst / DELTA, low=0.3, high=1.0))
    so_far, whole = stopping(40 if quickly else 100, 3.0)
    figures.append(Figure("best early stop, steps so far stated: true delta / delta", so_far / DELTA, low=2.0))
    figures.append(Figure("best early stop, whole charge stated: true delta / delta", whole / DELTA, high=1.005))
    for epsilon in (3.0,) if quickly else (1.0, 3.0, 8.0):
        for name, events in list(SEQUENCES.items())[: 2 if quickly else None]:
            figures.append(
                Figure(f"noise, chosen later / planned, epsilon {epsilon:g}, {name}", cost(events, epsilon), 1.0, 1.05)
            )
    return figures


if __name__ == "__main__":
    main("adaptive", measure, about="Attacks on the ledger by choosing the next run after seeing the last; delta 1e-5.")
