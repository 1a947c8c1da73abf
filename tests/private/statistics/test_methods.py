"""Each method computes what its formula states, is as good as its counterpart without noise, and useless with too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from dpvision.core.events import Budget
from dpvision.core.rows import BoundedSum, Preparation, Rows
from dpvision.errors import ConfigError
from dpvision.private.statistics import Whitening, fit_head, scaled_rate
from dpvision.private.statistics.closed_form import Discriminant, Moments
from dpvision.private.statistics.logistic import LARGEST_RATE, GradientDescent, clipped_gradient, newton_direction
from dpvision.private.statistics.row_sums import second_moment, to_matrix, to_vector
from dpvision.released.moments import MIN_RIDGE, without_noise_floor
from tests.private.statistics.cases import CLASSES, WIDTH, new_ledger, separable, some_rows


def _exact(bounded: BoundedSum) -> np.ndarray:
    return bounded.total


@pytest.mark.parametrize("clip", [0.1, 0.8, 10.0])
def test_the_closed_form_is_the_sum_of_clipped_gradients(clip: float) -> None:
    """Compare with autograd, one row at a time."""
    rng = np.random.default_rng(0)
    x, y = some_rows(rng, 300)
    rows = Rows.of(x, y, Preparation(bound=3.0), classes=CLASSES)
    weight = rng.normal(size=(WIDTH, CLASSES)) * 3
    expected = np.zeros_like(weight)
    for row, label in zip(rows.x, rows.labels, strict=True):
        w = torch.tensor(weight, requires_grad=True)
        scores = torch.tensor(row, dtype=torch.float64) @ w
        torch.nn.functional.cross_entropy(scores[None], torch.tensor([label])).backward()
        assert w.grad is not None
        expected += (w.grad * min(1.0, clip / float(w.grad.norm()))).numpy()
    result = clipped_gradient(rows, weight, clip=clip)
    assert np.allclose(result.total, expected, atol=1e-12)
    assert result.sensitivity == min(clip, np.sqrt(2))


def test_a_symmetric_matrix_and_its_vector() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(7, 7))
    matrix = matrix + matrix.T
    assert np.allclose(to_matrix(to_vector(matrix), 7), matrix)
    assert np.linalg.norm(to_vector(matrix)) == pytest.approx(np.linalg.norm(matrix))
    row = rng.normal(size=7)
    assert np.linalg.norm(to_vector(np.outer(row, row))) == pytest.approx(row @ row)


def test_noise_on_the_vector_is_symmetric_noise_on_the_matrix() -> None:
    rng = np.random.default_rng(2)
    draws = np.stack([to_matrix(rng.standard_normal(10), 4) for _ in range(4000)])
    assert np.array_equal(draws, draws.transpose(0, 2, 1))
    expected = np.where(np.eye(4) > 0, 1.0, 0.5)
    assert np.abs(draws.var(axis=0) - expected).max() < 0.12


def test_the_noise_floor_is_about_the_largest_eigenvalue_of_the_noise() -> None:
    rng = np.random.default_rng(3)
    d, noise = 150, 0.3
    made = to_matrix(rng.standard_normal(d * (d + 1) // 2) * noise, d)
    values, _ = without_noise_floor(np.zeros((d, d)), noise=noise, ridge=1.0)
    assert values[0] == pytest.approx(np.linalg.eigvalsh(made).max(), rel=0.1)
    assert (without_noise_floor(made, noise=noise, ridge=1.0)[0] >= values[0]).all()


def test_moments_without_noise_are_ridge_regression() -> None:
    x, y = separable(np.random.default_rng(4), 200)
    rows = Rows.of(x, y, Preparation(unit=True), classes=CLASSES)
    weight, bias = Moments().fit(rows, n=200, sigma=0.0, add_noise=_exact)
    z = np.eye(CLASSES)[y] - 1 / CLASSES
    a = rows.x.astype(float)
    expected = np.linalg.solve(a.T @ a / 200 + MIN_RIDGE * np.eye(WIDTH), a.T @ z / 200)
    assert np.allclose(weight, expected, rtol=1e-8) and bias is None


def test_newton_steps_are_those_of_bohnings_bound() -> None:
    """Compare with the whole matrix 1/2 (I - 11^T/k) kron C."""
    rng = np.random.default_rng(5)
    public = Rows.public(rng.normal(size=(60, WIDTH)) * np.linspace(1, 3, WIDTH), Preparation(unit=True))
    gradient = rng.normal(size=(WIDTH, CLASSES))
    c = second_moment(public) / 60
    c = c + 0.2 * np.trace(c) / WIDTH * np.eye(WIDTH)
    bound = np.kron(c, 0.5 * (np.eye(CLASSES) - 1 / CLASSES))  # weights row by row
    expected = (np.linalg.pinv(bound) @ gradient.reshape(-1)).reshape(WIDTH, CLASSES)
    assert np.allclose(newton_direction(public, classes=CLASSES, ridge=0.2)(gradient), expected)


def test_the_bound_is_above_the_hessian() -> None:
    """Tests at many weights what the full Newton step relies on."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(30, 3))
    bound = np.kron(x.T @ x, 0.5 * (np.eye(CLASSES) - 1 / CLASSES))
    for scale in (0.0, 0.1, 1.0, 10.0):
        w = rng.normal(size=(3, CLASSES)) * scale
        scores = x @ w
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        hessian = sum(np.kron(np.outer(r, r), np.diag(q) - np.outer(q, q)) for r, q in zip(x, p, strict=True))
        assert np.linalg.eigvalsh(bound - hessian).min() > -1e-9


