"""Is a claimed curve delta(epsilon) false? An attack's scores against all of it at once.

Whatever set S an attacker looks for, the claim says P[S] - e^epsilon P'[S] <= delta(epsilon), at every epsilon and with
the worlds in either order. At delta = 1e-5 no number of runs that anybody makes would show a small mistake; at a small
epsilon, where delta is large, it does. So S ("the score is at least t", or "at most t") and epsilon are chosen on half
of the runs, and one check is made on the other half,

    low(P[S]) - e^epsilon high(P'[S]) > delta(epsilon)

with Clopper-Pearson bounds: it needs no law of the scores, and a true claim fails it as rarely as stated.

The matched filter (`bound.estimate`) is sharper and no proof: it takes scores as sums of many parts. It raises an alarm
where all of its interval lies above what the claimed mechanism's own scores would give (`canaries.claimed_mu`), and
where canaries were drawn often enough: with few draws one of them can make the mean, and a true claim raises an alarm
up to four times as often as stated (rate 0.01, 2 steps, 100 canaries); from 160 draws on as often, within the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpvision.audit.bound import (
    Bound,
    Estimate,
    Floats,
    candidates,
    checked_scores,
    clopper_pearson_high,
    clopper_pearson_low,
    estimate,
    lower_bound,
)
from dpvision.audit.canaries import Scores
from dpvision.core import accountant
from dpvision.errors import ConfigError

EPSILONS = 64
# Draws of canaries that are in, over all runs, from which on the matched filter may raise an alarm.
ENOUGH_DRAWN = 500
Curve = Callable[[Sequence[float]], ArrayLike]


@dataclass(frozen=True)
class ProfileTest:
    """delta at `epsilon` is shown to be at least `shown`, with the stated confidence, and `claimed` was claimed."""

    refuted: bool
    epsilon: float
    claimed: float
    shown: float
    threshold: float
    guess: str  # "with" or "without": which world the set speaks for
    confidence: float


@dataclass(frozen=True)
class Verdict:
    """What the scores of canaries say of a claim, in three ways."""

    epsilon: float  # claimed, at delta
    delta: float
    bound: Bound  # epsilon at delta is at least this: for people
    profile: ProfileTest
    estimate: Estimate
    claimed_mu: float  # what the estimate would be near if the claim were true
    drawn: float  # how many times canaries were drawn, on the average

    @property
    def alarm(self) -> bool:
        """Only where canaries were drawn often enough for the estimate's interval to be what it says."""
        return self.drawn >= ENOUGH_DRAWN and self.estimate.low > self.claimed_mu

    @property
    def refuted(self) -> bool:
        return self.profile.refuted or self.alarm


def verdict(scores: Scores, *, delta: float, confidence: float = 0.95) -> Verdict:
    """A true claim is refuted with a chance of 1 - confidence: at most half by the profile, about half by the alarm."""
    without, with_record, claimed = scores.without, scores.with_record, accountant.epsilon(scores.claimed, delta)
    top = accountant.epsilon(scores.claimed, min(0.1, 1 / (len(without) + len(with_record))))
    return Verdict(
        epsilon=claimed,
        delta=delta,
        bound=lower_bound(without, with_record, delta=delta, confidence=confidence),
        profile=profile_test(
            without,
            with_record,
            lambda epsilons: accountant.profile(scores.claimed, epsilons),
            top=top,
            confidence=(1 + confidence) / 2,
        ),
        estimate=_estimate(without, with_record, delta=delta, confidence=confidence),
        claimed_mu=scores.mu,
        drawn=scores.drawn,
    )


def profile_test(
    without: ArrayLike, with_record: ArrayLike, curve: Curve, *, top: float, confidence: float = 0.95
) -> ProfileTest:
    """`curve` gives delta at each of some ascending epsilons; those from 0 to `top` are looked at."""
    if not (0 < confidence < 1 and 0 <= top < math.inf):
        raise ConfigError(f"confidence is {confidence} and top {top}: they must be between 0 and 1, and finite.")
    out, into = checked_scores("without", without), checked_scores("with_record", with_record)
    order = np.random.default_rng(0)  # independent of the scores, which is all that the split must be
    choose_out, test_out = np.array_split(order.permutation(out), 2)
    choose_in, test_in = np.array_split(order.permutation(into), 2)
    epsilons = np.linspace(0.0, top, EPSILONS)
    deltas = np.asarray(curve(epsilons.tolist()), dtype=np.float64)
    says_with = _best(choose_out, choose_in, epsilons, deltas)
    says_without = _best(-choose_in, -choose_out, epsilons, deltas)  # the same in a mirror
    if says_with[0] >= says_without[0]:
        guess, sign, (_, threshold, at), wrong, right = "with", 1.0, says_with, test_out, test_in
    else:
        guess, sign, (_, threshold, at), wrong, right = "without", -1.0, says_without, -test_in, -test_out
    miss = (1 - confidence) / 2
    least = float(clopper_pearson_low((right >= threshold).sum(), right.size, miss))
    most = float(clopper_pearson_high((wrong >= threshold).sum(), wrong.size, miss))
    epsilon, claimed = float(epsilons[at]), float(deltas[at])
    shown = least - math.exp(epsilon) * most
    return ProfileTest(shown > claimed, epsilon, claimed, max(0.0, shown), sign * threshold, guess, confidence)


def _best(out: Floats, into: Floats, epsilons: Floats, deltas: Floats) -> tuple[float, float, int]:
    """By how many standard errors the claim is exceeded at most, with which threshold, at which epsilon."""
    thresholds, hits_out, hits_in = candidates(out, into)
    wrong, right = (hits_out + 1) / (out.size + 2), (hits_in + 1) / (into.size + 2)  # never 0 or 1
    factor = np.exp(epsilons)[:, None]
    excess = right - factor * wrong - deltas[:, None]
    error = np.sqrt(right * (1 - right) / into.size + factor**2 * wrong * (1 - wrong) / out.size)
    at, which = np.unravel_index(int((excess / error).argmax()), excess.shape)
    return float((excess / error)[at, which]), float(thresholds[which]), int(at)


def _estimate(without: Floats, with_record: Floats, *, delta: float, confidence: float) -> Estimate:
    if np.ptp(np.concatenate([without, with_record])) == 0:  # all alike: no evidence
        return Estimate(0.0, 0.0, 0.0, 0.0, delta, confidence)
    return estimate(without, with_record, delta=delta, confidence=confidence)
