"""The simulated attack equals the attack on the whole mechanism; it refutes the paper's account and not the sound one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binom

from dpvision.audit import PAPER, Attack, Setting, attack, lower_bound, paper_sigma, scheduled, setting, sound_sigma
from dpvision.audit.hierarchical import sound_delta
from dpvision.core import accountant
from dpvision.core.events import Budget, ClassScheduled, PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings import calibrate

BUDGET = Budget(1.0, 1e-5)
SMALL = Setting(rows=30, chance=0.3, rate=0.25, others=12, balance=1.5)
CLASSES, SIGMA, RUNS = 4, 1.2, 1500


def _direct(attacked: Attack, *, present: bool, seed: int, one_draw: bool = True) -> np.ndarray:
    """Scores of the attack on the mechanism itself: every record, every coordinate, every draw.

    Features: the target has its own direction, the last; all others lie anywhere in the first ones. With
    `one_draw` false, each record has its own class draw: the sampling that the paper's account describes.
    """
    at, rng = attacked.setting, np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), at.others)
    features = rng.normal(size=(labels.size, 6))
    features[:, -1] = 0
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    if present:
        labels, features = np.append(labels, 0), np.vstack([features, np.eye(6)[-1]])
    one_hot, mixed = np.eye(CLASSES)[labels], 5.0
    spread = attacked.sigma * np.sqrt(at.balance**2 + 1)
    scores = []
    for _ in range(RUNS):
        drawn = rng.random((at.rows, CLASSES)) < at.chance
        drawn = drawn[:, labels] if one_draw else rng.random((at.rows, labels.size)) < at.chance
        taken = drawn & (rng.random((at.rows, labels.size)) < at.rate)
        x = taken @ features / mixed + rng.normal(0, spread / at.balance / mixed, (at.rows, 6))
        y = taken @ one_hot / mixed + rng.normal(0, spread / mixed, (at.rows, CLASSES))
        scores.append(attacked.score(mixed * x[:, -1], mixed * y[:, 0]))
    return np.array(scores)


@pytest.mark.parametrize("at", [SMALL, replace(SMALL, rows=8, chance=1.0), replace(SMALL, rate=1.0, balance=0.7)])
def test_the_simulation_equals_the_attack_on_the_whole_mechanism(at: Setting) -> None:
    attacked = attack(at, SIGMA)
    simulated = attacked.scores(20_000, np.random.default_rng(1))
    direct = [_direct(attacked, present=present, seed=seed) for seed, present in enumerate((False, True))]
    for ours, whole in zip(simulated, direct, strict=True):
        assert stats.ks_2samp(ours, whole).pvalue > 1e-4
    assert stats.ks_2samp(simulated[0], direct[1]).pvalue < 1e-8, (
        "the two worlds must differ for this test to have power"
    )


def test_the_comparison_detects_another_mechanism() -> None:
    simulated = attack(SMALL, SIGMA)
    without, with_record = simulated.scores(20_000, np.random.default_rng(1))
    poisson = [_direct(simulated, present=present, seed=5, one_draw=False) for present in (False, True)]
    assert stats.ks_2samp(without, poisson[0]).pvalue < 1e-6
    assert stats.ks_2samp(with_record, poisson[1]).pvalue < 1e-6


@pytest.mark.parametrize("sigma", [0.3, 1.2, 6.0])
def test_scores_are_log_ratios_rounded_to_half_a_step(sigma: float) -> None:
    simulated = attack(PAPER, sigma)
    for law in (simulated.without, simulated.with_record):
        assert law.sum() == pytest.approx(1, abs=1e-12) and (law >= 0).all()
    certain = simulated.without > 1e-12
    certain[[0, -1]] = False  # where scores are limited
    ratio = np.log(simulated.with_record[certain] / simulated.without[certain])
    assert np.abs(ratio / simulated.step - simulated.values[certain]).max() < 0.51
    assert certain.sum() > 30


def test_the_computed_bound_lies_between_the_sampled_one_and_the_account() -> None:
    """At a delta for which few runs suffice, and with a public schedule."""
    at, delta = Setting(rows=40, chance=1.0, rate=0.3, others=1), 0.01
    simulated = attack(at, 1.5)
    sampled = lower_bound(*simulated.scores(100_000, np.random.default_rng(2)), delta=delta)
    upper = accountant.epsilon(ClassScheduled(1.5, (at.rate,), (at.rows,)), delta)
    assert 0.7 * simulated.epsilon(delta) < sampled.epsilon <= simulated.epsilon(delta) < upper


def test_without_other_records_the_attack_nearly_reaches_the_account() -> None:
    """If the target is alone in its class, u and v are everything, and the attack is nearly tight."""
    at = Setting(rows=200, chance=1.0, rate=0.1, others=0)
    upper = accountant.epsilon(ClassScheduled(2.0, (at.rate,), (at.rows,)), 1e-4)
    assert 0.97 * upper < attack(at, 2.0).epsilon(1e-4) < upper


def test_the_target_alone_in_its_class_is_sampled_at_the_product_of_the_rates() -> None:
    """There the paper's account of a row holds: nothing else reveals the class draw."""
    alone = replace(PAPER, others=0)
    assert attack(alone, paper_sigma(PAPER, BUDGET)).epsilon(BUDGET.delta) < 1.02