def test_the_discriminant_without_noise_is_the_linear_discriminant() -> None:
    rng = np.random.default_rng(7)
    x, y = separable(rng, 3000, spread=0.8)
    x = x @ (np.eye(WIDTH) + 0.3 * rng.normal(size=(WIDTH, WIDTH)))
    keep = (y > 0) | (rng.random(3000) < 0.3)  # one class is rarer
    x, y = x[keep], y[keep]
    preparation = Preparation(bound=float(np.linalg.norm(x, axis=1).max()))
    rows = Rows.of(x, y, preparation, classes=CLASSES)
    method = Discriminant(covariance="private")
    weight, bias = method.fit(rows, n=len(x), sigma=0.0, add_noise=_exact)
    assert bias is not None
    result = (rows.x @ weight + bias).argmax(axis=1)
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(rows.x, y).predict(rows.x)
    assert (result == expected).mean() > 0.99


def test_what_noise_adds_to_the_length_of_a_mean_is_taken_off() -> None:
    """Over many draws the intercepts are those without noise; uncorrected they would be lower by far."""
    rng = np.random.default_rng(10)
    x, y = separable(rng, 200)
    rows = Rows.of(x, y, Preparation(unit=True), classes=CLASSES)
    public = Rows.public(rng.normal(size=(300, WIDTH)), Preparation(unit=True))
    method = Discriminant(covariance="public", balanced=True)
    sigma = 8.0

    def bias(scale: float) -> np.ndarray:
        def noisy(bounded: BoundedSum) -> np.ndarray:
            return bounded.total + scale * bounded.sensitivity * rng.standard_normal(bounded.total.shape)

        result = method.fit(rows, n=400, sigma=scale, add_noise=noisy, public=public)[
            1
        ]  # n above the truth: means below 1
        assert result is not None
        return result

    drawn = np.stack([bias(sigma) for _ in range(400)])
    added = (sigma * CLASSES / 400) ** 2 * 0.5 * WIDTH * WIDTH / 2  # about: variance, a half, tr of the inverse
    off = drawn.mean(axis=0) - bias(0.0)
    assert np.abs(off).max() < 5 * (drawn.std(axis=0) / 20).max()
    assert added > 8 * (drawn.std(axis=0) / 20).max(), "the check would see it"


def _accuracy(folder: Path, epsilon: float, count: int, settings: dict[str, Any], seed: int = 0) -> tuple[float, Any]:
    rng = np.random.default_rng(seed)
    x, y = separable(rng, count)
    test_x, test_y = separable(rng, 2000)
    ledger = new_ledger(folder)
    budget = Budget(epsilon, 1e-5)
    head = fit_head(x, y, budget, classes=CLASSES, n=count, ledger=ledger, test_key=f"{epsilon}", **settings)
    return float((head.classes_of(test_x) == test_y).mean()), (x, y, test_x, test_y)


