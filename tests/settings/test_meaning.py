"""What epsilon means: bounds on attacks next to the best attacks, simulated; replaced units; exact measures."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpvision.core import accountant, adaptive
from dpvision.core.events import Capped, ClassScheduled, Composed, Event, Gaussian, PoissonGaussian, Tuned
from dpvision.errors import ConfigError
from dpvision.settings import gdp, quick
from dpvision.settings.meaning import attack_success, gaussian_mu, replace_one_epsilon
from dpvision.settings.plan import plan
from tests.system.docs.examples import call

CANDIDATES, BLOCKS, TRIALS = 2000, 300, 500
WITH_ONE = [Gaussian(2.0), Gaussian(1.0), Gaussian(2.0, 8)]
SAMPLED = [PoissonGaussian(0.2, 1.0, 20), PoissonGaussian(0.5, 2.0, 30), PoissonGaussian(0.05, 0.7, 40)]
PRIORS = (0.01, 0.1, 0.5)


def scores(seen: np.ndarray, rate: float, sigma: float) -> np.ndarray:
    """The logarithm of the likelihood ratio of a candidate, from its direction in each noisy sum, in units of noise."""
    shift = seen / sigma - 1 / (2 * sigma**2)
    if rate == 1:
        return np.asarray(shift.sum(-1))
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + shift).sum(-1))


def attack(rate: float, sigma: float, steps: int, prior: float, *, seed: int) -> tuple[float, float]:
    """Success of the best attack that names a share `prior` of the candidates, and its standard error.

    The attacker knows all other records and the gradient of each candidate, which are orthogonal and of full length.
    The direction of a candidate that is not the record has noise only, so the likelihood ratio ranks them best.
    """
    rng, named, results = np.random.default_rng(seed), round(prior * CANDIDATES), []
    for _ in range(BLOCKS):
        others = scores(rng.standard_normal((CANDIDATES - 1, steps)), rate, sigma)
        threshold = np.partition(others, -named)[-named]  # the record is named if its score is above this
        part = rng.random((TRIALS, steps)) < rate
        mine = scores(part / sigma + rng.standard_normal((TRIALS, steps)), rate, sigma)
        results.append(float((mine > threshold).mean()))
    return float(np.mean(results)), float(np.std(results) / math.sqrt(BLOCKS))


@pytest.mark.parametrize("event", [*WITH_ONE, *SAMPLED], ids=str)
def test_the_best_reconstruction_comes_within_5_percent_of_its_bound_and_never_above(event: Any) -> None:
    rate = getattr(event, "rate", 1.0)
    steps = getattr(event, "steps", getattr(event, "count", 1))
    for prior, bound in zip(PRIORS, attack_success(event, PRIORS).tolist(), strict=True):
        success, error = attack(rate, event.sigma, steps, prior, seed=7)
        assert error < 0.02 * success, (prior, success, error)
        assert success - 2 * error <= bound <= 1.05 * success, (prior, success, error, bound)


@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0, 5.0])
def test_the_bound_is_never_below_what_is_possible_with_the_gaussian_mechanism(mu: float) -> None:
    chances = np.array([1e-4, 1e-3, 0.01, 0.1, 0.5, 0.99])
    exact = norm.cdf(norm.ppf(chances) + mu)
    for by in (accountant, quick):
        bound = attack_success(Gaussian(1 / mu), chances.tolist(), by=by)
        assert (exact <= bound).all() and (bound <= 1.01 * exact).all()


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("sigma", [0.6, 1.0, 3.0])
def test_the_bound_is_never_below_what_is_possible_in_one_sampled_step(rate: float, sigma: float) -> None:
    """The exact success of the attack that thresholds the one number it sees."""
    chances = np.array([1e-3, 0.01, 0.1, 0.5])
    threshold = norm.isf(chances) * sigma
    exact = (1 - rate) * chances + rate * norm.sf((threshold - 1) / sigma)
    bound = attack_success(PoissonGaussian(rate, sigma, 1), chances.tolist())
    assert (exact <= bound).all()


def test_a_chance_is_never_more_than_certain_and_never_less_than_guessing() -> None:
    assert attack_success(Gaussian(1e4), [0.0, 0.3, 1.0]).tolist() == pytest.approx([0.0, 0.3, 1.0], abs=1e-3)
    assert attack_success(Gaussian(0.05), [0.0, 0.01, 1.0]).tolist()[1:] == [1.0, 1.0]


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 8.0])
def test_replacing_a_unit_doubles_mu_of_a_gaussian_mechanism(sigma: float) -> None:
    exact = gdp.gaussian_epsilon(2 / sigma, 1e-5)
    assert exact <= replace_one_epsilon(Gaussian(sigma), 1e-5) <= 1.001 * exact
    assert replace_one_epsilon(Gaussian(2 * sigma, 4), 1e-5) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.1, 2.0, 100), (0.5, 3.0, 50), (0.05, 0.8, 100)])
def test_replacing_a_unit_is_bounded_by_more_than_a_bad_pair(rate: float, sigma: float, steps: int) -> None:
    """A unit whose gradient changes its sign: its loss is simulated, and delta at the bound is not exceeded."""
    event, delta = PoissonGaussian(rate, sigma, steps), 1e-3
    bound = replace_one_epsilon(event, delta)
    assert accountant.epsilon(event, delta) < bound < math.inf
    rng = np.random.default_rng(3)
    seen = (rng.random((100_000, steps)) < rate) / sigma + rng.standard_normal((100_000, steps))
    loss = scores(seen, rate, sigma) - scores(-seen, rate, sigma)
    shown = np.clip(1 - np.exp(bound - loss), 0, None)
    assert shown.mean() - 3 * shown.std() / math.sqrt(len(shown)) <= delta
    added = np.clip(1 - np.exp(accountant.epsilon(event, delta) - loss), 0, None)
    assert added.mean() > 3 * delta, "epsilon for an added unit does not hold for a replaced one"


def test_a_replacement_without_a_bound_is_infinite() -> None:
    trial = PoissonGaussian(0.1, 2.0, 20)
    for event in (Capped(trial, 3.0, 1e-5), Tuned((trial,), 1.0, 0.5, 3.0, 1e-5), Gaussian(0.02)):
        assert replace_one_epsilon(event, 1e-5) >= accountant.MAX_LOSS


@pytest.mark.parametrize(
    ("event", "mu"),
    [
        (Gaussian(2.0), 0.5),
        (Gaussian(2.0, 4), 1.0),
        (PoissonGaussian(1.0, 4.0, 16), 1.0),
        (Composed((Gaussian(2.0), PoissonGaussian(1.0, 4.0, 12))), 1.0),
        (ClassScheduled(2.0, (1.0, 1.0), (1, 4)), 1.0),
        (PoissonGaussian(0.5, 4.0, 16), None),
        (Composed((Gaussian(2.0), PoissonGaussian(0.5, 4.0, 12))), None),
        (adaptive.compose((Gaussian(2.0), Gaussian(2.0)), 1e-5), None),
        (Capped(Gaussian(2.0), 3.0, 1e-5), None),
    ],
)
def test_mu_is_stated_where_it_is_exact(event: Event, mu: float | None) -> None:
    assert gaussian_mu(event) == (None if mu is None else pytest.approx(mu))


@pytest.mark.parametrize(("success", "fpr", "n"), [(0.05, 0.01, 50_000), (0.2, 0.05, 1437), (0.0102, 0.01, 800)])
@pytest.mark.parametrize("confirm", [False, True])
def test_plan_solves_for_the_largest_epsilon_that_limits_an_attack(
    success: float, fpr: float, n: int, confirm: bool
) -> None:
    answer = plan(n=n, attack_success=success, at_fpr=fpr, confirm=confirm)
    event = PoissonGaussian(answer["sample_rate"], answer["sigma"], answer["steps"])
    assert float(attack_success(event, [fpr])[0]) <= success * 1.001
    assert answer["attack_success"] <= success and answer["solved_for"] == "epsilon"
    assert answer["epsilon"] == float(
        f"{answer['epsilon']:.2g}" if answer["epsilon"] < 0.1 else f"{answer['epsilon']:.2f}"
    )
    trained = plan(n=n, epsilon=answer["epsilon"])  # what a run with this epsilon does
    assert trained["sigma"] == pytest.approx(answer["sigma"], rel=1e-4)
    more = plan(n=n, epsilon=answer["epsilon"] * 1.03)
    louder = PoissonGaussian(more["sample_rate"], more["sigma"], more["steps"])
    assert float(attack_success(louder, [fpr])[0]) > success


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"attack_success": 0.005}, "guessing succeeds"),
        ({"attack_success": 1.0}, "between 0 and 1"),
        ({"attack_success": math.nan}, "between 0 and 1"),
        ({"attack_success": 0.05, "epsilon": 3.0}, "leave --epsilon"),
        ({"attack_success": 0.05, "batch": 0}, "batch is 0"),
        ({"attack_success": 0.05, "delta": 0.5}, "no epsilon"),
    ],
)
def test_attacks_that_cannot_be_planned_for_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan(n=1000, **given)


def test_the_verb_takes_an_attack(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--n", "1437", "--attack-success", "0.05", "--at-fpr", "0.01", "--json"]
    assert call(words, monkeypatch) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["attack_success"] <= 0.05 and 2 < answer["epsilon"] < 4
