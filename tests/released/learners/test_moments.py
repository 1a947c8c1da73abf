"""From moments: what the heads make of the same noisy numbers, and what the learners make of the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpvision.core.rows import BoundedSum, Preparation, Rows
from dpvision.errors import ConfigError
from dpvision.private.statistics.closed_form import Discriminant
from dpvision.private.statistics.row_sums import to_matrix
from dpvision.released.learners import fit_moments
from dpvision.released.moments import MIN_RIDGE
from tests.released.learners.cases import CLASSES, digits


def _moments(noise: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, *_ = digits()
    rng, one_hot = np.random.default_rng(0), np.eye(CLASSES)[y]
    made = x.T @ one_hot, one_hot.sum(axis=0), x.T @ x
    return tuple(m + rng.normal(size=m.shape) * noise for m in made)  # type: ignore[return-value]


def test_it_is_the_discriminant_of_the_heads_on_the_same_release() -> None:
    x, y, test_x, _ = digits()
    method, n, sigma = Discriminant(covariance="private"), 1400, 0.8
    a, b, c = method.weights()
    seen: list[np.ndarray] = []

    def noisy(asked: BoundedSum) -> np.ndarray:
        seen.append(asked.total + np.random.default_rng(1).normal(size=asked.total.shape) * sigma * asked.sensitivity)
        return seen[-1]

    rows = Rows.of(x, y, Preparation(), classes=CLASSES)
    weight, bias = method.fit(rows, n=n, sigma=sigma, add_noise=noisy)
    sums, counts, upper = np.split(seen[0], [64 * CLASSES, 65 * CLASSES])
    learner = fit_moments(
        sums.reshape(64, CLASSES) / b,
        counts / c,
        to_matrix(upper / a, 64),
        n=n,
        noise_sums=sigma / b,
        noise_counts=sigma / c,
        noise_moment=sigma / a,
    )
    assert np.allclose(learner.weight_, weight) and np.allclose(learner.bias_, bias)
    assert np.array_equal(learner.predict(test_x), (test_x @ weight + bias).argmax(axis=1))


def test_without_noise_ridge_is_that_of_the_rows() -> None:
    x, y, test_x, _ = digits()
    centred = x.astype(float) - x.mean(axis=0, dtype=float)
    z = np.eye(CLASSES)[y]
    weight = np.linalg.solve(centred.T @ centred / len(x) + MIN_RIDGE * np.eye(64), centred.T @ z / len(x))
    expected = z.mean(axis=0) + (test_x - x.mean(axis=0, dtype=float)) @ weight
    assert np.allclose(fit_moments(*_moments(), method="ridge").scores(test_x), expected, atol=1e-3)


@pytest.mark.parametrize("method", ["discriminant", "ridge"])
def test_with_noise_the_floor_is_what_keeps_it_useful(method: str) -> None:
    *_, test_x, test_y = digits()
    moments = _moments(0.5)
    known: dict[str, Any] = {"noise_sums": 0.5, "noise_counts": 0.5, "noise_moment": 0.5}
    good = fit_moments(*moments, method=method, **known).score(test_x, test_y)
    assert good > 0.85
    assert good > fit_moments(*moments, method=method).score(test_x, test_y) + 0.1


def test_no_class_is_smaller_than_a_tenth_of_an_even_one_nor_than_its_noise() -> None:
    """A count of -50 is taken as 14, or as 30 where that is the noise: so is the same release with these counts."""
    sums, counts, second = _moments()
    for noise, taken in ((0.0, 14.0), (30.0, 30.0)):
        below, at = counts.copy(), counts.copy()
        below[3], at[3] = -50.0, taken
        result, expected = (fit_moments(sums, c, second, n=1400, noise_counts=noise) for c in (below, at))
        assert np.allclose(result.weight_, expected.weight_) and np.isfinite(result.bias_).all()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "lda"}, "one of discriminant, ridge"),
    "noise": ({"noise_moment": -1.0}, "noise_moment is -1"),
    "ridge": ({"ridge": 0.0}, "ridge is 0"),
    "n": ({"n": 0}, "n is 0"),
    "shape": ({"counts": np.ones(3)}, r"must be \(d, K\)"),
    "not finite": ({"sums": np.full((64, CLASSES), np.inf)}, "sums must be"),
    "nobody": ({"counts": -np.ones(CLASSES)}, "sum of counts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused_by_name(name: str) -> None:
    settings, message = WRONG[name]
    sums, counts, second_moment = _moments()
    given = {"sums": sums, "counts": counts, "second_moment": second_moment} | settings
    with pytest.raises(ConfigError, match=message):
        fit_moments(**given)
