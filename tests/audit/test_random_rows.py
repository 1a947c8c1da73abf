"""Delta averaged over a random number of releases: above the exact average, and below the worst number."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from dpvision.audit import random_rows
from dpvision.core import accountant
from dpvision.core.events import Budget, PoissonGaussian
from dpvision.settings import calibrate

RATE, SIGMA, ROWS, CHANCE = 0.2, 1.5, 12, 0.5


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_it_is_above_the_average_and_near_it(epsilon: float) -> None:
    exact = sum(
        binom.pmf(r, ROWS, CHANCE) * accountant.delta(PoissonGaussian(RATE, SIGMA, r), epsilon)
        for r in range(1, ROWS + 1)
    )
    found = random_rows.delta(rate=RATE, sigma=SIGMA, rows=ROWS, chance=CHANCE, epsilon=epsilon)
    assert exact <= found <= 2 * exact
    assert found < accountant.delta(PoissonGaussian(RATE, SIGMA, ROWS), epsilon)


def test_a_coin_that_always_falls_is_a_fixed_number() -> None:
    fixed = accountant.delta(PoissonGaussian(RATE, SIGMA, ROWS), 1.0)
    found = random_rows.delta(rate=RATE, sigma=SIGMA, rows=ROWS, chance=1.0, epsilon=1.0)
    assert found == pytest.approx(fixed, abs=2e-9)


def test_sigma_keeps_the_budget_and_wastes_little() -> None:
    budget = Budget(2.0, 1e-5)
    found = random_rows.sigma(budget, rate=RATE, rows=ROWS, chance=CHANCE)
    settings = {"rate": RATE, "rows": ROWS, "chance": CHANCE, "epsilon": 2.0, "beyond": 1e-8}
    assert random_rows.delta(sigma=found, **settings) <= budget.delta
    assert random_rows.delta(sigma=found * 0.97, **settings) > budget.delta
    # Between the noise for the expected number and for the largest.
    assert calibrate.sigma(budget, rate=RATE, steps=6) < found < calibrate.sigma(budget, rate=RATE, steps=ROWS)
