"""Hierarchical sampling in NeuroMixGDP: an attack that refutes its published account, and the noise that it needs.

In each of `rows` rows, class k is drawn with probability `chance`, and each record of a drawn class with probability
`rate` (Procedure 2). The sums of features and of one-hot labels over the drawn records are released with Gaussian
noise. In units of one record, the noise is sigma_x = sigma sqrt(balance^2 + 1) / balance on features and
sigma_y = sigma sqrt(balance^2 + 1) on labels; together they are a Gaussian mechanism of noise multiplier `sigma`.

The attack tests whether one record of class k, the target, is in the data. As a worst case, its features have norm 1 in
a direction that no other record uses. The attacker uses two numbers of each released row:

    u = B + sigma_x xi       features in the target's direction; B = 1 if the target was drawn
    v = N + B + sigma_y zeta labels of class k; N, the other records of the class, is Binomial(others, rate) if the
                             class was drawn and 0 otherwise

and the likelihood ratio of (u, v) with the target to without it, integrated over the class draw and N:

    with:     (1 - chance) g(v) g(u)  +  chance (1 - rate) h(v) g(u)  +  chance rate h(v - 1) g(u - 1)
    without:  (1 - chance) g(v) g(u)  +  chance h(v) g(u)

where g are the densities of the noise, and h is that of N plus noise. The score of a release is the sum of the
logarithms.

The simulation is exact: u and v are rounded to cells of a grid, which an attacker may do, and the logarithm of a cell
to a multiple of `step`. Rows are independent and identically distributed, so the numbers of rows with each score are
multinomial, and one multinomial draw is one run of the whole mechanism as seen by this attacker.

The sound account (docs/hierarchical-sampling.md): with secret class draws, a record is exposed to
R ~ Binomial(rows, chance) rows of its class. If the class draws were released,

    delta(epsilon) = sum over r of P[R = r] delta_r(epsilon),    delta_r is that of PoissonGaussian(rate, sigma, r)

and delta is no larger if they are not released. delta_r grows with r, so an upper bound results from rounding R up to
one of a few numbers and counting everything beyond the last of them as lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from dpvision.core import accountant
from dpvision.core.events import Budget, Event, PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings import calibrate, gdp, quick
from dpvision.settings.figures import upper
from dpvision.settings.release import Release

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Inner cells of the grid for u and for v, and how many standard deviations of the noise it extends beyond the means.
CELLS_U, CELLS_V, REACH = 192, 128, 7.0
# Steps of the score in one standard deviation of a row's score; rounding adds 1/(12 * 4^2), or 0.5%, to the variance.
FINENESS = 4
# A row's score is limited to this number of steps in both directions; few rows reach it.
MAX_STEPS = 200
# Runs that are simulated at a time, to bound memory.
BLOCK = 4096
# How many numbers R is rounded up to: with 8, sigma is less than 1% above the smallest sufficient one.
POINTS = 8
# The share of a budget's delta that covers an R beyond the last of these numbers.
BEYOND = 1e-3
# Relative precision of sigma.
PRECISION = 1e-3


@dataclass(frozen=True)
class Setting:
    """Hierarchical sampling, from the point of view of a record of one class."""

    rows: int
    chance: float  # probability that a row draws the class
    rate: float  # sampling rate of each record of the class in such a row
    others: int  # records of the class other than the target
    balance: float = 1.0  # lambda: noise on labels / noise on features

    def __post_init__(self) -> None:
        if self.rows < 1 or self.others < 0 or not (0 < self.chance <= 1 and 0 < self.rate <= 1 and self.balance > 0):
            raise ConfigError(f"{self}: needs rows >= 1, others >= 0, 0 < chance <= 1, 0 < rate <= 1 and balance > 0.")


def setting(*, records: int, classes: int, mixed: float, drawn: float, rows: int) -> Setting:
    """Return the setting for the paper's numbers: n records, K equal classes, m = `mixed`, `drawn` classes in a row.

    p = drawn / K and q = m / (n p). The world with the target has n records.
    """
    chance = drawn / classes
    return Setting(rows=rows, chance=chance, rate=mixed / (records * chance), others=records // classes - 1)


# CIFAR-100 as in the paper: 64 records of 3 classes in a row, and one row for each record.
PAPER = setting(records=50_000, classes=100, mixed=64, drawn=3, rows=50_000)


def scheduled(setting: Setting) -> Setting:
    """Return the setting with a public schedule instead of class draws: only the known rows of the class count."""
    return replace(setting, rows=math.ceil(setting.rows * setting.chance), chance=1.0)


def paper_sigma(setting: Setting, budget: Budget) -> float:
    """Return the paper's noise multiplier, by a central limit at the rate m/n = chance * rate on all rows (unsound)."""
    return _central_limit_sigma(budget, setting.chance * setting.rate, setting.rows)


