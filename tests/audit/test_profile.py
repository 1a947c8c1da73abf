"""The profile test: rarely wrong about a true claim, never from null scores, and right about false ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpvision.audit.bound import estimate, lower_bound
from dpvision.audit.canaries import Scores, claimed_mu, log_ratio
from dpvision.audit.profile import profile_test, verdict
from dpvision.core import adaptive
from dpvision.core.events import Exposure, Gaussian, PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings import gdp

DELTA = 1e-5


def _curve(mu: float):
    return lambda epsilons: [adaptive.gaussian_delta(mu, e) for e in epsilons]


def _worlds(mu: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, runs), rng.normal(mu, 1, runs)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_a_true_claim_is_refuted_as_rarely_as_stated(mu: float) -> None:
    trials, top = 150, gdp.gaussian_epsilon(mu, 1e-3)
    wrong = sum(profile_test(*_worlds(mu, 1000, seed), _curve(mu), top=top).refuted for seed in range(trials))
    assert wrong <= stats.binom.isf(1e-4, trials, 0.05)


def test_a_false_claim_is_refuted_where_the_bound_at_one_delta_is_blind() -> None:
    """The square root of 2 in the noise, 1,000 runs: 1e-5 alone shows nothing."""
    found, alone = 0, 0
    for seed in range(20):
        worlds = _worlds(1.5 * 2**0.5, 1000, seed)
        found += profile_test(*worlds, _curve(1.5), top=gdp.gaussian_epsilon(1.5, 1e-3)).refuted
        alone += lower_bound(*worlds, delta=DELTA).refutes(gdp.gaussian_epsilon(1.5, DELTA))
    assert found >= 16 and alone == 0


# Draws that have nothing to do with the world: continuous, with many ties, all the same.
NULLS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "coins": lambda rng, size: rng.integers(0, 2, size).astype(float),
    "few values": lambda rng, size: rng.poisson(0.5, size).astype(float),
    "all the same": lambda rng, size: np.zeros(size),
    "mostly one": lambda rng, size: (rng.random(size) < 1e-3).astype(float),
}


@pytest.mark.parametrize("kind", NULLS)
def test_null_scores_give_epsilon_0(kind: str) -> None:
    """Not even the true claim of no privacy loss at all is refuted, and the bound is 0: by chance once in 100."""
    above, refuted, trials = 0, 0, 100
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        out, into = NULLS[kind](rng, 600), NULLS[kind](rng, 600)
        above += lower_bound(out, into, delta=DELTA).epsilon > 0
        refuted += profile_test(out, into, lambda epsilons: np.zeros(len(epsilons)), top=1.0).refuted
    most = 0 if kind == "all the same" else stats.binom.isf(1e-4, trials, 0.01)
    assert above <= most and refuted <= most


def test_scores_that_point_the_wrong_way_are_no_evidence() -> None:
    out, into = _worlds(3.0, 2000, 0)
    mu = 0.2
    found = verdict(Scores(into, out, Gaussian(5.0), mu, 2000), delta=DELTA)
    assert not found.refuted and found.bound.epsilon == 0 and found.estimate.mu == found.estimate.high == 0
    assert verdict(Scores(out, into, Gaussian(5.0), mu, 2000), delta=DELTA).refuted
    same = np.zeros(500)
    assert not verdict(Scores(same, same, Gaussian(5.0), mu, 500), delta=DELTA).refuted


def test_the_alarm_is_rare_for_scores_with_heavy_tails() -> None:
    """Few steps at a low rate: scores are far from normal, and the interval must know."""
    met, trials, above = Exposure(0.02, 0.7, 4), 200, 0
    claimed = claimed_mu((met,))
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        drawn = rng.random((4, 2000)) < met.rate
        out, into = (log_ratio(rng.normal(b, 0.7), rate=0.02, sigma=0.7).sum(0) for b in (0 * drawn, drawn))
        above += estimate(out, into, delta=DELTA).low > claimed
    assert above <= stats.binom.isf(1e-4, trials, 0.025)


def test_no_alarm_where_canaries_were_hardly_drawn() -> None:
    """The interval of the matched filter does not hold there; the profile test does."""
    met, trials, above = Exposure(0.01, 0.4, 2), 100, 0
    mu, event = claimed_mu((met,)), PoissonGaussian(met.rate, met.sigma, met.steps)
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        drawn = rng.random((2, 50)) < met.rate
        worlds = (log_ratio(rng.normal(b, 0.4), rate=0.01, sigma=0.4).sum(0) for b in (0 * drawn, drawn))
        above += verdict(Scores(*worlds, event, mu, 1.0), delta=DELTA).refuted
    assert above <= stats.binom.isf(1e-3, trials, 0.025)


def test_it_asks_for_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="confidence"):
        profile_test([0, 1], [0, 1], _curve(1.0), top=1.0, confidence=1.0)
    with pytest.raises(ConfigError, match="without"):
        profile_test([0], [0, 1], _curve(1.0), top=1.0)


def test_the_verdict_tells_what_was_claimed() -> None:
    rng = np.random.default_rng(0)
    event = PoissonGaussian(0.2, 2.0, 10)
    mu = claimed_mu((Exposure(0.2, 2.0, 10),))
    found = verdict(Scores(rng.normal(size=500), rng.normal(size=500), event, mu, 1000), delta=DELTA)
    assert not found.refuted and found.epsilon > 0 and found.claimed_mu == pytest.approx(0.33, abs=0.05)
