"""Every learner is a scikit-learn classifier, takes soft labels or classes, and refuses what it cannot use by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpvision.errors import ConfigError
from dpvision.released.learners import DiscriminantLearner, Learner, LinearLearner, NetworkLearner, RidgeLearner
from tests.one_thread import one_thread  # noqa: F401
from tests.released.learners.cases import CLASSES, digits, mixtures

LEARNERS: dict[str, Learner] = {
    "linear": LinearLearner(epochs=5, rate=0.02),
    "network": NetworkLearner(epochs=5, rate=0.02, hidden=32),
    "ridge": RidgeLearner(),
    "discriminant": DiscriminantLearner(),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_from_classes(name: str) -> None:
    x, y, test_x, test_y = digits()
    learner = clone(LEARNERS[name]).fit(x, y)
    assert learner.score(test_x, test_y) > 0.85
    assert list(learner.classes_) == list(range(CLASSES)) and learner.n_features_in_ == 64
    p = learner.predict_proba(test_x)
    assert p.shape == (len(test_x), CLASSES) and (p >= 0).all() and np.allclose(p.sum(axis=1), 1)
    assert np.array_equal(p.argmax(axis=1), learner.predict(test_x))


@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_from_noisy_mixtures(name: str) -> None:
    release, (_, _, test_x, test_y) = mixtures(), digits()
    assert release.y.min() < 0
    assert clone(LEARNERS[name]).fit(release.x, release.y).score(test_x, test_y) > 0.75


@pytest.mark.parametrize("name", LEARNERS)
def test_one_hot_labels_are_classes(name: str) -> None:
    x, y, *_ = digits()
    results = [clone(LEARNERS[name]).fit(x, labels).scores(x[:50]) for labels in (y, np.eye(CLASSES)[y])]
    assert np.array_equal(*results)


@pytest.mark.parametrize("name", LEARNERS)
def test_it_is_a_scikit_learn_classifier(name: str) -> None:
    learner = LEARNERS[name]
    with pytest.raises(NotFittedError):
        learner.predict(X)
    assert is_classifier(learner) and clone(learner).get_params() == learner.get_params()
    assert clone(learner).set_params(classes=3).classes == 3
    with pytest.raises(ValueError, match="Invalid parameter"):
        clone(learner).set_params(clases=3)
    x, y, test_x, _ = digits()
    names = np.array([f"digit {i}" for i in range(CLASSES)])
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows * 3), clone(learner)).fit(x, names[y])
    alone = clone(learner).fit(x * 3, y)
    assert np.array_equal(pipeline.predict(test_x), names[alone.predict(test_x * 3)])
    assert pipeline.predict(test_x[:1]).shape == (1,)


def test_a_grid_of_settings() -> None:
    x, y, *_ = digits()
    search = GridSearchCV(DiscriminantLearner(), {"ridge": [0.03, 1e6]}, cv=3).fit(x, y)
    assert search.best_params_ == {"ridge": 0.03}


@pytest.mark.parametrize("name", LEARNERS)
def test_the_number_of_classes_is_what_is_given(name: str) -> None:
    """Also where no row has the last of them, which is then never the answer."""
    x, y, *_ = digits()
    learner = clone(LEARNERS[name]).set_params(classes=12).fit(x, y)
    assert learner.scores(x[:5]).shape == (5, 12) and set(learner.predict(x)) <= set(range(CLASSES))
    assert (learner.predict(x) == y).mean() > 0.85


X, Y = np.zeros((4, 3), np.float32) + np.arange(4, dtype=np.float32)[:, None], np.array([0, 1, 0, 1])
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "too few labels": (Y[:3], {}, "there are 4 rows"),
    "no labels": (None, {}, "requires y"),
    "one class": (np.zeros(4, int), {}, "only one class"),
    "fractions": (np.array([0.5, 1, 0, 1]), {}, "not whole"),
    "out of range": (Y, {"classes": 1}, "classes is 1"),
    "a class too many": (Y + 1, {"classes": 2}, "from 0 to 1"),
    "below 0": (Y - 1, {"classes": 2}, "from 0 to 1"),
    "other columns": (np.zeros((4, 3)), {"classes": 2}, "3 columns"),
    "one column": (np.zeros((4, 1)), {}, "a column per class"),
    "not finite": (np.full((4, 2), np.nan), {}, "not finite"),
    "three axes": (np.zeros((4, 2, 2)), {}, "soft labels"),
    "ridge": (Y, {"ridge": 0}, "ridge is 0"),
    "noise": (Y, {"noise_x": -1.0}, "noise_x is -1"),
    "noise of labels": (Y, {"noise_y": float("nan")}, "noise_y is nan"),
    "degree": (Y, {"degree": True}, "degree is True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_used_is_refused_by_name(name: str) -> None:
    labels, settings, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        DiscriminantLearner(**settings).fit(X, labels)


def test_settings_of_the_descent_are_refused_by_name() -> None:
    for settings in ({"epochs": 0}, {"epochs": 1.5}, {"rate": 0.0}, {"batch": 0}, {"weight_decay": -1}, {"seed": -1}):
        (setting,) = settings
        with pytest.raises(ConfigError, match=f"{setting} is"):
            LinearLearner(**settings).fit(X, Y)
    with pytest.raises(ConfigError, match="hidden is"):
        NetworkLearner(hidden=0).fit(X, Y)


def test_rows_that_can_not_be_used_are_refused_by_scikit_learn() -> None:
    learner = RidgeLearner().fit(X, Y)
    for wrong in (np.full((4, 3), np.nan), np.zeros((4, 2)), np.zeros(3)):
        with pytest.raises(ValueError, match=r"NaN|features|1D"):
            learner.predict(wrong)


def test_nothing_private_is_loaded() -> None:
    code = (
        "import sys, dpvision.released.learners; "
        "print([m for m in sys.modules if m.startswith(('dpvision.core', 'dpvision.private', 'dpvision.data'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
