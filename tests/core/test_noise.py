"""The noise has the stated law, is on the grid, drawn once, and cheap."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dpvision.core import noise
from dpvision.core.keys import Key
from dpvision.errors import PrivacyError
from tests.core import noise_checks

KEY = Key.for_tests("noise")
DEVIATION = 2.0**33  # of the noise, in grid steps: so fine that draws hardly repeat


def _release(total: np.ndarray, step: int = 0, *, sensitivity: float = 1.0, sigma: float = 2.0) -> np.ndarray:
    return noise.add_noise(total, KEY.stream("noise", step=step), sensitivity=sensitivity, sigma=sigma)


def _draws(step: int, count: int) -> np.ndarray:
    """Standard normal numbers, on a grid of 2^-33."""
    return noise.rounded_normal(KEY.stream("noise", step=step), count, DEVIATION) / DEVIATION


def test_a_million_draws_are_standard_normal() -> None:
    assert not noise_checks.of_draws(_draws(1, 1_000_000))


@pytest.mark.parametrize("factor", [0.995, 1.005])
def test_the_variance_check_has_teeth(factor: float) -> None:
    assert "the variance" in noise_checks.of_draws(_draws(1, 1_000_000) * factor)


def test_every_check_of_draws_has_teeth() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(size=300_000)
    wrong = {
        "the law": rng.uniform(-(3**0.5), 3**0.5, draws.size),
        "the mean": draws + 0.02,
        "the variance": draws * 1.01,
        "the kurtosis": rng.standard_t(8, draws.size) * 0.75**0.5,
        "the tails": np.clip(draws, -4, 4),
        "the precision": draws.astype(np.float16),
    }
    assert not noise_checks.of_draws(draws)
    for what, these in wrong.items():
        assert what in noise_checks.of_draws(these)


def test_every_coordinate_has_the_variance_and_none_follows_another() -> None:
    sigma, steps, size = 3.0, 2000, 500
    scale, _ = noise.noise_scale(size, sensitivity=1.0, sigma=sigma)
    rows = np.stack([_release(np.zeros(size), step, sigma=sigma) for step in range(steps)])
    assert not noise_checks.of_releases(rows, scale=scale)


def test_every_check_of_releases_has_teeth() -> None:
    rows = np.random.default_rng(0).normal(size=(400, 30))
    assert not noise_checks.of_releases(rows, scale=1.0)
    again, silent, tied, slow = (rows.copy() for _ in range(4))
    again[7], silent[:, 3], tied[:, 4], slow[1:] = rows[5], 0.0, rows[:, 9], 0.7 * rows[1:] + 0.7 * rows[:-1]
    for what, these in (
        ("a step repeats another's noise", again),
        ("a coordinate's variance", silent),
        ("a coordinate follows another", tied),
        ("a step follows the one 1 before", slow),
        ("the variance", rows * 0.95),
    ):
        assert what in noise_checks.of_releases(these, scale=1.0)


def test_fresh_keys_do_not_repeat_and_small_seeds_are_found() -> None:
    rng = np.random.default_rng(0)
    assert not noise_checks.of_keys()
    assert noise_checks.of_keys(lambda: Key.for_tests(str(rng.integers(1 << 17))))


def test_cosine_and_sine_halves_are_independent() -> None:
    """Box-Muller makes pairs; the two halves of a block must not be tied, not even in their squares."""
    half = noise.BLOCK // 2
    draws = _draws(9, noise.BLOCK)
    for f in (lambda x: x, np.square, np.abs):
        assert abs(np.corrcoef(f(draws[:half]), f(draws[half:]))[0, 1]) < 5 / np.sqrt(half)


def test_the_scale_is_sigma_times_sensitivity_and_a_little_more_for_the_grid() -> None:
    for size, sensitivity, sigma in ((10, 0.1, 1.0), (2_700_000, 1.0, 10.0), (1000, 7.0, 0.3)):
        scale, grid = noise.noise_scale(size, sensitivity=sensitivity, sigma=sigma)
        needed = sigma * (sensitivity + np.sqrt(size) * grid)
        assert needed <= scale <= sigma * sensitivity * 1.01
    draws = _release(np.zeros(400_000), sensitivity=0.1, sigma=5.0)
    assert draws.std() == pytest.approx(0.5, rel=0.006)


def test_the_result_is_always_on_the_grid() -> None:
    """The low bits say nothing: for any sum, every output is a multiple of the grid's width."""
    rng = np.random.default_rng(0)
    _, grid = noise.noise_scale(1000, sensitivity=1.0, sigma=2.0)
    for total in (np.zeros(1000), np.ones(1000), rng.normal(size=1000) * 1e3, np.full(1000, 1 / 3)):
        steps = _release(total) / grid
        assert np.array_equal(steps, np.rint(steps))


def test_the_sum_survives_and_the_noise_does_not_depend_on_it() -> None:
    total = np.linspace(-5, 5, 1000)
    _, grid = noise.noise_scale(1000, sensitivity=1.0, sigma=2.0)
    assert np.abs(_release(total) - _release(np.zeros(1000)) - total).max() <= grid
    assert not np.array_equal(_release(total, step=0), _release(total, step=1))


def test_the_order_of_the_batch_does_not_show() -> None:
    """10,000 orders of the same contributions: one result."""
    rng = np.random.default_rng(1)
    parts = (rng.normal(size=(64, 3)) / 10).astype(np.float64)
    results = set()
    for _ in range(10_000):
        results.add(_release(parts[rng.permutation(64)].sum(axis=0)).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_an_unbounded_sum_is_refused(bad: float) -> None:
    with pytest.raises(PrivacyError):
        _release(np.array([0.0, bad]))


@pytest.mark.parametrize(("sensitivity", "sigma"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, np.inf), (np.nan, 1.0)])
def test_no_noise_is_no_mechanism(sensitivity: float, sigma: float) -> None:
    with pytest.raises(PrivacyError):
        _release(np.zeros(3), sensitivity=sensitivity, sigma=sigma)


def test_the_smallest_sizes() -> None:
    for size in (0, 1, 2, noise.BLOCK - 1, noise.BLOCK, noise.BLOCK + 1):
        assert _release(np.zeros(size)).shape == (size,)
    assert _release(np.zeros((3, 4))).shape == (3, 4)


def test_the_cost_per_parameter() -> None:
    """40 ns each on an idle core (benchmarks/noise.py); three times that is allowed here, for noisy neighbours."""
    total = np.zeros(1_000_000)
    best = min(_timed(total, step) for step in range(5))
    assert best / total.size < 120e-9


def _timed(total: np.ndarray, step: int) -> float:
    start = time.process_time()
    _release(total, step)
    return time.process_time() - start
