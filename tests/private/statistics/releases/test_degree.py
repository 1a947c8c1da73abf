"""The optimal degree: where the theorem's bias is least, from public numbers."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from dpvision.core.events import Budget
from dpvision.errors import ConfigError
from dpvision.settings import gdp
from dpvision.settings.release import NU_OVER_MU, optimal_degree, optimal_nu


@pytest.mark.parametrize("mu", [1e-3, 0.268, 1.0, 3.0, 50.0])
def test_the_bias_is_least_there(mu: float) -> None:
    nu = np.geomspace(mu / 100, mu * 100, 200_001)
    bias = 1 / np.sqrt(nu * np.log1p((mu / nu) ** 2))
    assert optimal_nu(mu) == pytest.approx(nu[bias.argmin()], rel=1e-3)


def test_its_share_of_mu_is_the_root() -> None:
    assert math.log1p(NU_OVER_MU**-2) == pytest.approx(2 / (1 + NU_OVER_MU**2), rel=1e-15)


def test_the_degree_of_the_papers_data_sets() -> None:
    """n = T = 50,000: between 32 and 256 for epsilon 1 to 8, where the paper finds the best degrees by trying."""
    results = [optimal_degree(50_000, 50_000, budget=Budget(e, 1e-5)) for e in (1.0, 2.0, 4.0, 8.0)]
    assert results == sorted(results) and results[0] > 25 and results[-1] < 256
    mu = gdp.mu_of_point(1.0, 1e-5)
    assert results[0] == pytest.approx(optimal_nu(mu) * math.sqrt(50_000))
    assert optimal_degree(50_000, 200_000, budget=Budget(1.0, 1e-5)) == pytest.approx(results[0] / 2)
    assert optimal_degree(10, 1, budget=Budget(8.0, 1e-5)) <= 10


def test_what_it_refuses() -> None:
    for mu in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="mu"):
            optimal_nu(mu)
    with pytest.raises(ConfigError, match="rows"):
        optimal_degree(10, 0, budget=Budget(1.0, 1e-5))


def test_it_loads_nothing_heavy() -> None:
    code = "import sys, dpvision.settings.release; sys.exit(bool({'torch', 'scipy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