def test_the_papers_account_is_refuted() -> None:
    sigma = paper_sigma(PAPER, BUDGET)
    assert sigma == pytest.approx(1.2602, abs=1e-4)
    simulated = attack(PAPER, sigma)
    assert simulated.epsilon(BUDGET.delta) > 4.5
    assert lower_bound(*simulated.scores(8000, np.random.default_rng(3)), delta=BUDGET.delta, confidence=0.99).refutes(
        1.0
    )


def test_the_sound_account_is_not_refuted_with_a_public_schedule() -> None:
    at = scheduled(PAPER)
    assert (at.rows, at.chance) == (1500, 1.0)
    sigma = sound_sigma(at, BUDGET)
    simulated = attack(at, sigma)
    assert 0.8 < simulated.epsilon(BUDGET.delta) <= 1.0
    assert not lower_bound(*simulated.scores(20_000, np.random.default_rng(4)), delta=BUDGET.delta).refutes(1.0)
    # The same attack refutes the same claim with a third of that noise, so it has power.
    weak = attack(at, sigma / 3).scores(20_000, np.random.default_rng(4))
    assert lower_bound(*weak, delta=BUDGET.delta).refutes(1.0)


@pytest.mark.slow
def test_the_sound_account_is_not_refuted_with_secret_class_draws() -> None:
    sigma = sound_sigma(PAPER, BUDGET)
    assert 4.9 < sigma / paper_sigma(PAPER, BUDGET) < 5.1
    assert attack(PAPER, sigma).epsilon(BUDGET.delta) <= 1.0


def test_the_papers_setting() -> None:
    assert pytest.approx(0.03) == PAPER.chance
    assert pytest.approx(64 / 1500) == PAPER.rate
    assert PAPER.others == 499 and PAPER.rows == 50_000
    with pytest.raises(ConfigError, match="rate"):
        setting(records=50_000, classes=100, mixed=64, drawn=0.1, rows=50_000)


SECRET = Setting(rows=12, chance=0.5, rate=0.2, others=0)  # secret class draws


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_sound_delta_is_above_the_exact_average_and_near_it(epsilon: float) -> None:
    exact = sum(
        binom.pmf(r, SECRET.rows, SECRET.chance) * accountant.delta(PoissonGaussian(SECRET.rate, 1.5, r), epsilon)
        for r in range(1, SECRET.rows + 1)
    )
    delta = sound_delta(SECRET, 1.5, epsilon=epsilon)
    assert exact <= delta <= 2 * exact
    assert delta < accountant.delta(PoissonGaussian(SECRET.rate, 1.5, SECRET.rows), epsilon)


def test_a_class_that_is_always_drawn_has_a_fixed_number_of_rows() -> None:
    fixed = accountant.delta(PoissonGaussian(SECRET.rate, 1.5, SECRET.rows), 1.0)
    delta = sound_delta(replace(SECRET, chance=1.0), 1.5, epsilon=1.0)
    assert delta == pytest.approx(fixed, abs=2e-9)


def test_the_sound_sigma_keeps_the_budget_and_wastes_little() -> None:
    budget = Budget(2.0, 1e-5)
    sigma = sound_sigma(SECRET, budget)
    assert sound_delta(SECRET, sigma, epsilon=2.0, beyond=1e-8) <= budget.delta
    assert sound_delta(SECRET, sigma * 0.97, epsilon=2.0, beyond=1e-8) > budget.delta
    # Between the noise for the expected number of rows and for the largest.
    assert (
        calibrate.sigma(budget, rate=SECRET.rate, steps=6)
        < sigma
        < calibrate.sigma(budget, rate=SECRET.rate, steps=SECRET.rows)
    )
