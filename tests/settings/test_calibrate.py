"""Calibration uses the budget up and never exceeds it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dpvision.core import accountant
from dpvision.core.events import Budget, Composed, Gaussian, PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings import calibrate, quick
from dpvision.settings.plan import plan

RATE = 4096 / 50_000


def test_the_known_sigma_is_found_fast() -> None:
    accountant.epsilon(Gaussian(1.0), 1e-5)  # the import of dp-accounting is not the search
    start = time.process_time()  # of the processor: the machine may have much else to do
    sigma = calibrate.sigma(Budget(1.0, 1e-5), rate=RATE, steps=875)
    assert time.process_time() - start < 2.0
    assert sigma == pytest.approx(9.13, abs=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_never_over_and_nearly_all_of_the_budget(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(3):
        budget = Budget(float(10 ** rng.uniform(-0.7, 1)), float(10 ** rng.uniform(-8, -4)))
        rate, steps = float(10 ** rng.uniform(-2.5, -0.05)), int(10 ** rng.uniform(0, 3.3))
        sigma = calibrate.sigma(budget, rate=rate, steps=steps)
        for by in (accountant, quick):
            spent = by.epsilon(PoissonGaussian(rate, sigma, steps), budget.delta)
            assert spent <= budget.epsilon
        if sigma > calibrate.MIN_SIGMA:
            assert spent >= 0.99 * budget.epsilon
        most = calibrate.steps(budget, rate=rate, sigma=sigma)
        assert steps <= most
        assert accountant.epsilon(PoissonGaussian(rate, sigma, most), budget.delta) <= budget.epsilon
        largest = calibrate.rate(budget, sigma=sigma, steps=steps)
        assert largest >= rate * (1 - 1e-3)
        assert accountant.epsilon(PoissonGaussian(largest, sigma, steps), budget.delta) <= budget.epsilon


def test_what_was_done_before_counts() -> None:
    budget = Budget(3.0, 1e-5)
    before = (PoissonGaussian(0.1, 4.0, 100),)
    sigma = calibrate.sigma(budget, rate=0.1, steps=200, before=before)
    assert sigma > calibrate.sigma(budget, rate=0.1, steps=200)
    total = accountant.epsilon(Composed((*before, PoissonGaussian(0.1, sigma, 200))), 1e-5)
    assert 0.99 * 3.0 <= total <= 3.0


def test_no_room_is_an_error() -> None:
    with pytest.raises(ConfigError, match="have already spent"):
        calibrate.sigma(Budget(1.0, 1e-5), rate=0.1, steps=10, before=(Gaussian(0.5),))
    with pytest.raises(ConfigError, match="even one step"):
        calibrate.steps(Budget(0.1, 1e-5), rate=1.0, sigma=1.0)


def test_plan_solves_for_each_unknown() -> None:
    known = {"n": 50_000, "batch": 4096, "steps": 875, "epsilon": 1.0, "sigma": 9.13}
    by_epsilon = plan(**{k: v for k, v in known.items() if k != "sigma"})
    assert by_epsilon["sigma"] == pytest.approx(9.13, abs=0.02) and by_epsilon["epsilon"] <= 1.0
    by_sigma = plan(**{k: v for k, v in known.items() if k != "epsilon"})
    assert by_sigma["epsilon"] == pytest.approx(0.9987, abs=0.002)
    assert abs(plan(**{k: v for k, v in known.items() if k != "steps"})["steps"] - 875) <= 3
    assert abs(plan(**{k: v for k, v in known.items() if k != "batch"})["batch"] - 4096) <= 8
    assert {"sigma", "epsilon", "delta", "sample_rate", "steps", "mu"} <= set(by_epsilon)
    confirmed = plan(**{k: v for k, v in known.items() if k != "epsilon"}, confirm=True)
    assert confirmed["epsilon"] <= confirmed["quick_epsilon"] <= confirmed["rdp_epsilon"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0, "epsilon": 1.0},
        {"n": 100},
        {"n": 100, "batch": 101, "epsilon": 1.0},
        {"n": 100, "batch": 0, "epsilon": 1.0},
        {"n": 100, "steps": 0, "epsilon": 1.0},
        {"n": 100, "epsilon": -1.0},
        {"n": 100, "epsilon": 1.0, "delta": 2.0},
        {"n": 100, "sigma": -1.0},
        {"n": 100, "batch": 10, "steps": 10, "sigma": 0.0},
        {"n": 100, "batch": 10, "steps": 10, "sigma": 1e200},
        {"n": 100, "batch": 10, "steps": 10, "sigma": 1e-200},
        {"n": 100, "batch": 10, "steps": 10**9, "sigma": 5.0},
        {"n": 100, "batch": 10, "steps": 10, "epsilon": 1.0, "sigma": 1.0},
        {"n": 100, "steps": 10**6, "epsilon": 0.1, "sigma": 0.5},
    ],
)
def test_plan_refuses_what_makes_no_sense(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        plan(**wrong)
