"""The lower bound is rarely above the truth, near it with many runs, and zero without evidence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpvision.audit import bound
from dpvision.audit.bound import estimate, lower_bound
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
    assert bound.clopper_pearson_low(hits, 100, miss) == pytest.approx(exact.low, rel=1e-9, abs=1e-12)
    assert bound.clopper_pearson_high(hits, 100, miss) == pytest.approx(exact.high, rel=1e-9)


# At mu 3 and 300 runs and at delta 0.1 the bound is tightest; at mu 0 anything above 0 is a false alarm.
@pytest.mark.parametrize(
    ("mu", "delta", "runs"), [(0.0, 0.0, 400), (1.0, 0.1, 4000), (1.0, 1e-5, 400), (3.0, 0.5, 300)]
)
def test_false_alarms_are_as_rare_as_stated(mu: float, delta: float, runs: int) -> None:
    trials, truth = 250, gdp.gaussian_epsilon(mu, delta)
    above = sum(lower_bound(*_worlds(mu, runs, seed), delta=delta).refutes(truth) for seed in range(trials))
    assert above <= stats.binom.isf(1e-4, trials, 0.05)


def test_the_false_alarm_check_has_teeth() -> None:
    """The threshold that is best on all runs, tested on the same runs without correction, is above the truth often."""
    trials, truth, above = 200, gdp.gaussian_epsilon(1.0, 0.1), 0
    for seed in range(trials):
        out, into = _worlds(1.0, 4000, seed)
        above += bound._best_threshold(out, into, 0.1, 0.25)[1] > truth
    assert above > stats.binom.isf(1e-4, trials, 0.05)


def test_many_runs_come_near_the_truth() -> None:
    truth = gdp.gaussian_epsilon(1.0, 0.05)
    found = lower_bound(*_worlds(1.0, 400_000, 1), delta=0.05)
    assert 0.93 * truth < found.epsilon <= truth
    assert found.runs == 800_000 and found.confidence == 0.95 and found.delta == 0.05


def test_more_confidence_is_a_lower_bound() -> None:
    worlds = _worlds(1.0, 20_000, 2)
    sure, less = (lower_bound(*worlds, delta=DELTA, confidence=c) for c in (0.999, 0.9))
    assert 0 < sure.epsilon < less.epsilon


def test_no_evidence_is_zero() -> None:
    """Not even where the score points the wrong way, is constant, or there are two runs."""
    out, into = _worlds(2.0, 5000, 3)
    assert lower_bound(into, out, delta=DELTA).epsilon == 0
    assert estimate(into, out, delta=DELTA).mu == estimate(into, out, delta=DELTA).epsilon == 0
    assert lower_bound(np.zeros(50), np.zeros(50), delta=DELTA).epsilon == 0
    assert lower_bound([0.0, 0.0], [1.0, 1.0], delta=DELTA).epsilon == 0


def test_each_side_is_found() -> None:
    """A score that now and then proves the record present, and one that now and then proves it absent."""
    rng = np.random.default_rng(4)
    coin, rare = np.zeros(20_000), rng.random(20_000) < 0.01
    present, absent = (
        lower_bound(coin, np.where(rare, np.inf, 0), delta=DELTA),
        lower_bound(np.where(rare, -np.inf, 0), coin, delta=DELTA),
    )
    assert (present.guess, absent.guess) == ("with", "without")
    assert present.threshold == math.inf and absent.threshold == -math.inf
    for found in (present, absent):
        assert 3.0 < found.epsilon < math.log(0.01 * 15_000)
        assert found.right < 0.01 and 0 < found.wrong < 1e-3


def test_the_order_of_runs_does_not_matter() -> None:
    out, into = _worlds(1.0, 20_000, 5)
    assert lower_bound(np.sort(out), np.sort(into), delta=DELTA).epsilon == pytest.approx(
        lower_bound(out, into, delta=DELTA).epsilon, abs=0.8
    )
    assert not lower_bound(np.sort(out), np.sort(out), delta=DELTA).refutes(0.0)


def test_the_estimate_of_mu_covers_the_truth() -> None:
    covered = 0
    for seed in range(200):
        found = estimate(*_worlds(1.0, 500, seed), delta=DELTA)
        covered += found.low <= 1.0 <= found.high
    assert 180 <= covered <= 199  # 190 expected, of 200
    assert found.epsilon == pytest.approx(gdp.gaussian_epsilon(found.mu, DELTA))


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
def test_what_can_not_be_used_is_named(without: list, with_record: list, options: dict, reason: str) -> None:
    for by in (lower_bound, estimate):
        with pytest.raises(ConfigError, match=reason):
            by(without, with_record, **{"delta": DELTA, **options})


def test_an_estimate_needs_a_spread() -> None:
    with pytest.raises(ConfigError, match="not all equal"):
        estimate([1.0, 1.0], [1.0, 1.0], delta=DELTA)
