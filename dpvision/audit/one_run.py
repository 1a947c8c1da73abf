"""A lower bound on epsilon from one run that carries many canaries (Steinke, Nasr, Jagielski 2023, arXiv 2305.08846).

Each of m canaries was put in by a fair secret coin. From what was released, the auditor guesses "in" for those with the
highest scores and "out" for those with the lowest, r guesses in all, and abstains from the others. If the mechanism is
(epsilon, delta)-differentially private, the number of right guesses W is hardly larger than a binomial one (their
Theorem 5.2): with V ~ Binomial(r, e^epsilon / (1 + e^epsilon)),

    P[W >= v] <= P[V >= v] + 2 m delta max_i P[v > V >= v - i] / i

Every epsilon for which the right-hand side is at most 1 - confidence is refuted; the bound is the largest of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from dpvision.audit.bound import checked_scores
from dpvision.errors import ConfigError

# Shares of the canaries that may be guessed, of which `guesses_for` takes the best for the claim.
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
MOST_EPSILON = 50.0


@dataclass(frozen=True)
class OneRun:
    """Epsilon at `delta` is at least `epsilon`, with the stated confidence; 0 is no evidence."""

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    inserted: int
    guesses: int
    right: int

    def refutes(self, claimed: float) -> bool:
        return self.epsilon > claimed


def one_run(scores: ArrayLike, inside: ArrayLike, *, guesses: int, delta: float, confidence: float = 0.95) -> OneRun:
    """The bound from one score of each canary and whether it was in. `guesses` is chosen before coins are looked at."""
    found, there = checked_scores("scores", scores), np.asarray(inside, dtype=np.bool_)
    if found.shape != there.shape:
        raise ConfigError(f"there are {found.size} scores and {there.size} coins: each canary needs one of both.")
    if not 0 < guesses <= found.size:
        raise ConfigError(f"guesses is {guesses}: it must be from 1 to the number of canaries, {found.size}.")
    right = right_guesses(found, there, guesses=guesses)
    epsilon = least_epsilon(canaries=found.size, guesses=guesses, right=right, delta=delta, miss=1 - confidence)
    return OneRun(epsilon, delta, confidence, found.size, int(there.sum()), guesses, right)


def right_guesses(scores: NDArray[np.float64], inside: NDArray[np.bool_], *, guesses: int) -> int:
    """The highest half of the guesses say "in", the lowest "out"; equal scores in the order of their canaries."""
    order, low = np.argsort(scores, kind="stable"), guesses // 2
    return int((~inside[order[:low]]).sum() + inside[order[len(order) - (guesses - low) :]].sum())


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The most probability of so many right guesses, or more, under (epsilon, delta)-differential privacy."""
    chance = 1 / (1 + math.exp(-epsilon))
    more = float(binom.sf(right - 1, guesses, chance))
    below = binom.cdf(np.arange(-1, right), guesses, chance)  # P[V < 0], ..., P[V < right]
    short_by = np.arange(1, right + 1)
    worst = float(((below[-1] - below[right - short_by]) / short_by).max()) if right else 0.0
    return min(1.0, more + 2 * canaries * delta * worst)


def least_epsilon(*, canaries: int, guesses: int, right: int, delta: float, miss: float) -> float:
    """The largest epsilon that is refuted, from below; 0 where none is."""

    def refuted(epsilon: float) -> bool:
        return p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta) <= miss

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, MOST_EPSILON
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def guesses_for(canaries: int, mu: float, *, delta: float, confidence: float = 0.95) -> int:
    """How many guesses give the largest bound on average, if scores are normal and `mu` apart; by public numbers."""
    rng, bounds = np.random.default_rng(0), np.zeros(len(SHARES))
    options = [max(1, round(share * canaries)) for share in SHARES]
    for _ in range(8):
        inside = rng.random(canaries) < 0.5
        scores = rng.normal(size=canaries) + mu * inside
        for at, guesses in enumerate(options):
            right = right_guesses(scores, inside, guesses=guesses)
            bounds[at] += least_epsilon(
                canaries=canaries, guesses=guesses, right=right, delta=delta, miss=1 - confidence
            )
    return options[int(bounds.argmax())]
