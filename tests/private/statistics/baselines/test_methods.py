"""What the methods learn: far above chance on digits, the truth without noise, and the same bits as ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from dpvision.core.events import Budget
from dpvision.core.rows import BoundedSum, Preparation, Rows
from dpvision.private.statistics.baselines import synthesise
from dpvision.private.statistics.baselines.embedding import allocate, split_by_class
from dpvision.private.statistics.baselines.p3gm import component_moments, from_moments, project
from dpvision.private.statistics.baselines.synthesis import setup_method
from tests.one_thread import one_thread
from tests.private.statistics.cases import CLASSES, WIDTH, new_ledger, separable

assert one_thread
DIGITS = load_digits()
X, Y = DIGITS.data / 16.0, DIGITS.target
FEW: dict[str, Any] = {"steps": 200, "batch": 100, "rate": 5e-3, "hidden": 64}


@pytest.mark.parametrize(
    ("settings", "floor"),
    [
        ({"method": "merf", "size": 400, **FEW}, 0.7),
        ({"method": "hermite", "order": 4, "products": 20, **FEW}, 0.7),
        ({"method": "p3gm"}, 0.7),
        ({"method": "p3gm", "repeats": 5, "steps": 5}, 0.7),
    ],
    ids=["merf", "hermite", "p3gm", "p3gm, a network"],
)
def test_digits(settings: dict[str, Any], floor: float, tmp_path: Path) -> None:
    """Chance is 0.1; fixed noise, so the figure does not change from run to run."""
    made = synthesise(
        X[:1437],
        Y[:1437],
        Budget(8.0, 1e-5),
        classes=10,
        n=1437,
        rows=600,
        ledger=new_ledger(tmp_path),
        test_key="digits",
        unit=True,
        **settings,
    )
    model = LogisticRegression(C=10.0, max_iter=300).fit(made.x, made.labels)
    assert model.score(made.prepare(X[1437:]), Y[1437:]) > floor


def test_without_noise_a_mixture_is_the_sample() -> None:
    x, y = separable(np.random.default_rng(0), 400)
    rows = Rows.of(x, y, Preparation(bound=5.0), classes=CLASSES)
    latent, missed = project(rows, np.eye(WIDTH))
    assert np.abs(missed).max() < 1e-6
    result = from_moments(
        component_moments(latent, None).total, width=WIDTH, classes=CLASSES, n=400, noise=0.0, shared=False
    )
    for j in range(CLASSES):
        own = latent.x[y == j].astype(float)
        covariance = result.vectors[j] * result.values[j] @ result.vectors[j].T
        assert np.allclose(result.means[j], own.mean(axis=0), atol=1e-9)
        assert np.allclose(covariance, np.cov(own.T, bias=True), atol=1e-5)
        assert np.isclose(result.shares[j], (y == j).mean())
    z, labels = result.draw(40_000, np.random.default_rng(1))
    own = z[labels == 2]
    assert np.allclose(own.mean(axis=0), result.means[2], atol=0.01)
    assert np.allclose(np.cov(own.T), result.vectors[2] * result.values[2] @ result.vectors[2].T, atol=2e-3)


def test_rounds_find_two_components_of_a_class() -> None:
    """Class 0 is at two places; one Gaussian lies across both, two components find them."""
    rng = np.random.default_rng(0)
    side = rng.integers(0, 2, 600)
    x = np.where(side[:, None], 1.0, -1.0) * np.eye(WIDTH)[0] * 0.8 + rng.normal(size=(600, WIDTH)) * 0.05
    plan = setup_method("p3gm", {"latent": WIDTH, "components": 2, "rounds": 8})
    rows = Rows.of(x, np.zeros(600, dtype=int), plan.preparation, classes=2)
    made, labels = plan.method.make(rows, n=600, sigma=1e-6, add_noise=lambda b: b.total, count=2000, seed=0)
    own = made[labels == 0]
    assert (np.abs(np.abs(own[:, 0]) - 0.8) < 0.25).mean() > 0.95
    assert 0.3 < (own[:, 0] > 0).mean() < 0.7


def test_a_network_adds_what_the_components_miss() -> None:
    """x is on a parabola: with one component the bend is lost, and the network brings it back."""
    t = np.random.default_rng(0).uniform(-0.7, 0.7, 500)
    x = np.stack([t, t**2, np.zeros(500)], axis=1)
    missed = []
    for steps in (0, 150):
        plan = setup_method("p3gm", {"latent": 1, "steps": steps, "rate": 0.03, "hidden": 16})
        rows = Rows.of(x, np.zeros(500, dtype=int), plan.preparation, classes=2)
        made, _ = plan.method.make(rows, n=500, sigma=1e-6, add_noise=lambda b: b.total, count=300, seed=0)
        near = made[np.abs(made[:, 0]) < 0.6]
        missed.append(float(np.abs(near[:, 1] - near[:, 0] ** 2).mean()))
    assert missed[1] < 0.3 * missed[0]


def test_embeddings_come_back_split_by_class() -> None:
    vector = np.concatenate([np.arange(12.0) * 0.8, np.array([3.0, -5.0, 9.0]) * 0.6])
    mu, result = split_by_class(vector, classes=3, c=0.6, n=10)
    assert np.allclose(mu, np.arange(12.0).reshape(4, 3) / 10)
    assert np.allclose(result, np.array([3, 1 / 3, 9]) / (12 + 1 / 3)), "a count below 0 becomes a small one"
    assert np.allclose(split_by_class(np.ones(8), classes=4, c=0.0, n=10)[1], 0.25)
    assert allocate(8, np.array([0.25, 0.5, 0.25])).tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert allocate(3, np.array([0.1, 0.1, 0.8 - 1e-12])).max() == 2


@pytest.mark.parametrize("method", ["merf", "hermite", "p3gm"])
def test_no_private_rows_at_all_still_give_rows(method: str) -> None:
    """Noise in, rows out: nothing about the data decides whether there is a result."""
    small = {"latent": 3} if method == "p3gm" else {"steps": 2, "batch": 8}
    plan = setup_method(method, small)
    rows = Rows.of(np.zeros((0, WIDTH)), np.zeros(0, dtype=int), plan.preparation, classes=CLASSES)

    def noisy(bounded: BoundedSum) -> np.ndarray:
        return bounded.total + np.random.default_rng(0).normal(size=bounded.total.shape) * 1e4

    x, labels = plan.method.make(rows, n=1, sigma=1e4, add_noise=noisy, count=7, seed=0)
    assert np.isfinite(x).all() and np.linalg.norm(x, axis=1).max() <= 1 + 1e-6 and len(labels) == 7
