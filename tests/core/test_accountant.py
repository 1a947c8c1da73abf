"""Epsilon is an upper bound: against published values, dp-accounting's lower bound, PRV, Rényi and exact Gaussians."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest

from dpvision.core import accountant, adaptive
from dpvision.core.events import ClassScheduled, Composed, Event, Gaussian, PoissonGaussian
from dpvision.settings import gdp, quick

DELTA = 1e-5
RATE = 4096 / 50_000
# (steps, sigma, epsilon) at rate 4096/50000 and delta 1e-5.
TABLE = [
    (875, 9.3, 0.978),
    (1125, 5.6, 1.987),
    (1593, 4.7, 2.952),
    (1687, 3.8, 3.921),
    (1843, 2.9, 5.746),
    (2468, 2.6, 7.843),
]


@pytest.mark.parametrize(("steps", "sigma", "expected"), TABLE)
def test_known_values(steps: int, sigma: float, expected: float) -> None:
    event = PoissonGaussian(RATE, sigma, steps)
    for truth in (accountant.epsilon(event, DELTA), quick.epsilon(event, DELTA)):
        assert truth == pytest.approx(expected, rel=0.005)
        assert truth >= quick.lower_bound(event, DELTA)
    assert accountant.epsilon(event, DELTA) <= quick.rdp_epsilon(event, DELTA)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
def test_never_below_the_exact_gaussian(sigma: float, delta: float) -> None:
    exact = gdp.gaussian_epsilon(1 / sigma, delta)
    for by in (accountant, quick):
        value = by.epsilon(Gaussian(sigma), delta)
        assert exact * (1 - 1e-9) <= value <= exact * 1.002


@pytest.mark.parametrize(("steps", "delta"), [(10_000, 1e-10), (100_000, 1e-9), (1_000_000, 1e-8)])
@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_many_steps_hide_nothing(steps: int, delta: float, mu: float) -> None:
    """At a rate just below 1 the truth is the exact Gaussian, and rounding in long compositions would show."""
    event = PoissonGaussian(1 - 1e-7, math.sqrt(steps) / mu, steps)
    exact = gdp.gaussian_epsilon(mu * (1 - 5e-7), delta)
    for by in (accountant, quick):
        assert by.epsilon(event, delta) >= exact


def test_what_can_not_be_proven_is_infinite() -> None:
    event = PoissonGaussian(0.5, 1000.0, 1_000_000)
    assert accountant.epsilon(event, 1e-10) == quick.epsilon(event, 1e-10) == math.inf
    assert accountant.epsilon(event, 1e-5) < 10


def test_the_two_accountants_agree() -> None:
    rng = np.random.default_rng(5)
    for _ in range(25):
        event = _random_event(rng)
        delta = 10 ** rng.uniform(-9, -3)
        assert quick.epsilon(event, delta) == pytest.approx(accountant.epsilon(event, delta), rel=3e-3, abs=1e-5)


def test_self_composition_is_composition() -> None:
    one = PoissonGaussian(0.05, 1.5, 1)
    for by in (accountant, quick):
        assert by.epsilon(Composed((one,) * 30), DELTA) == by.epsilon(PoissonGaussian(0.05, 1.5, 30), DELTA)
        mixed = by.epsilon(Composed((PoissonGaussian(0.05, 1.5, 15), PoissonGaussian(0.05 + 1e-9, 1.5, 15))), DELTA)
        assert mixed == pytest.approx(by.epsilon(PoissonGaussian(0.05, 1.5, 30), DELTA), rel=2e-3)


def test_asking_twice_changes_nothing() -> None:
    event = PoissonGaussian(0.05, 1.5, 30)
    assert accountant.epsilon(event, DELTA) == accountant.epsilon(event, DELTA)
    assert quick.epsilon(event, DELTA) == quick.epsilon(event, DELTA)


def test_nothing_costs_nothing() -> None:
    for event in (Composed(()), PoissonGaussian(0.1, 1.0, 0), PoissonGaussian(0.0, 1.0, 100)):
        for by in (accountant, quick):
            assert by.epsilon(event, DELTA) == 0.0
            assert by.delta(event, 0.5) == 0.0


@pytest.mark.parametrize("by", [accountant, quick])
def test_profile_and_epsilon_are_inverse(by) -> None:
    event = PoissonGaussian(0.1, 1.2, 50)
    epsilons = [0.0, 0.5, 1.0, 2.0, 4.0]
    deltas = by.profile(event, epsilons)
    assert np.all(np.diff(deltas) < 0)
    for epsilon, delta in zip(epsilons[1:], deltas[1:], strict=True):
        assert by.delta(event, epsilon) == pytest.approx(delta)
        assert by.epsilon(event, float(delta)) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("by", [accountant, quick])
def test_no_curve_says_that_nothing_is_left(by) -> None:
    """What rounding may hide is there even where it makes the sum of dp-accounting negative, as here from 10.75 on."""
    deltas = by.profile(PoissonGaussian(0.01, 1.0, 10_000), np.linspace(10.0, 14.0, 81).tolist())
    assert deltas.min() >= accountant.hidden_by_rounding(10_000)


@pytest.mark.parametrize("by", [accountant, quick])
def test_monotone_in_each_argument(by) -> None:
    rng = np.random.default_rng(11)
    for _ in range(6):
        q, sigma, steps, delta = _random_setting(rng)
        base = by.epsilon(PoissonGaussian(q, sigma, steps), delta)
        slack = 1e-3 * base
        assert by.epsilon(PoissonGaussian(min(1.0, q * 1.1), sigma, steps), delta) >= base - slack
        assert by.epsilon(PoissonGaussian(q, sigma * 1.1, steps), delta) <= base + slack
        assert by.epsilon(PoissonGaussian(q, sigma, steps + max(1, steps // 10)), delta) >= base - slack
        assert by.epsilon(PoissonGaussian(q, sigma, steps), delta * 2) <= base + slack


def test_a_class_schedule_is_charged_at_the_rate_inside_the_class() -> None:
    """NeuroMixGDP-HS at its own setting: claimed 1, refuted by an attack at 2.41, truly bounded by 7.62."""
    n, m, classes, drawn = 50_000, 64, 100, 3
    sigma = _central_limit_sigma(m, n, epsilon=1.0)
    rows = n * drawn // classes
    inside = (m / n) / (drawn / classes)
    sound = accountant.epsilon(ClassScheduled(sigma, (inside,) * classes, (rows,) * classes), DELTA)
    naive = accountant.epsilon(PoissonGaussian(m / n, sigma, n), DELTA)
    assert sound > 2.41 > naive
    assert sound == pytest.approx(7.6, rel=0.1)


def test_the_worst_class_counts() -> None:
    uneven = ClassScheduled(3.0, rates=(0.01, 0.2), rows=(50, 50))
    assert accountant.epsilon(uneven, DELTA) == accountant.epsilon(PoissonGaussian(0.2, 3.0, 50), DELTA)


def test_the_central_limit_is_too_low_and_so_only_approximate() -> None:
    """Claimed 1, truly 1.42; claimed 8, truly 10.46."""
    for claimed, true in ((1.0, 1.42), (8.0, 10.46)):
        event = PoissonGaussian(16 / 50_000, _central_limit_sigma(16, 50_000, epsilon=claimed), 50_000)
        assert gdp.gaussian_epsilon(gdp.central_limit_mu(event), DELTA) == pytest.approx(claimed, rel=1e-6)
        assert accountant.epsilon(event, DELTA) == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize("by", ["accountant", "quick"])
def test_mu_implies_the_whole_profile(by: str) -> None:
    event = PoissonGaussian(RATE, 2.6, 2468)
    top = accountant.epsilon(event, DELTA)
    profile = (accountant if by == "accountant" else quick).profile
    mu = gdp.mu_of_curve(lambda at: profile(event, at).tolist(), top)
    epsilons = np.linspace(0, top, 777).tolist()
    for epsilon, delta in zip(epsilons, profile(event, epsilons), strict=True):
        assert adaptive.gaussian_delta(mu, epsilon) >= delta
    assert mu <= 1.02 * gdp.mu_of_point(top, DELTA)
    if by == "accountant":
        assert gdp.mu(event, DELTA) == pytest.approx(mu)


@pytest.mark.parametrize(
    ("q", "sigma", "steps"), list(itertools.product([1e-3, 0.3, 1.0], [0.01, 0.1, 1e5], [1, 100_000]))
)
def test_extremes_are_answered_without_a_warning(q: float, sigma: float, steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = quick.epsilon(PoissonGaussian(q, sigma, steps), DELTA)
    assert value >= 0.0 and not math.isnan(value)
    if sigma == 0.01 and steps == 100_000:
        assert value == math.inf


def test_against_prv_few() -> None:
    _compare_with_prv(seed=1, count=25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_against_prv_many(seed: int) -> None:
    """2,000 settings in all, in 20 pieces for the two cores."""
    _compare_with_prv(seed=seed, count=100)


def _compare_with_prv(seed: int, count: int) -> None:
    """No under-report against the independent lower bound; at most 1.02 times the upper one; both accountants."""
    from prv_accountant.dpsgd import DPSGDAccountant
    from prv_accountant.privacy_random_variables import PrivacyRandomVariableTruncated

    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivacyRandomVariableTruncated, "mean", _exact_mean)
        for _ in range(count):
            q, sigma, steps, delta = _random_setting(rng)
            event = PoissonGaussian(q, sigma, steps)
            ours = quick.epsilon(event, delta), accountant.epsilon(event, delta)
            prv = DPSGDAccountant(
                noise_multiplier=sigma,
                sampling_probability=q,
                max_steps=steps,
                eps_error=max(0.01 * ours[1], 1e-3),
                delta_error=delta * 1e-3,
            )
            low, _, high = prv.compute_epsilon(delta=delta, num_steps=steps)
            for value in ours:
                assert low <= value <= 1.02 * high, (event, delta, low, value, high)


def _exact_mean(variable) -> float:
    """The mean of a truncated privacy loss, t_max - integral of its distribution function, by Gauss-Legendre.

    prv-accountant 0.2 integrates over [t_min, -0.1] at once and can miss the kink at log(1 - q): its mean is then wrong
    in the fourth digit, which T steps multiply (epsilon 15.10 for a true 14.91 at q 0.137, sigma 1.85, T 937).
    """
    kink = math.log1p(-float(variable.prv.p))
    near = [kink * (1 - 10.0**-k) for k in range(1, 13)] + [kink * 10.0**-k for k in range(1, 7)]
    near += [0.0, *(10.0**k for k in range(-8, 1)), 2.0, 4.0, 8.0, 16.0]
    points = sorted({p for p in [variable.t_min, kink, *near, variable.t_max] if variable.t_min <= p <= variable.t_max})
    nodes, weights = np.polynomial.legendre.leggauss(120)
    area = 0.0
    for left, right in itertools.pairwise(points):
        at = (right - left) / 2 * nodes + (right + left) / 2
        with np.errstate(all="ignore"):  # a hair above the kink the logarithm of a negative zero stands for 0
            below = np.nan_to_num(np.asarray(variable.cdf(at), dtype=np.float64))
        area += float((right - left) / 2 * (weights @ below))
    return variable.t_max - area


def _central_limit_sigma(m: int, n: int, *, epsilon: float) -> float:
    """The noise that the central limit would ask for with n rows at rate m/n."""
    mu = gdp.mu_of_point(epsilon, DELTA)
    return math.log1p((mu / (m / n * math.sqrt(n))) ** 2) ** -0.5


def _random_setting(rng: np.random.Generator) -> tuple[float, float, int, float]:
    """Settings with an epsilon that somebody might use: 0.01 to 50."""
    while True:
        q, sigma = 10 ** rng.uniform(-3.5, -0.3), 10 ** rng.uniform(-0.2, 1.2)
        steps, delta = int(10 ** rng.uniform(0, 3.7)), 10 ** rng.uniform(-8, -4)
        if 0.01 < quick.epsilon(PoissonGaussian(q, sigma, steps), delta) < 50:
            return float(q), float(sigma), steps, float(delta)


def _random_event(rng: np.random.Generator) -> Event:
    q, sigma, steps, _ = _random_setting(rng)
    first = PoissonGaussian(q, sigma, steps)
    return first if rng.random() < 0.7 else Composed((first, Gaussian(float(10 ** rng.uniform(0, 1.5)))))
