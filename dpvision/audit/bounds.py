"""Lower bounds on epsilon from the scores of an attack in independent runs, without the target record and with it.

For every set S, (epsilon, delta)-differential privacy implies P[S] <= e^epsilon P'[S] + delta for the two worlds in
either order. So if p is a lower bound on one probability and p' an upper bound on the other,

    epsilon >= log((p - delta) / p')

Both are Clopper-Pearson bounds, which hold for every number of runs. S is "the score is at least t", evidence for the
world with the record, or "at most t", evidence for the world without it. S is chosen on some of the runs, and the bound
is computed on the others.

    lower_bound     holds with the stated confidence, whatever the distribution of the scores
    profile_test    tests a whole claimed curve delta(epsilon). At delta = 1e-5 no feasible number of runs reveals a
                    small error, but at a small epsilon, where delta is large, it is visible. There is a single check,
                    at a set and epsilon chosen on half of the runs: low(P[S]) - e^epsilon high(P'[S]) > delta(epsilon)
    estimate        estimates mu as if scores were normal (a matched filter): sharper with few runs, but not a bound
    judge           applies all three, and decides whether they refute a claim

The matched filter raises an alarm if its whole interval is above the mu of the claimed mechanism's scores
(`canaries.claimed_mu`) and canaries were sampled at least ENOUGH_DRAWS times. With few samples, a single one can
determine the mean: a true claim then raises an alarm up to four times more often than stated (rate 0.01, 2 steps, 100
canaries). With 160 samples or more, the measured rate of alarms agrees with the stated one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from dpvision.audit import audit_file
from dpvision.audit.canaries import Scores
from dpvision.core import accountant
from dpvision.errors import ConfigError
from dpvision.settings import gdp

Floats = NDArray[np.float64]
Curve = Callable[[Sequence[float]], ArrayLike]

# The share of runs on which t is chosen, and the number of candidates for t, whose ranks are dense at both ends.
CHOOSE, THRESHOLDS = 0.25, 400
# The choice uses a higher confidence than the bound, so as not to favour thresholds with a few lucky runs.
CAUTION = 0.1
# Values of epsilon at which a claimed curve is compared.
EPSILONS = 64
# Number of times, over all runs, that inserted canaries must be sampled before the matched filter may raise an alarm.
ENOUGH_DRAWS = 500


@dataclass(frozen=True)
class Bound:
    """Epsilon at `delta` is at least `epsilon`, with the stated confidence; 0 means no evidence."""

    epsilon: float
    delta: float
    confidence: float
    threshold: float  # the guess is made for scores on one side of it
    guess: str  # "with": scores of at least the threshold; "without": scores of at most it
    right: float  # lower bound on the probability of the guess in the world where it is right
    wrong: float  # upper bound on the probability of the guess in the world where it is wrong
    runs: int  # of both worlds

    def refutes(self, claimed: float) -> bool:
        """Return whether the bound contradicts a claimed epsilon at the same delta."""
        return self.epsilon > claimed


@dataclass(frozen=True)
class Estimate:
    """Estimates of mu and epsilon that assume normal scores of equal variance; not a bound."""

    mu: float
    low: float
    high: float
    epsilon: float
    delta: float
    confidence: float


@dataclass(frozen=True)
class ProfileTest:
    """Delta at `epsilon` is at least `shown`, with the stated confidence; the claim there is `claimed`."""

    refuted: bool
    epsilon: float
    claimed: float
    shown: float
    threshold: float
    guess: str  # "with" or "without": the world that the set is evidence for
    confidence: float


@dataclass(frozen=True)
class Verdict:
    """The evidence of canary scores about a claim, in three forms."""

    epsilon: float  # claimed, at delta
    delta: float
    bound: Bound  # on epsilon at delta
    profile: ProfileTest
    estimate: Estimate
    claimed_mu: float  # near the estimate if the claim is true
    draws: float  # expected number of times that inserted canaries were sampled

    @property
    def alarm(self) -> bool:
        """Whether the matched filter contradicts the claim, with enough samples for its interval to be valid."""
        return self.draws >= ENOUGH_DRAWS and self.estimate.low > self.claimed_mu

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted, by the profile test or by the matched filter."""
        return self.profile.refuted or self.alarm

    def as_section(self, *, proved: float) -> dict[str, Any]:
        """Return the section "mechanism" of audit.json; `proved` is the epsilon of the whole run.

        It differs from the tested epsilon if settings changed during training.
        """
        mu = self.estimate
        return {
            "epsilon_proved": audit_file.finite_or_none(proved),
            "epsilon_tested": self.epsilon,
            "epsilon_at_least": self.bound.epsilon,
            "delta": self.delta,
            "confidence": self.bound.confidence,
            "canaries": self.bound.runs,
            "mu": {"estimate": mu.mu, "low": mu.low, "high": mu.high, "claimed": self.claimed_mu},
            "profile": asdict(self.profile),
            "refuted": self.refuted,
        }