def _central_limit_sigma(budget: Budget, rate: float, steps: int) -> float:
    return gdp.central_limit_sigma(gdp.mu_of_point(budget.epsilon, budget.delta), rate=rate, steps=steps)


def sound_sigma(setting: Setting, budget: Budget) -> float:
    """Return the smallest sound noise multiplier, for a public schedule (chance 1) or for secret class draws.

    For secret draws it is rounded up with a relative precision of PRECISION.
    """
    if setting.chance == 1.0:
        return calibrate.sigma(budget, rate=setting.rate, steps=setting.rows)

    def is_enough(accountant_delta: Callable[[Event, float], float], sigma: float) -> bool:
        return _average_delta(accountant_delta, setting, sigma, budget.epsilon, BEYOND * budget.delta) <= budget.delta

    # The noise for the expected number of rows is nearly enough: search upward from it, then by bisection.
    low = calibrate.sigma(
        budget, rate=setting.rate, steps=max(1, math.floor(setting.rows * setting.chance)), confirm=False
    )
    high = low * 1.02
    while not is_enough(quick.delta, high):
        low, high = high, high * 1.02
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(quick.delta, middle) else (middle, high)
    while not is_enough(accountant.delta, high):  # dp-accounting decides
        high *= 1 + PRECISION
    return high


def sound_delta(setting: Setting, sigma: float, *, epsilon: float, beyond: float = 1e-9) -> float:
    """Return the delta at `epsilon` that is proven for secret class draws; `beyond` of it covers the largest R."""
    return _average_delta(accountant.delta, setting, sigma, epsilon, beyond)


def _average_delta(
    accountant_delta: Callable[[Event, float], float], setting: Setting, sigma: float, epsilon: float, beyond: float
) -> float:
    rows, chance = setting.rows, setting.chance
    # Values of R, ascending; R exceeds the last of them with probability at most `beyond`.
    low, high = float(binom.ppf(0.05, rows, chance)), float(binom.isf(beyond, rows, chance))
    counts = np.unique(np.ceil(np.linspace(low, high, POINTS)))
    weights = np.diff(binom.cdf(counts, rows, chance), prepend=0.0)  # probabilities that R is rounded up to each
    deltas = [accountant_delta(PoissonGaussian(setting.rate, sigma, int(r)), epsilon) for r in counts]
    return min(1.0, float(weights @ deltas) + beyond)


def published_sigma(config: Release) -> float:
    """Return the paper's noise multiplier for a release, by one central limit for every sampling scheme (unsound)."""
    assert config.degree and config.n and config.rows  # complete
    return _central_limit_sigma(Budget(config.epsilon, config.delta), config.degree / config.n, config.rows)


def compare_accounts(config: Release, classes: int) -> dict[str, str]:
    """Compare the published account of a NeuroMixGDP release with the sound one, as a table."""
    if not config.is_sampled or config.sampling == "class-schedule":
        raise ConfigError(
            f"recipe {config.recipe} has no published account to compare with. Fix: use --recipe neuromix, neuromix-hs "
            "or dpmix."
        )
    sigma = published_sigma(config)
    epsilon = accountant.epsilon(config.event(sigma, classes), config.delta)
    return {
        "requested": f"epsilon {config.epsilon:g} at delta {config.delta:g}, {config.sampling} sampling",
        "rows": f"{config.rows:,} of expected degree {config.degree:.4g} over n = {config.n:,}",
        "the paper's noise": f"sigma {sigma:.5g}",
        "its true privacy": f"epsilon {upper(epsilon, 4)}",
        "the sound noise": f"sigma {config.sigma:.5g}",
    }


