"""What epsilon means: the success of the best attack, and the guarantee for other neighbours and in other measures.

Compare a model that has seen a unit, P, with the same model without it, Q. An attack succeeds if the model falls into a
set of models that the attacker chose. Let `chance` be the probability of this under Q. For every epsilon, both
directions of (epsilon, delta(epsilon))-differential privacy bound the probability under P:

    success <= e^epsilon chance + delta(epsilon)
    success <= 1 - e^-epsilon (1 - delta(epsilon) - chance)

The bounds hold for all epsilons simultaneously, so their minimum does too. A coarser grid of epsilons only loosens it.

    membership       chance is the false positive rate of a test, success its true positive rate
    reconstruction   chance is the probability of guessing the record from a model that has not seen it, or the share of
                     the candidates that a guess names; success is the probability that the guess is right. The bound is
                     concave in chance, so it also holds for the mean over records. (ReRo: Balle, Cherubin, Hayes 2022;
                     Hayes, Mahloujifar, Balle 2023. For the Gaussian mechanism it is Phi(Phi^-1(chance) + mu).)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dpvision.core import accountant
from dpvision.core.accountant import MAX_LOSS, Floats
from dpvision.core.events import MIN_SIGMA, Event, Gaussian, exposures, fixed_delta, split_kind

GRID_POINTS = 2001
# The grid of epsilons ends where delta is this small: larger epsilons do not improve the bound at usual chances.
MIN_DELTA = 1e-9
SPLITS = 33  # number of splits that are tried, twice


class Accountant(Protocol):
    """A module with upper bounds on epsilon and delta: core/accountant.py or settings/quick.py."""

    def epsilon(self, event: Event, delta: float) -> float:
        """Return an upper bound on the smallest epsilon at `delta`."""

    def profile(self, event: Event, epsilons: Sequence[float]) -> Floats:
        """Return upper bounds on delta at each of the epsilons."""


def attack_success(event: Event, chances: Sequence[float], by: Accountant = accountant) -> Floats:
    """Return, for each chance of success without the unit, a bound on the success of every attack with it."""
    chance = np.asarray(chances, dtype=np.float64)[:, None]
    epsilons = np.linspace(0.0, furthest(event, by), GRID_POINTS)
    deltas = by.profile(event, epsilons.tolist())
    forward = np.exp(epsilons) * chance + deltas
    backward = 1.0 - np.exp(-epsilons) * (1.0 - deltas - chance)
    return np.clip(np.minimum(forward, backward).min(axis=1), chance[:, 0], 1.0)


def furthest(event: Event, by: Accountant = accountant) -> float:
    """Return the largest epsilon to evaluate on the event's privacy curve."""
    return min(by.epsilon(event, fixed_delta(event) + MIN_DELTA), MAX_LOSS)


def replace_one_epsilon(event: Event, delta: float) -> float:
    """Return an upper bound on epsilon at `delta` between data sets in which one unit is replaced by another.

    A replacement is a removal and then an addition, so for every split of epsilon into two parts,

        delta_of_replacement(first + second) <= delta(first) + e^first delta(second).

    The best split composes the trade-off functions of both. A Gaussian mechanism has a unit's distance twice.
    """
    if mu := gaussian_mu(event):
        return accountant.epsilon(Gaussian(0.5 / mu), delta) if 0.5 / mu >= MIN_SIGMA else math.inf
    low, high = accountant.epsilon(event, delta), furthest(event)
    best = math.inf
    for _ in range(2):
        if not low < high < math.inf:
            break
        firsts = np.linspace(low, high, SPLITS).tolist()
        lefts = (delta - accountant.profile(event, firsts)).tolist()
        totals = [_total(event, first, left) for first, left in zip(firsts, lefts, strict=True)]
        at = int(np.argmin(totals))
        best, low, high = min(best, totals[at]), firsts[max(at - 1, 0)], firsts[min(at + 1, SPLITS - 1)]
    return best


def _total(event: Event, first: float, left: float) -> float:
    """Return the whole epsilon of a replacement whose first part leaves `left` of delta."""
    return first + accountant.epsilon(event, left * math.exp(-first)) if left > 0 else math.inf


def gaussian_mu(event: Event) -> float | None:
    """Return mu if the event is exactly a Gaussian mechanism: mu-GDP, and zCDP with rho = mu^2 / 2. Otherwise None.

    It is one if all units are in all of its sums, whose number and noise were fixed before the first result.
    """
    kinds = [split_kind(accountant.join_unsampled(kind)) for kind in exposures(event) if kind]
    if any(points or any(step.rate < 1 for step in steps) for steps, points in kinds):
        return None
    return max((1 / steps[0].sigma for steps, _ in kinds), default=0.0)
