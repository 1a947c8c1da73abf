"""Rows that are drawn from moments: without noise they have the classes' means and covariance; noise breaks nothing."""

from __future__ import annotations

import numpy as np
import pytest

from dpvision.released.moments import FLOOR, FLOOR_OF_NOISE, MIN_RIDGE, ClassMoments, class_means, without_noise
from tests.private.statistics.releases.charged import CLASSES, WIDTH, data, rows_of

DRAWN = 60_000


def _exact(x: np.ndarray, labels: np.ndarray, **noise: float) -> ClassMoments:
    x = x.astype(np.float64)
    results = {"noise_of_sums": 0.0, "noise_of_counts": 0.0, "noise_of_second": 0.0, **noise}
    y = np.eye(CLASSES)[labels]
    return ClassMoments(sums=x.T @ y, counts=y.sum(axis=0), second=x.T @ x, n=len(x), **results)


def test_without_noise_rows_are_as_the_records_were() -> None:
    x, labels = data()
    rows = rows_of(x + 2 * np.eye(WIDTH)[labels], labels)
    moments = _exact(rows.x, labels)
    features, classes = moments.draw(DRAWN, np.random.default_rng(0))
    assert features.dtype == np.float32 and classes.dtype == np.int64
    wanted = np.stack([rows.x[labels == k].mean(axis=0) for k in range(CLASSES)])
    result = np.stack([features[classes == k].mean(axis=0) for k in range(CLASSES)])
    assert np.allclose(moments.means, wanted, atol=1e-6), "nothing is drawn in where there is no noise"
    assert np.allclose(result, wanted, atol=0.01)
    assert np.allclose(np.bincount(classes) / DRAWN, np.bincount(labels) / len(labels), atol=0.01)
    within = np.cov(rows.x - wanted[labels], rowvar=False, bias=True) + MIN_RIDGE * np.eye(WIDTH)
    assert np.allclose(np.cov(features - result[classes], rowvar=False), within, atol=0.1 * within.max())
    values, vectors = moments.spread
    assert np.allclose(vectors * values @ vectors.T, within, atol=1e-7)


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.1, 2.0, 30.0, 1e4])
def test_means_are_drawn_to_the_middle_and_never_past_it(noise: float) -> None:
    x, labels = data()
    rows = rows_of(x, labels)
    moments = _exact(rows.x, labels, noise_of_sums=noise, noise_of_second=noise)
    raw = class_means(moments.sums, moments.sizes)
    middle = moments.shares @ raw
    away = raw - middle
    kept = ((moments.means - middle) * away).sum(axis=1) / (away**2).sum(axis=1)
    assert (kept >= 0).all() and (kept <= 1 + 1e-12).all()
    assert np.allclose(moments.means, middle + kept[:, None] * away), "along the line to the middle"
    if noise == 0:
        assert np.allclose(kept, 1)
    if noise == 1e4:
        assert not kept.any(), "means that are noise alone are all the middle"


def test_james_and_stein_come_nearer_to_the_truth() -> None:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, CLASSES, 900)
    rows = rows_of(rng.normal(size=(900, WIDTH)) + 0.2 * np.eye(WIDTH)[labels], labels)
    exact, errors = _exact(rows.x, labels), []
    for _ in range(30):
        noisy = exact.sums + rng.normal(size=exact.sums.shape) * 40
        got = ClassMoments(noisy, exact.counts, exact.second, 900, 40.0, 0.0, 0.0)
        raw = class_means(noisy, got.sizes)
        errors.append([((m - exact.means) ** 2).sum() for m in (got.means, raw)])
    drawn_in, as_is = np.mean(errors, axis=0)
    assert drawn_in < 0.8 * as_is


@pytest.mark.parametrize("counts", [(-50.0, 20.0, 60.0), (0.0, 0.0, 0.0), (-1e9, -1e9, -1e9), (1e9, 1.0, 1.0)], ids=str)
def test_noisy_counts_and_moments_break_nothing(counts: tuple[float, ...]) -> None:
    rng = np.random.default_rng(2)
    sums, second = rng.normal(size=(WIDTH, CLASSES)) * 100, rng.normal(size=(WIDTH, WIDTH)) * 100
    moments = ClassMoments(sums, np.array(counts), -(second @ second.T), 90, 100.0, 100.0, 100.0)
    features, labels = moments.draw(200, rng)
    assert features.shape == (200, WIDTH) and labels.shape == (200,)
    assert np.isfinite(features).all() and set(labels) <= set(range(CLASSES))
    assert moments.shares.min() > 0 and moments.shares.sum() == pytest.approx(1)
    assert moments.spread[0].min() > 0, "no direction of a Gaussian is below 0"


def test_coins_are_public() -> None:
    moments = _exact(rows_of(*data()).x, data()[1])
    one, two, other = (moments.draw(50, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(one, two) and not np.array_equal(one, other)


@pytest.mark.parametrize("noise", [0.003, 0.03, 0.3])
def test_eigenvalues_without_what_noise_did_to_them(noise: float) -> None:
    """They are about the variance of the truth along each noisy eigenvector; positive parts alone are far from it."""
    rng = np.random.default_rng(0)
    truth = np.diag(1.0 / np.arange(1, 201))
    drawn = rng.normal(size=truth.shape) * noise
    noisy = truth + (drawn + drawn.T) / 2
    values, vectors = without_noise(noisy, noise=noise)
    along = np.einsum("di,de,ei->i", vectors, truth, vectors)
    fixed = FLOOR_OF_NOISE * noise * np.sqrt(len(truth) / 2) + MIN_RIDGE
    floor = FLOOR / (1 + FLOOR) * (values - fixed).mean() + fixed
    error = np.abs(values - floor - along).mean()
    assert error < 0.35 * np.abs(np.maximum(np.linalg.eigvalsh(noisy), 0) - along).mean()
    assert (np.diff(values) >= 0).all() and values.min() >= floor - 1e-12
