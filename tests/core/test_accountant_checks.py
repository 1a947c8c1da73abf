"""The lower bound that accountants are compared with: below the truth, near it, and above an epsilon that is too low."""

from __future__ import annotations

import pytest

from dpvision.core.events import PoissonGaussian
from dpvision.settings import gdp, quick
from tests.core.accountant_checks import DELTAS, SETTINGS, certain, too_low


@pytest.mark.parametrize("sigma", [0.7, 2.0, 10.0])
def test_it_is_slightly_below_the_exact_epsilon(sigma: float) -> None:
    for delta in DELTAS:
        exact = gdp.gaussian_epsilon(1 / sigma, delta)
        assert 0.97 * exact <= certain(1.0, sigma, 1, delta=delta) <= exact


def test_it_is_below_our_accountants_and_near_them() -> None:
    for rate, sigma, steps in SETTINGS:
        least = certain(rate, sigma, steps, delta=1e-5)
        assert least <= quick.epsilon(PoissonGaussian(rate, sigma, steps), 1e-5) <= 1.01 * least


def test_an_accountant_that_is_too_low_is_detected() -> None:
    assert not too_low(quick.epsilon)
    assert too_low(lambda event, delta: 0.98 * quick.epsilon(event, delta))
    assert too_low(lambda event, delta: gdp.gaussian_epsilon(gdp.central_limit_mu(event), delta))
    assert not too_low(lambda event, delta: quick.rdp_epsilon(event, delta)), "looser, but sound"
