"""Full-batch descent: a hundred releases that every record is in, against the published noise of linear probing."""

from __future__ import annotations

import pytest

from dpvision.core import accountant
from dpvision.core.events import Budget, Gaussian
from dpvision.settings import calibrate, gdp

DELTA = 1e-5
STEPS = 100
# DP-RandP (Tang et al. 2023), table 15: (epsilon named, sigma), and the epsilon that it has, rounded up. None is above.
TABLE = [
    (0.1, 339, 0.0899),
    (0.2, 171, 0.1899),
    (0.5, 72, 0.4873),
    (1.0, 38, 0.9801),
    (2.0, 21, 1.8877),
    (3.0, 14, 2.9773),
    (4.0, 11, 3.9216),
    (6.0, 8, 5.6804),
    (8.0, 7, 6.6532),
]


@pytest.mark.parametrize(("named", "sigma", "expected"), TABLE)
def test_the_published_noise_is_enough(named: float, sigma: int, expected: float) -> None:
    epsilon = accountant.epsilon(Gaussian(float(sigma), STEPS), DELTA)
    assert epsilon <= named
    assert expected - 2e-4 <= epsilon <= expected
    exact = gdp.gaussian_epsilon(STEPS**0.5 / sigma, DELTA)  # a hundred Gaussians are one, of mu = 10 / sigma
    assert exact * (1 - 1e-9) <= epsilon <= exact * 1.001


@pytest.mark.parametrize(("named", "sigma", "expected"), TABLE)
def test_less_noise_would_be_enough_too(named: float, sigma: int, expected: float) -> None:
    """The table's sigma is rounded up to a whole number, so ours is below it and uses the budget."""
    ours = calibrate.sigma(Budget(named, DELTA), rate=1.0, steps=STEPS)
    assert ours <= sigma
    assert 0.999 * named <= accountant.epsilon(Gaussian(ours, STEPS), DELTA) <= named
