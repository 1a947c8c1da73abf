"""The bound on the best of a random number of trials: above the truth where that can be computed, below Rényi's bound."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.stats import chisquare, norm

from dpvision.core import accountant, adaptive
from dpvision.core.events import Budget, Composed, Gaussian, PoissonGaussian, Tuned, from_json, to_json
from dpvision.errors import ConfigError
from dpvision.private.training import stopping as tuning
from dpvision.private.training.stopping import Stopping, stopping
from dpvision.settings import gdp, quick
from dpvision.settings.figures import describe

STOPS = [
    stopping(mean, eta) for mean, eta in ((2.0, 1.0), (10.0, 1.0), (4.0, 0.0), (10.0, 0.0), (3.0, -0.5), (5.0, 2.5))
]
TERMS = 1000


def generating(stop: Stopping, x: np.ndarray) -> np.ndarray:
    """E[x^K], by its series: nothing of the closed form that the proof uses."""
    return np.polynomial.polynomial.polyval(x, [0.0, *stop.probabilities(TERMS)])


def true_deltas(best: np.ndarray, other: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """Of masses of intervals, so never above the truth; the worse of both ways."""
    return np.array(
        [max((p - math.exp(e) * q).clip(0).sum() for p, q in ((best, other), (other, best))) for e in epsilons]
    )


@cache
def gaussian_trials(stop: Stopping, sigma: float, *, upwards: bool) -> tuple[np.ndarray, np.ndarray]:
    """The best of K draws of N(0, sigma^2), and of N(1, sigma^2), where the highest or the lowest is the best."""
    edges = np.linspace(-9 * sigma, 1 + 9 * sigma, 801)
    below = [norm.cdf(edges, mean, sigma) for mean in (0.0, 1.0)]
    results = [generating(stop, p if upwards else 1 - p) for p in below]
    return np.abs(np.diff(results[0])), np.abs(np.diff(results[1]))


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_the_series_is_the_distribution(stop: Stopping) -> None:
    chances = np.array(stop.probabilities(TERMS))
    assert chances.sum() == pytest.approx(1, abs=1e-9)
    assert chances @ np.arange(1, TERMS + 1) == pytest.approx(stop.mean, rel=1e-7)
    drawn = Counter(min(stop.draw(), 8) for _ in range(4000))
    expected = [*chances[:7], chances[7:].sum()]
    assert chisquare([drawn[k] for k in range(1, 9)], 4000 * np.array(expected) / sum(expected)).pvalue > 1e-6


def test_geometric_and_logarithmic_by_their_own_formulas() -> None:
    assert Stopping(1.0, 0.25).probabilities(5) == pytest.approx([0.25 * 0.75**k for k in range(5)])
    assert Stopping(1.0, 0.25).mean == pytest.approx(4)
    ways = Stopping(0.0, 0.1), Stopping(1e-6, 0.1)
    assert ways[0].probabilities(6) == pytest.approx([0.9**k / (k * math.log(10)) for k in range(1, 7)])
    assert ways[0].probabilities(6) == pytest.approx(ways[1].probabilities(6), rel=1e-5)
    assert ways[0].mean == pytest.approx(ways[1].mean, rel=1e-5)


@pytest.mark.parametrize("stop", STOPS, ids=str)
@pytest.mark.parametrize("sigma", [0.7, 4.0])
def test_the_bound_is_above_the_truth_of_gaussian_trials(stop: Stopping, sigma: float) -> None:
    """A trial reveals its noisy number and is scored by it: delta of the whole, exactly, against the bound's epsilon."""
    mu = 1 / sigma
    for delta in (1e-2, 1e-4, 1e-6):
        stated = tuning.bound(
            stop,
            delta,
            epsilon_of=lambda d: gdp.gaussian_epsilon(mu, d),
            deltas_of=lambda at: [adaptive.gaussian_delta(mu, e) for e in at],
        )
        for upwards in (True, False):
            worlds = gaussian_trials(stop, sigma, upwards=upwards)
            assert true_deltas(*worlds, np.array([stated]))[0] <= delta


