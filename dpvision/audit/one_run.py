"""A lower bound on epsilon from one run with many canaries (Steinke, Nasr, Jagielski 2023, arXiv 2305.08846).

Each of m canaries was inserted in secret with probability 1/2. From what was released, the auditor guesses "in" for
those with the highest scores and "out" for those with the lowest, r guesses in total, and abstains from the others. If
the mechanism is (epsilon, delta)-differentially private, the number W of correct guesses is hardly larger than a
binomial variable (their Theorem 5.2): with V ~ Binomial(r, e^epsilon / (1 + e^epsilon)),

    P[W >= v] <= P[V >= v] + 2 m delta max_i P[v > V >= v - i] / i

Every epsilon for which the right-hand side is at most 1 - confidence is refuted; the bound is the largest of them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from dpvision.audit import audit_file
from dpvision.audit.bounds import checked_scores
from dpvision.audit.canaries import claimed_mu
from dpvision.core import accountant, files
from dpvision.core.events import Capped, Composed, Event, exposures, parts
from dpvision.errors import ConfigError
from dpvision.storage import run_folder

# Shares of the canaries for which guesses may be made; `choose_guesses` selects one.
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
LARGEST_EPSILON = 50.0


@dataclass(frozen=True)
class OneRun:
    """Epsilon at `delta` is at least `epsilon`, with the stated confidence; 0 means no evidence."""

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    inserted: int
    guesses: int
    right: int


def audit_one_run(
    run: run_folder.Run, scores: NDArray[np.float64], inside: NDArray[np.bool_], *, event: Event, delta: float
) -> OneRun:
    """Compute the bound from a run's own canaries; write it to audit.json, and scores and insertions to operator/."""
    steps = exposures(Composed(parts(event)))  # without the cap that bounds their epsilon
    guesses = choose_guesses(len(scores), max(map(claimed_mu, steps)), delta=delta)
    bound = one_run(scores, inside, guesses=guesses, delta=delta)
    proved = accountant.epsilon(event, max(delta, event.delta) if isinstance(event, Capped) else delta)
    private = {"inside": [int(x) for x in inside], "scores": scores.tolist()}
    files.write(run.operator / "canaries.json", json.dumps(private) + "\n")
    section = {
        "epsilon_proved": audit_file.finite_or_none(proved),
        "epsilon_at_least": bound.epsilon,
        "delta": delta,
        "confidence": bound.confidence,
        "canaries": bound.canaries,
        "guesses": bound.guesses,
        "right": bound.right,
        "refuted": bound.epsilon > proved,
    }
    audit_file.write_section(run.folder, "one_run", section)
    return bound


def one_run(scores: ArrayLike, inside: ArrayLike, *, guesses: int, delta: float, confidence: float = 0.95) -> OneRun:
    """Return the bound from the scores and insertions of canaries; `guesses` must not depend on `inside`."""
    checked, inserted = checked_scores("scores", scores), np.asarray(inside, dtype=np.bool_)
    if checked.shape != inserted.shape:
        raise ConfigError(f"{checked.size} scores and {inserted.size} insertions: each canary needs one of each.")
    if not 0 < guesses <= checked.size:
        raise ConfigError(f"guesses is {guesses}: it must be from 1 to the number of canaries, {checked.size}.")
    right = count_right_guesses(checked, inserted, guesses=guesses)
    epsilon = largest_refuted(canaries=checked.size, guesses=guesses, right=right, delta=delta, miss=1 - confidence)
    return OneRun(epsilon, delta, confidence, checked.size, int(inserted.sum()), guesses, right)


def count_right_guesses(scores: NDArray[np.float64], inside: NDArray[np.bool_], *, guesses: int) -> int:
    """Count the right guesses if the highest scores are guessed "in" and the lowest "out", half of each.

    Equal scores are ranked in the order of the canaries.
    """
    order, low = np.argsort(scores, kind="stable"), guesses // 2
    return int((~inside[order[:low]]).sum() + inside[order[len(order) - (guesses - low) :]].sum())


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of `right` or more right guesses under (epsilon, delta)-differential privacy."""
    chance = 1 / (1 + math.exp(-epsilon))
    more = float(binom.sf(right - 1, guesses, chance))
    below = binom.cdf(np.arange(-1, right), guesses, chance)  # P[V < 0], ..., P[V < right]
    short_by = np.arange(1, right + 1)
    worst = float(((below[-1] - below[right - short_by]) / short_by).max()) if right else 0.0
    return min(1.0, more + 2 * canaries * delta * worst)


def largest_refuted(*, canaries: int, guesses: int, right: int, delta: float, miss: float) -> float:
    """Return the largest epsilon with a p-value of at most `miss`, rounded down; 0 if there is none."""

    def is_refuted(epsilon: float) -> bool:
        return p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta) <= miss

    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, LARGEST_EPSILON
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def choose_guesses(canaries: int, mu: float, *, delta: float, confidence: float = 0.95) -> int:
    """Return the number of guesses with the largest expected bound for normal scores whose means differ by `mu`.

    The number does not depend on the data.
    """
    rng, bounds = np.random.default_rng(0), np.zeros(len(SHARES))
    options = [max(1, round(share * canaries)) for share in SHARES]
    for _ in range(8):
        inside = rng.random(canaries) < 0.5
        scores = rng.normal(size=canaries) + mu * inside
        for place, guesses in enumerate(options):
            right = count_right_guesses(scores, inside, guesses=guesses)
            bounds[place] += largest_refuted(
                canaries=canaries, guesses=guesses, right=right, delta=delta, miss=1 - confidence
            )
    return options[int(bounds.argmax())]
