"""Collapse, distances and the simulation, compared with their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.measures.collapse import collapse
from benchmarks.measures.distance import distances_to_others
from benchmarks.measures.simulation import Curve, grid, simulate
from dpvision.errors import ConfigError
from dpvision.settings.release import optimal_nu


def _classes(rng: np.random.Generator, spread: float) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.permutation(np.repeat([0, 1, 3], [30, 50, 20]))  # of unlike sizes, and no class 2
    return rng.normal(size=(4, 12))[labels] + spread * rng.normal(size=(100, 12)), labels


def test_collapse_is_the_trace_of_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _classes(np.random.default_rng(0), 0.7)
    means = np.stack([x[y == k].mean(0) for k in (0, 1, 3)])
    within = np.mean([np.outer(a, a) for a in (x - means[np.searchsorted([0, 1, 3], y)])], axis=0)
    between = np.mean([np.outer(a, a) for a in means - x.mean(0)], axis=0)
    wanted = np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / 3
    assert collapse(x, y) == pytest.approx(wanted, rel=1e-8)
    assert collapse(5 * x + 3, y) == pytest.approx(wanted, rel=1e-8), "whatever the scale"
    monkeypatch.setattr("benchmarks.measures.collapse.AT_A_TIME", 7)
    assert collapse(x, y) == pytest.approx(wanted, rel=1e-8)


def test_points_have_collapsed() -> None:
    x, y = _classes(np.random.default_rng(1), 0.0)
    assert collapse(x, y) < 1e-20
    with pytest.raises(ConfigError, match="2 classes"):
        collapse(x, np.zeros(100, dtype=int))
    with pytest.raises(ConfigError, match="same mean"):
        collapse(np.ones((4, 2)), [0, 0, 1, 1])


def test_distances_by_trying_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _classes(np.random.default_rng(2), 0.7)
    monkeypatch.setattr("benchmarks.measures.distance.AT_A_TIME", 9)
    result = distances_to_others(x, y, pairs=50, rng=np.random.default_rng(5))
    rng = np.random.default_rng(5)
    i = rng.integers(100, size=50)
    j = (i + rng.integers(1, 100, size=50)) % 100
    assert (i != j).all()
    for a, b, distance in zip(i, j, result, strict=True):
        others = [np.linalg.norm((x[a] + x[b]) / 2 - z) for z, k in zip(x, y, strict=True) if k not in (y[a], y[b])]
        assert distance == pytest.approx(min(others), rel=1e-9)


def test_a_mixture_on_another_class_and_no_other_class() -> None:
    x, y = np.array([[0.0], [1.0], [0.5]]), np.array([0, 1, 2])
    result = distances_to_others(x, y, pairs=200, rng=np.random.default_rng(0))
    assert set(np.round(result, 9)) == {0.0, 0.75}, "0 and 1 mix to 0.5, which is of class 2"
    assert np.isinf(distances_to_others(x[:2], y[:2], pairs=3, rng=np.random.default_rng(0))).all()
    with pytest.raises(ConfigError, match="pair"):
        distances_to_others(x[:1], y[:1], pairs=3, rng=np.random.default_rng(0))


@pytest.mark.parametrize("mu", [1 / 3, 1.0, 3.0])
def test_the_simulated_error_is_least_next_to_nu(mu: float) -> None:
    curve = simulate(mu, runs=20, seed=1)
    assert curve.steps_off <= 1
    assert curve.errors[0] > 1.02 * curve.errors.min() and curve.errors[-1] > 1.02 * curve.errors.min(), "a true valley"


def test_steps_are_counted_on_the_grid() -> None:
    nus = grid(1.0)
    at = int(np.abs(np.log(nus / optimal_nu(1.0))).argmin())
    for off in (-3, 0, 2):
        errors = np.ones(len(nus))
        errors[at + off] = 0.5
        assert Curve(1.0, nus, errors).steps_off == abs(off)
        assert Curve(1.0, nus, errors).best == nus[at + off]
    with pytest.raises(ConfigError, match="nothing to simulate"):
        simulate(1.0, rows=3, width=5)