@dataclass(frozen=True, eq=False)
class Attack:
    """The score of each cell, in steps, and the distribution of a row's score in both worlds."""

    setting: Setting
    sigma: float
    step: float
    edges_u: Floats
    edges_v: Floats
    cells: Integers  # (cells of u, cells of v): the score of a row, in steps
    values: Integers  # the distinct scores, ascending
    without: Floats  # their probabilities
    with_record: Floats

    def score(self, u: Floats, v: Floats) -> float:
        """Return the score of one release, from u and v of each of its rows."""
        cells = np.searchsorted(self.edges_u, u), np.searchsorted(self.edges_v, v)
        return float(self.cells[cells].sum() * self.step)

    def scores(self, runs: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Simulate the scores of `runs` releases without the target, and of `runs` releases with it."""
        without, with_record = (self._draw(mass, runs, rng) for mass in (self.without, self.with_record))
        return without, with_record

    def mu(self) -> float:
        """Return (mean with - mean without) / standard deviation of the scores, which `bounds.estimate` estimates."""
        means = [float(self.values @ mass) for mass in (self.without, self.with_record)]
        variances = [float(self.values.astype(np.float64) ** 2 @ mass) for mass in (self.without, self.with_record)]
        spread = math.sqrt((variances[0] - means[0] ** 2 + variances[1] - means[1] ** 2) / 2)
        return math.sqrt(self.setting.rows) * (means[1] - means[0]) / spread

    def epsilon(self, delta: float) -> float:
        """Return the lower bound on epsilon that this attack would reach with unlimited runs.

        It is the largest log((P[score >= t] - delta) / P'[score >= t]) over all t. The distribution of the total score
        is the convolution of the distributions of the rows, computed by the Fourier transform.
        """
        total_with, total_without = self._total(self.with_record), self._total(self.without)
        with_tail, without_tail = (np.cumsum(x[::-1])[::-1] for x in (total_with, total_without))
        certain = without_tail > 1e-9  # below this, the rounding errors of the transform matter
        return float(np.log(np.maximum((with_tail[certain] - delta) / without_tail[certain], 1.0)).max())

    def _draw(self, mass: Floats, runs: int, rng: np.random.Generator) -> Floats:
        order = np.argsort(-mass)  # most likely first, which makes multinomial draws fast
        values = self.values[order] * self.step
        blocks = [min(BLOCK, runs - start) for start in range(0, runs, BLOCK)]
        return np.concatenate([rng.multinomial(self.setting.rows, mass[order], size=size) @ values for size in blocks])

    def _total(self, mass: Floats) -> Floats:
        """Return the distribution of the total score on a window of 12 standard deviations around the means."""
        rows, values = self.setting.rows, self.values.astype(np.float64)
        means = [rows * float(values @ x) for x in (self.without, self.with_record)]
        spread = math.sqrt(rows * max(float(values**2 @ x) for x in (self.without, self.with_record)))
        low, high = math.floor(min(means) - 12 * spread), math.ceil(max(means) + 12 * spread)
        size = 1 << max(high - low, int(values[-1] - values[0])).bit_length()
        row = np.zeros(size)
        row[self.values - self.values[0]] = mass
        total = np.fft.irfft(np.fft.rfft(row) ** rows, size)  # entry i: the total rows * values[0] + i, modulo size
        return np.maximum(np.roll(total, int(rows * self.values[0] - low) % size), 0.0)[: high - low + 1]


def attack(setting: Setting, sigma: float) -> Attack:
    """Return the best test of (u, v), row by row, against the mechanism with noise multiplier `sigma`."""
    q, p, lam = setting.rate, setting.chance, setting.balance
    sigma_x, sigma_y = sigma * math.sqrt(lam**2 + 1) / lam, sigma * math.sqrt(lam**2 + 1)
    counts = np.arange(setting.others + 1)
    weights = binom.pmf(counts, setting.others, q)
    largest = float(binom.isf(1e-9, setting.others, q)) + 1
    edges_u = np.linspace(-REACH * sigma_x, 1 + REACH * sigma_x, CELLS_U + 1)
    edges_v = np.linspace(-REACH * sigma_y, largest + REACH * sigma_y, CELLS_V + 1)
    absent, present = _cells(edges_u / sigma_x), _cells((edges_u - 1) / sigma_x)
    none = _cells(edges_v / sigma_y)
    drawn = weights @ _cells((edges_v[None, :] - counts[:, None]) / sigma_y)
    one_more = weights @ _cells((edges_v[None, :] - 1 - counts[:, None]) / sigma_y)
    without = np.outer(absent, (1 - p) * none + p * drawn)
    with_record = np.outer(absent, (1 - p) * none + p * (1 - q) * drawn) + p * q * np.outer(present, one_more)
    likely = without > 1e-15  # the probability of rarer cells is mere rounding error, so any score will do
    ratio = np.zeros_like(without)
    ratio[likely] = np.log(np.maximum(with_record[likely], 1e-300) / without[likely])
    step = math.sqrt(float((without * ratio**2).sum())) / FINENESS
    cells = np.clip(np.rint(ratio / step), -MAX_STEPS, MAX_STEPS).astype(np.int64)
    values, which = np.unique(cells, return_inverse=True)
    masses = [_gather(which, x) for x in (without, with_record)]
    return Attack(setting, sigma, step, edges_u, edges_v, cells, values, masses[0], masses[1])


def _gather(which: NDArray[np.intp], mass: Floats) -> Floats:
    """Return the probability of each value, normalised to remove rounding errors."""
    gathered = np.zeros(int(which.max()) + 1)
    np.add.at(gathered, which.ravel(), mass.ravel())
    return gathered / gathered.sum()


def _cells(z: Floats) -> Floats:
    """Return probabilities of N(0, 1) below the first edge, between edges and above the last, along the last axis."""
    positive = z > 0  # subtract in the tail in which no digits are lost
    below, above = ndtr(z), ndtr(-z)
    inner = np.where(positive[..., :-1], above[..., :-1] - above[..., 1:], below[..., 1:] - below[..., :-1])
    return np.concatenate([below[..., :1], inner, above[..., -1:]], axis=-1)
