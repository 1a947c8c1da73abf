"""Closed forms are those of scikit-learn on exact rows, and come near them again on noisy mixtures of the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression

from dpvision.released.learners import DiscriminantLearner, RidgeLearner
from dpvision.released.learners.closed import Averages
from tests.released.learners.cases import CLASSES, digits, mixtures

TINY = 1e-9


def _overlapping() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.choice(4, 3000, p=[0.4, 0.3, 0.2, 0.1])
    x = np.eye(5)[y] @ rng.normal(size=(5, 5)) + rng.normal(size=(3000, 5)) @ rng.normal(size=(5, 5)) + 3
    return x.astype(np.float32), y


def test_averages_are_those_of_numpy() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(5000, 6)) + 40).astype(np.float32), rng.normal(size=(5000, 3)).astype(np.float32)
    result, a, b = Averages.of(x, y), x.astype(float), y.astype(float)
    for got, expected in ((result.xx, a.T @ a), (result.xy, a.T @ b), (result.yy, b.T @ b)):
        assert np.allclose(got, expected / 5000, rtol=1e-6, atol=1e-5)
    assert np.allclose(result.x, a.mean(axis=0)) and np.allclose(result.y, b.mean(axis=0))


def test_exact_rows_give_the_usual_discriminant() -> None:
    x, y = _overlapping()
    learner = DiscriminantLearner(ridge=TINY).fit(x, y)
    peer = LinearDiscriminantAnalysis().fit(x, y)
    assert np.abs(learner.predict_proba(x) - peer.predict_proba(x)).max() < 2e-3


def test_exact_rows_give_the_usual_regression() -> None:
    x, y = _overlapping()
    learner = RidgeLearner(ridge=TINY).fit(x, y)
    assert np.allclose(learner.scores(x), LinearRegression().fit(x, np.eye(4)[y]).predict(x), atol=1e-4)


def _shares_of_weights(learner: object, exact: object) -> float:
    a, b = (getattr(one, "weight_") for one in (learner, exact))  # noqa: B009
    a, b = (w - w.mean(axis=1, keepdims=True) for w in (a, b))
    return float((a * b).sum() / (b * b).sum())


def test_noise_in_features_makes_weights_small_and_the_correction_makes_up_for_it() -> None:
    """Rows as they are, with noise as large as they vary: regression would give a share of each weight only."""
    x, y = _overlapping()
    rng, noise = np.random.default_rng(2), 1.0
    many, labels = np.tile(x, (20, 1)), np.tile(y, 20)
    noisy = many + rng.normal(size=many.shape).astype(np.float32) * np.float32(noise)
    for kind in (RidgeLearner, DiscriminantLearner):
        exact = kind(ridge=TINY).fit(x, y)
        assert _shares_of_weights(kind(ridge=TINY).fit(noisy, labels), exact) < 0.8
        assert _shares_of_weights(kind(ridge=TINY, noise_x=noise).fit(noisy, labels), exact) == pytest.approx(
            1, abs=0.1
        )


def test_noise_in_labels_shrinks_class_means_and_the_correction_makes_up_for_it() -> None:
    """Means as the discriminant has them: S W = M^T."""
    release = mixtures(rows=12000, sigma=1.4)
    x, y, *_ = digits()
    exact = np.stack([x[y == k].mean(axis=0) for k in range(CLASSES)])
    of = Averages.of(release.x, release.y)
    far = []
    for noise in (0.0, release.noise_y):
        means = np.linalg.solve(of.yy - noise**2 * np.eye(CLASSES), of.xy.T)
        far.append(np.linalg.norm(means - exact))
    assert far[1] < 0.7 * far[0]


@pytest.mark.parametrize("kind", ["ridge", "discriminant"])
def test_on_mixtures_the_known_noise_is_worth_knowing(kind: str) -> None:
    release, (x, y, test_x, test_y) = mixtures(rows=12000), digits()
    if kind == "ridge":
        plain, known, exact = RidgeLearner(), RidgeLearner(noise_x=release.noise_x), RidgeLearner()
    else:
        plain = DiscriminantLearner(degree=release.degree)
        known = DiscriminantLearner(degree=release.degree, noise_x=release.noise_x, noise_y=release.noise_y)
        exact = DiscriminantLearner()
    accuracy = known.fit(release.x, release.y).score(test_x, test_y)
    assert accuracy > plain.fit(release.x, release.y).score(test_x, test_y) + 0.01
    assert accuracy > exact.fit(x, y).score(test_x, test_y) - 0.06


def test_mixtures_have_the_covariance_of_single_records() -> None:
    """Probabilities need its scale, which is what `degree` is for. Eight records a row, drawn with replacement."""
    x, y = _overlapping()
    rng, noise = np.random.default_rng(3), 0.03
    drawn = rng.integers(0, len(x), (20000, 8))
    rows = x[drawn].mean(axis=1) + rng.normal(size=(20000, 5)) * noise
    labels = np.eye(4)[y[drawn]].mean(axis=1) + rng.normal(size=(20000, 4)) * noise
    mixed = DiscriminantLearner(degree=8, noise_x=noise, noise_y=noise, ridge=TINY).fit(rows, labels)
    exact = DiscriminantLearner(ridge=TINY).fit(x, y)
    assert _shares_of_weights(mixed, exact) == pytest.approx(1.0, abs=0.1)
    assert np.abs(mixed.predict_proba(x) - exact.predict_proba(x)).mean() < 0.03


def test_a_class_in_no_row_and_features_that_do_not_vary() -> None:
    x, y = _overlapping()
    still = np.hstack([x, np.ones((len(x), 2), np.float32)])
    for learner in (DiscriminantLearner(classes=6), RidgeLearner(classes=6)):
        assert (learner.fit(still, y).predict(still) == y).mean() > 0.5
        assert np.isfinite(learner.scores(still)).all()


def test_more_noise_said_than_there_is_still_gives_numbers() -> None:
    x, y = _overlapping()
    for learner in (DiscriminantLearner(noise_x=100.0, noise_y=100.0), RidgeLearner(noise_x=100.0)):
        assert np.isfinite(learner.fit(x, y).scores(x)).all()