def judge(scores: Scores, *, delta: float, confidence: float = 0.95) -> Verdict:
    """Test a claim. Profile test and alarm refute a true one with probability at most about 1 - confidence."""
    worlds = scores.without, scores.with_record
    count = sum(map(len, worlds))
    varied = np.ptp(np.concatenate(worlds)) > 0  # constant scores are no evidence
    return Verdict(
        epsilon=accountant.epsilon(scores.claimed, delta),
        delta=delta,
        bound=lower_bound(*worlds, delta=delta, confidence=confidence),
        profile=profile_test(
            *worlds,
            lambda epsilons: accountant.profile(scores.claimed, epsilons),
            top=accountant.epsilon(scores.claimed, min(0.1, 1 / count)),
            confidence=(1 + confidence) / 2,
        ),
        estimate=estimate(*worlds, delta=delta, confidence=confidence)
        if varied
        else Estimate(0.0, 0.0, 0.0, 0.0, delta, confidence),
        claimed_mu=scores.mu,
        draws=scores.draws,
    )


def lower_bound(without: ArrayLike, with_record: ArrayLike, *, delta: float, confidence: float = 0.95) -> Bound:
    """Return a bound from the scores of runs without the target record and with it; high scores suggest "with".

    The runs must be independent. They are split at random, so their order does not matter.
    """
    _check(delta, confidence)
    out, into = checked_scores("without", without), checked_scores("with_record", with_record)
    miss = (1 - confidence) / 2  # half of the error probability for each of the two bounds
    world, threshold, _, right, wrong = _guess_and_test(
        out, into, CHOOSE, lambda out, into: (*_best_threshold(out, into, delta, CAUTION * miss), 0), miss
    )
    epsilon = float(_epsilon(right, wrong, delta))
    return Bound(epsilon, delta, confidence, threshold, world, right, wrong, runs=out.size + into.size)


def estimate(without: ArrayLike, with_record: ArrayLike, *, delta: float, confidence: float = 0.95) -> Estimate:
    """Estimate mu = (mean with - mean without) / standard deviation (the matched filter), with an asymptotic interval.

    Mu is at least 0: scores that point the wrong way are not evidence. Scores of many small steps are nearly normal,
    but this is not checked, so the result can raise an alarm and proves nothing.
    """
    _check(delta, confidence)
    out, into = checked_scores("without", without), checked_scores("with_record", with_record)
    spread = math.sqrt((out.var(ddof=1) + into.var(ddof=1)) / 2)
    if not spread > 0:  # including NaN, if a score is infinite
        raise ConfigError("the scores of an estimate must be finite and not all equal. Fix: use lower_bound.")
    mu = float(into.mean() - out.mean()) / spread
    reach = float(ndtri((1 + confidence) / 2)) * _standard_error(out, into, mu, spread)
    low, mu, high = (max(0.0, x) for x in (mu - reach, mu, mu + reach))
    return Estimate(mu, low, high, gdp.gaussian_epsilon(mu, delta), delta, confidence)


def _standard_error(out: Floats, into: Floats, mu: float, spread: float) -> float:
    """Return the standard error of mu by the delta method, from the third and fourth moments of the scores.

    For normal scores it is sqrt(1/n + 1/n' + mu^2/8 (1/n + 1/n')). Scores of few steps have heavier tails.
    """
    square = 0.0
    for scores, sign in ((out, -1.0), (into, 1.0)):
        x = (scores - scores.mean()) / spread
        # The influence of one run on mu: linear through the mean, and quadratic through the variance.
        influence = sign * x - mu / 4 * (x**2 - (x**2).mean())
        square += float((influence**2).mean()) / scores.size
    return math.sqrt(square)


def profile_test(
    without: ArrayLike, with_record: ArrayLike, curve: Curve, *, top: float, confidence: float = 0.95
) -> ProfileTest:
    """Test a claimed curve at epsilons from 0 to `top`; `curve` maps ascending epsilons to their deltas.

    This makes no assumption about the distribution of the scores.
    """
    if not (0 < confidence < 1 and 0 <= top < math.inf):
        raise ConfigError(f"confidence is {confidence} and top {top}: they must be between 0 and 1, and finite.")
    out, into = checked_scores("without", without), checked_scores("with_record", with_record)
    epsilons = np.linspace(0.0, top, EPSILONS)
    deltas = np.asarray(curve(epsilons.tolist()), dtype=np.float64)
    world, threshold, place, right, wrong = _guess_and_test(
        out, into, 0.5, lambda out, into: _best_excess(out, into, epsilons, deltas), (1 - confidence) / 2
    )
    epsilon, claimed = float(epsilons[place]), float(deltas[place])
    shown = right - math.exp(epsilon) * wrong
    return ProfileTest(shown > claimed, epsilon, claimed, max(0.0, shown), threshold, world, confidence)