def test_the_bound_is_not_far_above_the_truth() -> None:
    """And it is no bound any more with a part of it left out, so the tests above can fail."""
    stop, sigma, delta = stopping(10.0, 1.0), 2.0, 1e-4
    event = Gaussian(sigma)
    stated = tuning.epsilon([event], stop, delta)
    epsilons = np.linspace(0, stated, 400)
    worlds = [gaussian_trials(stop, sigma, upwards=up) for up in (True, False)]
    truth = max(epsilons[np.argmax(true_deltas(*world, epsilons) <= delta)] for world in worlds)
    assert accountant.epsilon(event, delta) < truth < stated < 2 * truth
    assert accountant.epsilon(event, delta / stop.mean) < truth  # without the price of the order


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_randomized_response(stop: Stopping) -> None:
    """The best of K answers is 1 unless all are 0. With pure trials the bound is (2 + eta) epsilon (Liu and Talwar: 3)."""
    alone = 0.8
    right = 1 / (1 + math.exp(-alone))
    stated = tuning.bound(
        stop,
        1e-6,
        epsilon_of=lambda d: alone,
        deltas_of=lambda at: [max(0.0, right - math.exp(e) * (1 - right)) for e in at],
    )
    zeros = [float(generating(stop, np.array(p))) for p in (right, 1 - right)]
    truth = max(abs(math.log(zeros[0] / zeros[1])), abs(math.log((1 - zeros[0]) / (1 - zeros[1]))))
    assert truth <= stated <= (2 + stop.eta) * alone + 1e-12
    if stop.gamma <= 0.1:  # where a small place for `a` would not pay
        assert stated == pytest.approx((2 + stop.eta) * alone)


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_a_rare_breach_is_as_many_times_as_likely_as_there_are_trials(stop: Stopping) -> None:
    """A trial that reveals all with probability `rare`, and then is the best: no epsilon holds below 1 - E[(1 - rare)^K]."""
    rare = 1e-4
    truth = 1 - float(generating(stop, np.array(1 - rare)))
    assert rare < truth < 1.01 * stop.mean * rare

    def stated_epsilon(delta: float) -> float:
        return tuning.bound(
            stop, delta, epsilon_of=lambda d: 0.0 if d >= rare else math.inf, deltas_of=lambda at: [rare] * len(at)
        )

    assert stated_epsilon(0.99 * truth) == math.inf and stated_epsilon(1.03 * truth) < 0.01


@pytest.mark.parametrize("mean, eta", [(4.0, 1.0), (30.0, 1.0), (10.0, 0.0)])
def test_renyi_accounting_of_papernot_and_steinke_gives_more(mean: float, eta: float) -> None:
    event = PoissonGaussian(0.1, 3.0, 200)
    step = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(3.0))
    whole = RepeatAndSelectDpEvent(dp_accounting.SelfComposedDpEvent(step, 200), mean, eta)
    renyi = RdpAccountant([1 + x / 10 for x in range(5, 100)] + list(range(11, 64))).compose(whole).get_epsilon(1e-6)
    stated = tuning.epsilon([event], stopping(mean, eta), 1e-6)
    assert 0.7 * renyi < stated < renyi


def test_the_candidate_that_fares_worst_counts() -> None:
    stop, weak, strong = stopping(5.0), PoissonGaussian(0.2, 4.0, 50), PoissonGaussian(0.2, 8.0, 50)
    assert tuning.epsilon([strong, weak], stop, 1e-6) == tuning.epsilon([weak], stop, 1e-6)
    assert tuning.epsilon([strong, strong], stop, 1e-6) < tuning.epsilon([weak], stop, 1e-6)


