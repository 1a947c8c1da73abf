"""Lower bounds on epsilon from an attack: its scores without the target record and with it, in independent runs.

Whatever set S an attacker looks for, (epsilon, delta)-differential privacy says P[S] <= e^epsilon P'[S] + delta for
the two worlds in either order. So with p a lower bound of the one probability and p' an upper bound of the other

    epsilon >= log((p - delta) / p')

and both are Clopper-Pearson bounds, which hold for every number of runs. S is "the score is at least t", which speaks
for the world with the record, or "at most t", which speaks for the world without. Which of the two, and t, are chosen
on a quarter of the runs; the bound is computed on the others, which the choice has not seen.

    lower_bound            holds with the stated confidence, whatever the scores are
    estimate               of mu, as if scores were normal: sharper with few runs, and no bound
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from dpvision.errors import ConfigError
from dpvision.settings import gdp

Floats = NDArray[np.float64]

# The share of runs that t is chosen on, and how many are tried, at ranks that are dense at both ends.
CHOOSE, THRESHOLDS = 0.25, 400
# The choice asks for more confidence than the bound, or it would be drawn to a few lucky runs.
CAUTION = 0.1


@dataclass(frozen=True)
class Bound:
    """Epsilon at `delta` is at least `epsilon`, with the stated confidence; 0 is no evidence."""

    epsilon: float
    delta: float
    confidence: float
    threshold: float  # the guess is made where the score is on its side of this
    guess: str  # "with": scores of at least the threshold; "without": scores of at most it
    right: float  # least probability of the guess where it is right
    wrong: float  # largest probability of the guess where it is wrong
    runs: int  # of both worlds

    def refutes(self, claimed: float) -> bool:
        """Whether the claim of `claimed` at the same delta is shown to be false."""
        return self.epsilon > claimed


@dataclass(frozen=True)
class Estimate:
    """What mu and epsilon would be if the scores were normal with one variance. Not a bound."""

    mu: float
    low: float
    high: float
    epsilon: float
    delta: float
    confidence: float


def lower_bound(without: ArrayLike, with_record: ArrayLike, *, delta: float, confidence: float = 0.95) -> Bound:
    """The bound from scores of the world without the target record and of the world with it; high scores say "with".

    The runs must be independent of each other. They are split at random, so their order does not matter.
    """
    _check(delta, confidence)
    out, into = checked_scores("without", without), checked_scores("with_record", with_record)
    miss = (1 - confidence) / 2  # each of the two probabilities may be missed by half
    order = np.random.default_rng(0)  # independent of the scores, which is all that the split must be
    choose_out, test_out = np.split(order.permutation(out), [math.ceil(CHOOSE * out.size)])
    choose_in, test_in = np.split(order.permutation(into), [math.ceil(CHOOSE * into.size)])
    # Guessing "without" is guessing "with" in a mirror: worlds exchanged, scores negated.
    says_with = _best_threshold(choose_out, choose_in, delta, CAUTION * miss)
    says_without = _best_threshold(-choose_in, -choose_out, delta, CAUTION * miss)
    if says_with[1] >= says_without[1]:
        guess, threshold, wrong_world, right_world = "with", says_with[0], test_out, test_in
    else:
        guess, threshold, wrong_world, right_world = "without", says_without[0], -test_in, -test_out
    right = clopper_pearson_low((right_world >= threshold).sum(), right_world.size, miss)
    wrong = clopper_pearson_high((wrong_world >= threshold).sum(), wrong_world.size, miss)
    return Bound(
        epsilon=float(_epsilon(right, wrong, delta)),
        delta=delta,
        confidence=confidence,
        threshold=threshold if guess == "with" else -threshold,
        guess=guess,
        right=float(right),
        wrong=float(wrong),
        runs=out.size + into.size,
    )


def estimate(without: ArrayLike, with_record: ArrayLike, *, delta: float, confidence: float = 0.95) -> Estimate:
    """The matched filter: mu = (mean with - mean without) / spread, with an interval for large numbers of runs.

    Never below 0: a score that points the wrong way is no evidence. Scores of many small steps are nearly normal, but
    nothing here checks it, so this is an alarm and not a proof.
    """
    _check(delta, confidence)
    out, into = checked_scores("without", without), checked_scores("with_record", with_record)
    spread = math.sqrt((out.var(ddof=1) + into.var(ddof=1)) / 2)
    if not spread > 0:  # also not a number, where a score is infinite
        raise ConfigError("the scores of an estimate must be finite and not all equal. Fix: use lower_bound.")
    mu = float(into.mean() - out.mean()) / spread
    reach = float(ndtri((1 + confidence) / 2)) * _error_of_mu(out, into, mu, spread)
    low, mu, high = (max(0.0, x) for x in (mu - reach, mu, mu + reach))
    return Estimate(mu, low, high, gdp.gaussian_epsilon(mu, delta), delta, confidence)


def _error_of_mu(out: Floats, into: Floats, mu: float, spread: float) -> float:
    """Standard error of mu by the delta method, with the scores' own third and fourth moments.

    For normal scores it is sqrt(1/n + 1/n' + mu^2/8 (1/n + 1/n')); scores of few steps have heavier tails.
    """
    square = 0.0
    for scores, sign in ((out, -1.0), (into, 1.0)):
        x = (scores - scores.mean()) / spread
        # One run's share in mu: linear in the mean, and through the variance in the spread.
        influence = sign * x - mu / 4 * (x**2 - (x**2).mean())
        square += float((influence**2).mean()) / scores.size
    return math.sqrt(square)


def clopper_pearson_low(hits: ArrayLike, runs: int, miss: float) -> Floats:
    """A probability that is at most the true one, but for a chance of `miss`: the `miss` quantile of Beta(k, n-k+1)."""
    k = np.asarray(hits, dtype=np.float64)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), runs - k + 1, miss), 0.0)


def clopper_pearson_high(hits: ArrayLike, runs: int, miss: float) -> Floats:
    """A probability that is at least the true one, but for a chance of `miss`: the quantile of Beta(k+1, n-k)."""
    k = np.asarray(hits, dtype=np.float64)
    return np.where(k < runs, betaincinv(k + 1, np.maximum(runs - k, 1), 1 - miss), 1.0)


def candidates(out: Floats, into: Floats) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Thresholds to choose from, and how many scores of either world are at least as large as each."""
    scores = np.sort(np.concatenate([out, into]))
    near = np.unique(np.geomspace(1, scores.size, THRESHOLDS // 2).astype(np.intp)) - 1
    thresholds = np.unique(np.concatenate([scores[near], scores[scores.size - 1 - near]]))
    hits_out = out.size - np.searchsorted(np.sort(out), thresholds)
    hits_in = into.size - np.searchsorted(np.sort(into), thresholds)
    return thresholds, hits_out, hits_in


def _best_threshold(out: Floats, into: Floats, delta: float, miss: float) -> tuple[float, float]:
    """The threshold with the largest bound on these scores, and that bound."""
    thresholds, hits_out, hits_in = candidates(out, into)
    bounds = _epsilon(
        clopper_pearson_low(hits_in, into.size, miss), clopper_pearson_high(hits_out, out.size, miss), delta
    )
    best = int(bounds.argmax())
    return float(thresholds[best]), float(bounds[best])


def _epsilon(right: Floats, wrong: Floats, delta: float) -> Floats:
    return np.log(np.maximum((right - delta) / wrong, 1.0))


def checked_scores(name: str, values: ArrayLike) -> Floats:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or scores.size < 2:
        raise ConfigError(f"{name} has shape {scores.shape}: it must be a list of at least 2 scores, one for each run.")
    if np.isnan(scores).any():
        raise ConfigError(f"{name} has scores that are not a number. Fix: give every run a score.")
    return scores


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise ConfigError(f"delta is {delta}: it must be from 0 to below 1.")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}: it must be between 0 and 1, such as 0.95.")
