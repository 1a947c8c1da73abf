"""An attack on hierarchical sampling that sees nothing but the released rows: is one record of one class in the data?

The mechanism (NeuroMixGDP, Procedure 2). For each of `rows` rows: class k is drawn by a coin of probability `chance`;
each record of a drawn class by its own coin of probability `rate`; released are the sum of features and the sum of
one-hot labels over those drawn, each with Gaussian noise, divided by a public number. In units of one record, the
noise is sigma_x = sigma sqrt(balance^2 + 1) / balance on features and sigma_y = sigma sqrt(balance^2 + 1) on labels,
so that one record is seen through noise of `sigma` in all.

The target has class k and features of length 1 in a direction that no other record uses, which is allowed to a worst
case. The attacker looks at two numbers of each row,

    u = B + sigma_x xi       features along the target's direction; B = 1 where the target was drawn
    v = N + B + sigma_y zeta labels of class k; N, the other records of the class, is Binomial(others, rate) where the
                             class was drawn and 0 elsewhere

and at the row's likelihood ratio of (u, v) with the target to without it, the class coin and N integrated out:

    with:     (1 - chance) g(v) g(u)  +  chance (1 - rate) h(v) g(u)  +  chance rate h(v - 1) g(u - 1)
    without:  (1 - chance) g(v) g(u)  +  chance h(v) g(u)

where g are the densities of the noise and h that of N plus noise. The score of a release is the sum of logarithms.

Why the simulation is exact. The attack is a function of the release, so it may round: u and v fall into cells of a
grid, and the logarithm of a cell is a whole multiple of `step`. All coins and all noise are drawn anew in each row, so
rows are independent and alike, and the numbers of rows with each score are multinomial, with the cells' probabilities
from the formulas above. One draw of that multinomial is one run of the whole mechanism as this attacker sees it: no
row is left out and no limit is taken. Other coordinates of a row are not looked at, which can only weaken the attack;
where the other records have no features it loses nothing, for those coordinates are then independent of u and v.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from dpvision.audit import random_rows
from dpvision.core.events import Budget
from dpvision.errors import ConfigError
from dpvision.settings import calibrate, gdp

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Inner cells of the grid for u and for v, over as many standard deviations of the noise on each side of its means.
CELLS_U, CELLS_V, REACH = 192, 128, 7.0
# Steps of the score in one standard deviation of a row's; rounding adds 1/(12 * 4^2), or 0.5%, to the variance.
FINENESS = 4
# A row's score is cut at this many steps on both sides; few rows in a run get there.
MOST_STEPS = 200
# Runs that are drawn at a time, to bound memory.
BLOCK = 4096


@dataclass(frozen=True)
class Setting:
    """Hierarchical sampling as a record of one class meets it."""

    rows: int
    chance: float  # that a row draws the class
    rate: float  # of each record of the class where it is drawn
    others: int  # records of the class beside the target
    balance: float = 1.0  # lambda: how much less noise is on features than on labels

    def __post_init__(self) -> None:
        if self.rows < 1 or self.others < 0 or not (0 < self.chance <= 1 and 0 < self.rate <= 1 and self.balance > 0):
            raise ConfigError(f"{self}: needs rows from 1, chance and rate above 0 and up to 1, balance above 0.")


def setting(*, records: int, classes: int, mixed: float, drawn: float, rows: int) -> Setting:
    """The paper's letters in words: n records, K classes of one size, m = `mixed` and `drawn` classes in a row.

    p = drawn / K, q = m / (n p). The world with the target is the one with n records.
    """
    chance = drawn / classes
    return Setting(rows=rows, chance=chance, rate=mixed / (records * chance), others=records // classes - 1)


# CIFAR-100 as in the paper: 64 records mixed, of 3 classes, and as many rows as records.
PAPER = setting(records=50_000, classes=100, mixed=64, drawn=3, rows=50_000)


def scheduled(setting: Setting) -> Setting:
    """With a fixed public schedule instead of class coins: the rows of the class are known, and only they matter."""
    return replace(setting, rows=math.ceil(setting.rows * setting.chance), chance=1.0)


def paper_sigma(setting: Setting, budget: Budget) -> float:
    """What the paper calibrates: the central limit at rate m/n = chance * rate on all rows. Unsound."""
    mu = gdp.mu_of_point(budget.epsilon, budget.delta)
    return gdp.central_limit_sigma(mu, rate=setting.chance * setting.rate, steps=setting.rows)


def sound_sigma(setting: Setting, budget: Budget) -> float:
    """The rate inside the class on the rows of the class: of a public schedule, or averaged over the class coins."""
    if setting.chance == 1.0:
        return calibrate.sigma(budget, rate=setting.rate, steps=setting.rows)
    return random_rows.sigma(budget, rate=setting.rate, rows=setting.rows, chance=setting.chance)


@dataclass(frozen=True, eq=False)
class Attack:
    """The score of each cell of a row, in steps, and the law of a row's score in both worlds."""

    setting: Setting
    sigma: float
    step: float
    edges_u: Floats
    edges_v: Floats
    cells: Integers  # (cells of u, cells of v): the score of a row, in steps
    values: Integers  # the scores that there are, ascending
    without: Floats  # their probabilities
    with_record: Floats

    def score(self, u: Floats, v: Floats) -> float:
        """The score of one release, given u and v of each of its rows."""
        at = np.searchsorted(self.edges_u, u), np.searchsorted(self.edges_v, v)
        return float(self.cells[at].sum() * self.step)

    def scores(self, runs: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Scores of `runs` releases of each world: without the target, and with it."""
        without, with_record = (self._draw(law, runs, rng) for law in (self.without, self.with_record))
        return without, with_record

    def mu(self) -> float:
        """(mean with - mean without) / spread of the scores: what `bound.estimate` estimates."""
        means = [float(self.values @ law) for law in (self.without, self.with_record)]
        variances = [float(self.values.astype(np.float64) ** 2 @ law) for law in (self.without, self.with_record)]
        spread = math.sqrt((variances[0] - means[0] ** 2 + variances[1] - means[1] ** 2) / 2)
        return math.sqrt(self.setting.rows) * (means[1] - means[0]) / spread

    def epsilon(self, delta: float) -> float:
        """What this attack shows with any number of runs: the bound on epsilon, computed and not sampled.

        The law of the total score is that of a row composed with itself, by the Fourier transform; the bound is the
        largest log((P[score >= t] - delta) / P'[score >= t]) over all t.
        """
        total_with, total_without = self._total(self.with_record), self._total(self.without)
        with_tail, without_tail = (np.cumsum(x[::-1])[::-1] for x in (total_with, total_without))
        sure = without_tail > 1e-9  # below, rounding of the transform would show
        return float(np.log(np.maximum((with_tail[sure] - delta) / without_tail[sure], 1.0)).max())

    def _draw(self, law: Floats, runs: int, rng: np.random.Generator) -> Floats:
        order = np.argsort(-law)  # the most likely first: what is left for the others is soon little
        values = self.values[order] * self.step
        blocks = [min(BLOCK, runs - start) for start in range(0, runs, BLOCK)]
        return np.concatenate([rng.multinomial(self.setting.rows, law[order], size=size) @ values for size in blocks])

    def _total(self, law: Floats) -> Floats:
        """The law of the total on a window of 12 standard deviations, from its lower end up."""
        rows, values = self.setting.rows, self.values.astype(np.float64)
        means = [rows * float(values @ x) for x in (self.without, self.with_record)]
        spread = math.sqrt(rows * max(float(values**2 @ x) for x in (self.without, self.with_record)))
        low, high = math.floor(min(means) - 12 * spread), math.ceil(max(means) + 12 * spread)
        size = 1 << max(high - low, int(values[-1] - values[0])).bit_length()
        row = np.zeros(size)
        row[self.values - self.values[0]] = law
        total = np.fft.irfft(np.fft.rfft(row) ** rows, size)  # entry i: the total rows * values[0] + i, modulo size
        return np.maximum(np.roll(total, int(rows * self.values[0] - low) % size), 0.0)[: high - low + 1]


def attack(setting: Setting, sigma: float) -> Attack:
    """The best test of (u, v), row by row, against the mechanism with the noise multiplier `sigma`."""
    q, p, lam = setting.rate, setting.chance, setting.balance
    sigma_x, sigma_y = sigma * math.sqrt(lam**2 + 1) / lam, sigma * math.sqrt(lam**2 + 1)
    counts = np.arange(setting.others + 1)
    weights = binom.pmf(counts, setting.others, q)
    most = float(binom.isf(1e-9, setting.others, q)) + 1
    edges_u = np.linspace(-REACH * sigma_x, 1 + REACH * sigma_x, CELLS_U + 1)
    edges_v = np.linspace(-REACH * sigma_y, most + REACH * sigma_y, CELLS_V + 1)
    absent, present = _cells(edges_u / sigma_x), _cells((edges_u - 1) / sigma_x)
    none = _cells(edges_v / sigma_y)
    some = weights @ _cells((edges_v[None, :] - counts[:, None]) / sigma_y)
    one_more = weights @ _cells((edges_v[None, :] - 1 - counts[:, None]) / sigma_y)
    without = np.outer(absent, (1 - p) * none + p * some)
    with_record = np.outer(absent, (1 - p) * none + p * (1 - q) * some) + p * q * np.outer(present, one_more)
    seen = without > 1e-15  # what is rarer has digits of rounding only, and any score will do
    ratio = np.zeros_like(without)
    ratio[seen] = np.log(np.maximum(with_record[seen], 1e-300) / without[seen])
    step = math.sqrt(float((without * ratio**2).sum())) / FINENESS
    cells = np.clip(np.rint(ratio / step), -MOST_STEPS, MOST_STEPS).astype(np.int64)
    values, which = np.unique(cells, return_inverse=True)
    laws = [_gather(which, x) for x in (without, with_record)]
    return Attack(setting, sigma, step, edges_u, edges_v, cells, values, laws[0], laws[1])


def _gather(which: NDArray[np.intp], mass: Floats) -> Floats:
    """The mass of each value; cells sum to 1 but for rounding, which is taken out."""
    law = np.zeros(int(which.max()) + 1)
    np.add.at(law, which.ravel(), mass.ravel())
    return law / law.sum()


def _cells(z: Floats) -> Floats:
    """Mass of N(0, 1) below the first edge, between neighbours and above the last; along the last axis."""
    upper = z > 0  # each difference from the tail that loses no digits
    below, above = ndtr(z), ndtr(-z)
    inner = np.where(upper[..., :-1], above[..., :-1] - above[..., 1:], below[..., 1:] - below[..., :-1])
    return np.concatenate([below[..., :1], inner, above[..., -1:]], axis=-1)