def clopper_pearson_low(hits: ArrayLike, runs: int, miss: float) -> Floats:
    """Return a lower bound on a probability that fails with probability `miss`: a quantile of Beta(k, n-k+1)."""
    k = np.asarray(hits, dtype=np.float64)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), runs - k + 1, miss), 0.0)


def clopper_pearson_high(hits: ArrayLike, runs: int, miss: float) -> Floats:
    """Return an upper bound on a probability that fails with probability `miss`: a quantile of Beta(k+1, n-k)."""
    k = np.asarray(hits, dtype=np.float64)
    return np.where(k < runs, betaincinv(k + 1, np.maximum(runs - k, 1), 1 - miss), 1.0)


def _guess_and_test(
    out: Floats, into: Floats, share: float, best: Callable[[Floats, Floats], tuple[float, float, int]], miss: float
) -> tuple[str, float, int, float, float]:
    """Return the world to guess, the threshold and its index, a lower bound on P[right], an upper bound on P[wrong].

    The guess is chosen by `best` on a random share of both worlds' scores, and tested on the other scores. Guessing
    "without" is the same as guessing "with" after exchanging the worlds and negating the scores.
    """
    order = np.random.default_rng(0)  # a fixed seed suffices: the split must only be independent of the scores
    choose_out, test_out = np.split(order.permutation(out), [math.ceil(share * out.size)])
    choose_in, test_in = np.split(order.permutation(into), [math.ceil(share * into.size)])
    with_guess, without_guess = best(choose_out, choose_in), best(-choose_in, -choose_out)
    if with_guess[0] >= without_guess[0]:
        world, sign, (_, threshold, place), wrong, right = "with", 1.0, with_guess, test_out, test_in
    else:
        world, sign, (_, threshold, place), wrong, right = "without", -1.0, without_guess, -test_in, -test_out
    low = float(clopper_pearson_low((right >= threshold).sum(), right.size, miss))
    high = float(clopper_pearson_high((wrong >= threshold).sum(), wrong.size, miss))
    return world, sign * threshold, place, low, high


def _candidates(out: Floats, into: Floats) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Return candidate thresholds, and for each the number of scores of either world that reach it."""
    scores = np.sort(np.concatenate([out, into]))
    near = np.unique(np.geomspace(1, scores.size, THRESHOLDS // 2).astype(np.intp)) - 1
    thresholds = np.unique(np.concatenate([scores[near], scores[scores.size - 1 - near]]))
    hits_out = out.size - np.searchsorted(np.sort(out), thresholds)
    hits_in = into.size - np.searchsorted(np.sort(into), thresholds)
    return thresholds, hits_out, hits_in


def _best_threshold(out: Floats, into: Floats, delta: float, miss: float) -> tuple[float, float]:
    """Return the largest bound on these scores, and its threshold."""
    thresholds, hits_out, hits_in = _candidates(out, into)
    bounds = _epsilon(
        clopper_pearson_low(hits_in, into.size, miss), clopper_pearson_high(hits_out, out.size, miss), delta
    )
    best = int(bounds.argmax())
    return float(bounds[best]), float(thresholds[best])


def _best_excess(out: Floats, into: Floats, epsilons: Floats, deltas: Floats) -> tuple[float, float, int]:
    """Return the largest excess over the claim in standard errors, its threshold, and the index of its epsilon."""
    thresholds, hits_out, hits_in = _candidates(out, into)
    wrong, right = (hits_out + 1) / (out.size + 2), (hits_in + 1) / (into.size + 2)  # never 0 or 1
    factor = np.exp(epsilons)[:, None]
    excess = right - factor * wrong - deltas[:, None]
    error = np.sqrt(right * (1 - right) / into.size + factor**2 * wrong * (1 - wrong) / out.size)
    place, which = np.unravel_index(int((excess / error).argmax()), excess.shape)
    return float((excess / error)[place, which]), float(thresholds[which]), int(place)


def _epsilon(right: ArrayLike, wrong: ArrayLike, delta: float) -> Floats:
    right, wrong = np.asarray(right), np.asarray(wrong)
    return np.log(np.maximum((right - delta) / wrong, 1.0))


def checked_scores(name: str, values: ArrayLike) -> Floats:
    """Return the scores as an array; refuse fewer than 2 scores, and NaN."""
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or scores.size < 2:
        raise ConfigError(f"{name} has shape {scores.shape}: it must be a list of at least 2 scores, one for each run.")
    if np.isnan(scores).any():
        raise ConfigError(f"{name} contains a score that is not a number. Fix: give every run a score.")
    return scores


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise ConfigError(f"delta is {delta}: it must be at least 0 and below 1.")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}: it must be between 0 and 1, such as 0.95.")