PUBLIC = np.random.default_rng(8).normal(size=(500, WIDTH)) + 0.3
PEERS: dict[str, tuple[dict[str, Any], Any]] = {
    "gd": ({"unit": True}, LogisticRegression()),
    "gd, last": ({"unit": True, "keep": "last"}, LogisticRegression()),
    "gd, ema": ({"unit": True, "keep": "ema", "intercept": 0.5}, LogisticRegression()),
    "gd, clipped rows": ({"bound": 3.0, "total_rate": 100.0}, LogisticRegression()),
    "gd, whitened": ({"whitening": Whitening.of(PUBLIC)}, LogisticRegression()),
    "newton": ({"method": "newton", "unit": True, "public": PUBLIC}, LogisticRegression()),
    "moments": ({"method": "moments", "unit": True, "intercept": 0.5}, RidgeClassifier()),
    "lda": ({"method": "lda", "unit": True}, LinearDiscriminantAnalysis()),
    "lda, balanced": ({"method": "lda", "unit": True, "balanced": True}, LinearDiscriminantAnalysis()),
    "lda, private covariance": (
        {"method": "lda", "unit": True, "covariance": "private"},
        LinearDiscriminantAnalysis(),
    ),
    "lda, public covariance": (
        {"method": "lda", "unit": True, "covariance": "public", "public": PUBLIC},
        LinearDiscriminantAnalysis(),
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_with_little_noise_it_is_as_good_as_its_counterpart(name: str, tmp_path: Path) -> None:
    settings, peer = PEERS[name]
    accuracy, (x, y, test_x, test_y) = _accuracy(tmp_path, 50.0, 1500, settings)
    counterpart = peer.fit(x, y).score(test_x, test_y)
    assert counterpart > 0.97
    assert accuracy > counterpart - 0.015


@pytest.mark.parametrize("name", PEERS)
def test_with_much_noise_it_is_near_chance(name: str, tmp_path: Path) -> None:
    """20 rows at epsilon 0.01, the mean over 8 heads: chance is 0.25, and one head alone is anywhere from 0 to 0.6."""
    settings, _ = PEERS[name]
    results = [_accuracy(tmp_path / str(i), 0.01 + i * 1e-6, 20, settings, seed=i)[0] for i in range(8)]
    assert np.mean(results) < 0.45


def test_what_is_kept_is_the_average_the_ema_or_the_last() -> None:
    """Three steps with known results: weights -1, -3, -6 times the rate; the second half is steps 2 and 3 of 3."""
    rows = Rows.of(*some_rows(np.random.default_rng(0), 5), Preparation(), classes=CLASSES)
    gradients = iter([])

    def noisy(bounded: BoundedSum) -> np.ndarray:
        return np.full_like(bounded.total, next(gradients))

    kept = {}
    for keep in ("average", "ema", "last"):
        gradients = iter([1.0, 2.0, 3.0])
        method = GradientDescent(steps=3, total_rate=3.0, momentum=0.0, keep=keep)
        kept[keep] = method.fit(rows, n=1, sigma=1.0, add_noise=noisy)[0][0, 0]
    assert kept["last"] == -6 and kept["average"] == -4.5
    assert kept["ema"] == pytest.approx(-(0.81 * 1 + 0.9 * 3 + 6) / (0.81 + 0.9 + 1))
    gradients = iter([1.0, 0.0, 0.0])
    method = GradientDescent(steps=3, total_rate=3.0, momentum=0.5, keep="last")
    assert method.fit(rows, n=1, sigma=1.0, add_noise=noisy)[0][0, 0] == -1.75


def test_the_rate_is_the_total_over_the_steps_or_set_by_the_noise() -> None:
    assert GradientDescent(steps=50, total_rate=100.0).rate(n=10, sigma=5.0) == 2.0
    free = GradientDescent(steps=100)
    # (1 - 0.9) * 0.5 * n / (sigma * sqrt(100)): linear in n and in 1/sigma, up to a limit.
    assert free.rate(n=1000, sigma=10.0) == pytest.approx(0.5)
    assert free.rate(n=2000, sigma=10.0) == pytest.approx(1.0) == free.rate(n=1000, sigma=5.0)
    assert free.rate(n=10**9, sigma=1.0) == LARGEST_RATE


def test_the_total_rate_is_linear_in_epsilon() -> None:
    points = ((0.2, 220.0), (1.0, 1000.0))
    for epsilon, total in points:
        assert scaled_rate(epsilon, at=points) == pytest.approx(total)
    assert scaled_rate(0.6, at=points) == pytest.approx(610.0)
    assert scaled_rate(2.0, at=points) == pytest.approx(1975.0)
    for wrong in (((1.0, 5.0), (1.0, 6.0)), ((0.0, 5.0), (1.0, 6.0)), ((0.5, -5.0), (1.0, 6.0))):
        with pytest.raises(ConfigError, match="two points"):
            scaled_rate(1.0, at=wrong)
    with pytest.raises(ConfigError, match="no positive rate"):
        scaled_rate(0.1, at=((1.0, 1.0), (2.0, 100.0)))


def test_an_intercept_becomes_the_bias(tmp_path: Path) -> None:
    """Scores from the weights and the bias are those of the rows with their constant feature."""
    x, y = separable(np.random.default_rng(9), 100)
    settings: dict[str, Any] = {"steps": 3, "intercept": 0.7, "unit": True}
    head = fit_head(x, y, Budget(5.0, 1e-5), classes=CLASSES, ledger=new_ledger(tmp_path), test_key="i", **settings)
    assert head.weight.shape == (WIDTH, CLASSES) and head.bias is not None and head.bias.shape == (CLASSES,)
    rows, _ = Preparation(unit=True, intercept=0.7).apply(x)
    whole = np.vstack([head.weight, head.bias / rows[0, -1]])
    assert np.allclose(head.scores(x), rows.astype(float) @ whole)
    assert head.settings["intercept"] == 0.7 and head.settings["steps"] == 3 and head.method == "gd"