@pytest.mark.parametrize("budget", [Budget(0.5, 1e-5), Budget(8.0, 1e-6)], ids=str)
def test_calibration_uses_the_budget_and_never_more(budget: Budget) -> None:
    candidates = [(0.5, 100), (0.5, 100), (0.25, 60)]
    event = tuning.calibrate_tuning(budget, candidates, stopping(8.0, 1.0))
    assert 0.995 * budget.epsilon < accountant.epsilon(event, budget.delta) <= budget.epsilon
    assert [(e.rate, e.steps) for e in event.trials] == candidates  # type: ignore[union-attr]
    tuning.require_proven(event)
    with pytest.raises(ConfigError, match="do not prove"):
        tuning.require_proven(replace(event, epsilon=event.epsilon * 0.999))


def exact_with_gaussian(event: Tuned, mu: float, epsilon: float) -> float:
    """delta of the point composed with mu-GDP: a mixture over the point's three losses."""

    def curve(e: float) -> float:  # also below 0
        return norm.cdf(-e / mu + mu / 2) - math.exp(e) * norm.cdf(-e / mu - mu / 2)

    right = 1 / (1 + math.exp(-event.epsilon))
    finite = right * curve(epsilon - event.epsilon) + (1 - right) * curve(epsilon + event.epsilon)
    return event.delta + (1 - event.delta) * finite


@pytest.mark.parametrize("sigma", [0.8, 3.0, 20.0])
def test_a_tuning_composes_with_what_else_is_on_the_ledger(sigma: float) -> None:
    event = Tuned((PoissonGaussian(0.1, 3.0, 200),), 1.0, 0.1, 1.7, 5e-6)
    both = Composed((event, Gaussian(sigma)))
    epsilons = [0.0, 1.0, 2.0, 4.0]
    exact = np.array([exact_with_gaussian(event, 1 / sigma, e) for e in epsilons])
    for by in (accountant, quick):
        result = by.profile(both, epsilons)
        assert (result >= exact - 1e-15).all() and (result <= 1.02 * exact + 1e-8).all()
        assert by.epsilon(both, 1e-5) == by.epsilon(Composed((Gaussian(sigma), event)), 1e-5)
        assert by.epsilon(both, 4e-6) > 500  # below the delta of the tuning nothing is proven
        assert by.epsilon(Composed((event, event)), 2e-5) <= 2 * 1.7 + 1e-9


def test_a_tuning_and_sampled_steps() -> None:
    event = tuning.calibrate_tuning(Budget(2.0, 1e-5), [(0.1, 100)], stopping(4.0))
    later = PoissonGaussian(0.05, 2.0, 100)
    alone = accountant.epsilon(event, 1e-5), accountant.epsilon(later, 1e-5)
    for by in (accountant, quick):
        assert max(alone) < by.epsilon(Composed((event, later)), 1e-5) < sum(alone) + 0.05
    assert quick.rdp_epsilon(event, 1e-5) == math.inf == gdp.central_limit_mu(event)  # neither is known of it


def test_the_event_is_plain_json() -> None:
    event = tuning.tuned([PoissonGaussian(0.1, 3.0, 20), Gaussian(9.0)], stopping(4.0, 1.0), 1e-6)
    assert from_json(to_json(event)) == event and "the best of a random number" in describe(event)
    for wrong in ({"eta": -1.0}, {"gamma": 1.0}, {"gamma": True}, {"epsilon": 0}, {"delta": 0}, {"trials": []}):
        with pytest.raises(ConfigError):
            from_json({**to_json(event), **wrong})
    with pytest.raises(ConfigError, match="trials"):
        from_json({**to_json(event), "trials": [to_json(event)]})


def test_numbers_of_trials_that_make_no_sense_are_refused() -> None:
    for mean, eta in ((1.0, 1.0), (0.0, 0.0), (5000.0, 1.0), (float("nan"), 1.0), (5.0, -1.0), (5.0, float("nan"))):
        with pytest.raises(ConfigError):
            stopping(mean, eta)
