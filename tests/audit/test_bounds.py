"""Lower bounds are rarely above the truth, near it with many runs, and zero without evidence; false claims are refuted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpvision.audit import bounds
from dpvision.audit.bounds import estimate, judge, lower_bound, profile_test
from dpvision.audit.canaries import Scores, claimed_mu, log_ratio
from dpvision.core import adaptive
from dpvision.core.events import Exposure, Gaussian, PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings import gdp

DELTA = 1e-5


def _worlds(mu: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, runs), rng.normal(mu, 1, runs)


@pytest.mark.parametrize("hits", [0, 1, 7, 99, 100])
@pytest.mark.parametrize("miss", [0.025, 0.001])
def test_clopper_pearson_is_scipys(hits: int, miss: float) -> None:
    exact = stats.binomtest(hits, 100).proportion_ci(1 - 2 * miss, method="exact")
    assert bounds.clopper_pearson_low(hits, 100, miss) == pytest.approx(exact.low, rel=1e-9, abs=1e-12)
    assert bounds.clopper_pearson_high(hits, 100, miss) == pytest.approx(exact.high, rel=1e-9)


# The bound is tightest at mu 3 with 300 runs and at delta 0.1; at mu 0 anything above 0 is a false alarm.
@pytest.mark.parametrize(
    ("mu", "delta", "runs"), [(0.0, 0.0, 400), (1.0, 0.1, 4000), (1.0, 1e-5, 400), (3.0, 0.5, 300)]
)
def test_false_alarms_are_as_rare_as_stated(mu: float, delta: float, runs: int) -> None:
    trials, truth = 250, gdp.gaussian_epsilon(mu, delta)
    above = sum(lower_bound(*_worlds(mu, runs, seed), delta=delta).refutes(truth) for seed in range(trials))
    assert above <= stats.binom.isf(1e-4, trials, 0.05)


def test_the_test_of_false_alarms_detects_an_invalid_bound() -> None:
    """The best threshold of all runs, tested on the same runs without correction, often exceeds the truth."""
    trials, truth, above = 200, gdp.gaussian_epsilon(1.0, 0.1), 0
    for seed in range(trials):
        out, into = _worlds(1.0, 4000, seed)
        above += bounds._best_threshold(out, into, 0.1, 0.25)[0] > truth
    assert above > stats.binom.isf(1e-4, trials, 0.05)


def test_many_runs_approach_the_truth() -> None:
    truth = gdp.gaussian_epsilon(1.0, 0.05)
    bound = lower_bound(*_worlds(1.0, 400_000, 1), delta=0.05)
    assert 0.93 * truth < bound.epsilon <= truth
    assert bound.runs == 800_000 and bound.confidence == 0.95 and bound.delta == 0.05


def test_more_confidence_gives_a_lower_bound() -> None:
    worlds = _worlds(1.0, 20_000, 2)
    sure, less = (lower_bound(*worlds, delta=DELTA, confidence=c) for c in (0.999, 0.9))
    assert 0 < sure.epsilon < less.epsilon


def test_no_evidence_is_zero() -> None:
    """Also if the score points the wrong way, is constant, or there are only two runs."""
    out, into = _worlds(2.0, 5000, 3)
    assert lower_bound(into, out, delta=DELTA).epsilon == 0
    assert estimate(into, out, delta=DELTA).mu == estimate(into, out, delta=DELTA).epsilon == 0
    assert lower_bound(np.zeros(50), np.zeros(50), delta=DELTA).epsilon == 0
    assert lower_bound([0.0, 0.0], [1.0, 1.0], delta=DELTA).epsilon == 0


def test_evidence_of_either_side_is_found() -> None:
    """A score that occasionally proves the record present, and one that occasionally proves it absent."""
    rng = np.random.default_rng(4)
    zeros, rare = np.zeros(20_000), rng.random(20_000) < 0.01
    present, absent = (
        lower_bound(zeros, np.where(rare, np.inf, 0), delta=DELTA),
        lower_bound(np.where(rare, -np.inf, 0), zeros, delta=DELTA),
    )
    assert (present.guess, absent.guess) == ("with", "without")
    assert present.threshold == math.inf and absent.threshold == -math.inf
    for bound in (present, absent):
        assert 3.0 < bound.epsilon < math.log(0.01 * 15_000)
        assert bound.right < 0.01 and 0 < bound.wrong < 1e-3


def test_the_order_of_runs_does_not_matter() -> None:
    out, into = _worlds(1.0, 20_000, 5)
    assert lower_bound(np.sort(out), np.sort(into), delta=DELTA).epsilon == pytest.approx(
        lower_bound(out, into, delta=DELTA).epsilon, abs=0.8
    )
    assert not lower_bound(np.sort(out), np.sort(out), delta=DELTA).refutes(0.0)


def test_the_estimate_of_mu_covers_the_truth() -> None:
    covered = 0
    for seed in range(200):
        estimated = estimate(*_worlds(1.0, 500, seed), delta=DELTA)
        covered += estimated.low <= 1.0 <= estimated.high
    assert 180 <= covered <= 199  # 190 expected, of 200
    assert estimated.epsilon == pytest.approx(gdp.gaussian_epsilon(estimated.mu, DELTA))


@pytest.mark.parametrize(
    ("without", "with_record", "options", "reason"),
    [
        ([1.0], [1.0, 2.0], {}, "without has shape"),
        ([1.0, 2.0], [[1.0, 2.0]], {}, "with_record has shape"),
        ([1.0, math.nan], [1.0, 2.0], {}, "not a number"),
        ([1.0, 2.0], [1.0, 2.0], {"delta": 1.0}, "delta is 1.0"),
        ([1.0, 2.0], [1.0, 2.0], {"confidence": 1.0}, "confidence is 1.0"),
    ],
)
def test_invalid_arguments_are_refused_by_name(without: list, with_record: list, options: dict, reason: str) -> None:
    for function in (lower_bound, estimate):
        with pytest.raises(ConfigError, match=reason):
            function(without, with_record, **{"delta": DELTA, **options})


def test_an_estimate_needs_scores_that_vary() -> None:
    with pytest.raises(ConfigError, match="not all equal"):
        estimate([1.0, 1.0], [1.0, 1.0], delta=DELTA)


def _curve(mu: float):
    return lambda epsilons: [adaptive.gaussian_delta(mu, e) for e in epsilons]


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_a_true_claim_is_refuted_as_rarely_as_stated(mu: float) -> None:
    trials, top = 150, gdp.gaussian_epsilon(mu, 1e-3)
    wrong = sum(profile_test(*_worlds(mu, 1000, seed), _curve(mu), top=top).refuted for seed in range(trials))
    assert wrong <= stats.binom.isf(1e-4, trials, 0.05)


def test_the_profile_refutes_a_false_claim_where_the_bound_at_one_delta_does_not() -> None:
    """Noise too small by the square root of 2, and 1,000 runs: delta 1e-5 alone shows nothing."""
    by_profile, by_bound = 0, 0
    for seed in range(20):
        worlds = _worlds(1.5 * 2**0.5, 1000, seed)
        by_profile += profile_test(*worlds, _curve(1.5), top=gdp.gaussian_epsilon(1.5, 1e-3)).refuted
        by_bound += lower_bound(*worlds, delta=DELTA).refutes(gdp.gaussian_epsilon(1.5, DELTA))
    assert by_profile >= 16 and by_bound == 0


# Scores that are independent of the world: continuous, with many ties, constant.
NULLS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "fair bits": lambda rng, size: rng.integers(0, 2, size).astype(float),
    "few values": lambda rng, size: rng.poisson(0.5, size).astype(float),
    "constant": lambda rng, size: np.zeros(size),
    "mostly zero": lambda rng, size: (rng.random(size) < 1e-3).astype(float),
}


@pytest.mark.parametrize("kind", NULLS)
def test_null_scores_give_epsilon_0(kind: str) -> None:
    """Not even a claim of no privacy loss is refuted, and the bound is 0; except by chance once in 100."""
    above, refuted, trials = 0, 0, 100
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        out, into = NULLS[kind](rng, 600), NULLS[kind](rng, 600)
        above += lower_bound(out, into, delta=DELTA).epsilon > 0
        refuted += profile_test(out, into, lambda epsilons: np.zeros(len(epsilons)), top=1.0).refuted
    most = 0 if kind == "constant" else stats.binom.isf(1e-4, trials, 0.01)
    assert above <= most and refuted <= most


def test_scores_that_point_the_wrong_way_are_no_evidence() -> None:
    out, into = _worlds(3.0, 2000, 0)
    mu = 0.2
    verdict = judge(Scores(into, out, Gaussian(5.0), mu, 2000), delta=DELTA)
    assert not verdict.refuted and verdict.bound.epsilon == 0 and verdict.estimate.mu == verdict.estimate.high == 0
    assert judge(Scores(out, into, Gaussian(5.0), mu, 2000), delta=DELTA).refuted
    same = np.zeros(500)
    assert not judge(Scores(same, same, Gaussian(5.0), mu, 500), delta=DELTA).refuted


def test_false_alarms_are_rare_for_scores_with_heavy_tails() -> None:
    """Few steps at a low rate: scores are far from normal, and the interval must account for it."""
    met, trials, above = Exposure(0.02, 0.7, 4), 200, 0
    claimed = claimed_mu((met,))
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        drawn = rng.random((4, 2000)) < met.rate
        out, into = (log_ratio(rng.normal(b, 0.7), rate=0.02, sigma=0.7).sum(0) for b in (0 * drawn, drawn))
        above += estimate(out, into, delta=DELTA).low > claimed
    assert above <= stats.binom.isf(1e-4, trials, 0.025)


def test_no_alarm_if_canaries_were_rarely_sampled() -> None:
    """The interval of the matched filter is not valid there; the profile test is."""
    met, trials, above = Exposure(0.01, 0.4, 2), 100, 0
    mu, event = claimed_mu((met,)), PoissonGaussian(met.rate, met.sigma, met.steps)
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        drawn = rng.random((2, 50)) < met.rate
        worlds = (log_ratio(rng.normal(b, 0.4), rate=0.01, sigma=0.4).sum(0) for b in (0 * drawn, drawn))
        above += judge(Scores(*worlds, event, mu, 1.0), delta=DELTA).refuted
    assert above <= stats.binom.isf(1e-3, trials, 0.025)


def test_invalid_arguments_of_a_profile_test_are_refused() -> None:
    with pytest.raises(ConfigError, match="confidence"):
        profile_test([0, 1], [0, 1], _curve(1.0), top=1.0, confidence=1.0)
    with pytest.raises(ConfigError, match="without"):
        profile_test([0], [0, 1], _curve(1.0), top=1.0)


def test_the_verdict_states_the_claim() -> None:
    rng = np.random.default_rng(0)
    event = PoissonGaussian(0.2, 2.0, 10)
    mu = claimed_mu((Exposure(0.2, 2.0, 10),))
    verdict = judge(Scores(rng.normal(size=500), rng.normal(size=500), event, mu, 1000), delta=DELTA)
    assert not verdict.refuted and verdict.epsilon > 0 and verdict.claimed_mu == pytest.approx(0.33, abs=0.05)
