"""Measures are those of scikit-learn, and intervals contain the truth about as often as they state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    roc_auc_score,
)

from dpvision.models.inputs import Predictions
from dpvision.models.tasks import Task
from dpvision.released.measures import auroc, interval, measure, wilson


def _of_classes(seed: int = 0, images: int = 400, classes: int = 4) -> tuple[Predictions, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    chances = rng.dirichlet(np.ones(classes), images) + 0.7 * np.eye(classes)[labels]
    chances /= chances.sum(1, keepdims=True)
    answers = chances.argmax(1)
    return Predictions(answers, chances.max(1), chances), labels


def test_measures_of_classes_and_grades_are_those_of_scikit_learn() -> None:
    predictions, labels = _of_classes()
    figures = measure(predictions, labels, Task("grades", 4))["measures"]
    assert predictions.chances is not None
    assert figures["balanced_accuracy"][0] == pytest.approx(balanced_accuracy_score(labels, predictions.answers))
    assert figures["macro_auroc"][0] == pytest.approx(
        roc_auc_score(labels, predictions.chances, multi_class="ovr", average="macro")
    )
    assert figures["macro_average_precision"] == pytest.approx(
        average_precision_score(np.eye(4)[labels], predictions.chances, average="macro")
    )
    assert figures["kappa"][0] == pytest.approx(cohen_kappa_score(labels, predictions.answers, weights="quadratic"))
    assert "kappa" not in measure(predictions, labels, Task("classes", 4))["measures"]
    assert all(low <= value <= high for value, low, high in figures["auroc"])


def test_measures_of_labels_leave_out_what_is_unknown() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 2, (300, 3))
    labels[:, 2] = np.where(labels[:, 2] == 0, -1, labels[:, 2])  # never known to be absent
    chances = np.clip(0.5 * rng.random((300, 3)) + 0.25 * (labels == 1), 0, 1)
    answers = (chances > 0.4).astype(np.int64)
    result = measure(Predictions(answers, chances, chances), labels, Task("labels", 3))
    known = labels[:, 0] >= 0
    figures = result["measures"]
    assert figures["auroc"][0][0] == pytest.approx(roc_auc_score(labels[known, 0], chances[known, 0]))
    assert figures["auroc"][2] is None and figures["average_precision"][2] is None  # only one side
    assert figures["accuracy"][0] == pytest.approx((answers == labels)[labels >= 0].mean())
    assert result["classes"]["known"] == (labels >= 0).sum(0).tolist()
    sides = [
        np.mean([(answers == labels)[labels[:, i] == s, i].mean() for s in (0, 1) if (labels[:, i] == s).any()])
        for i in range(3)
    ]
    assert figures["balanced_accuracy"][0] == pytest.approx(np.mean(sides))


def test_a_share_has_wilsons_interval() -> None:
    right = np.arange(80) < 61
    expected = binomtest(61, 80).proportion_ci(method="wilson")
    influences = (right - right.mean()) / 80
    assert interval(right.mean(), influences, least=80)[1:] == pytest.approx([expected.low, expected.high])
    assert wilson(1.0, 20)[0] == pytest.approx(binomtest(20, 20).proportion_ci(method="wilson").low)
    assert wilson(0.5, 0) == (0.0, 1.0)


def test_intervals_of_auroc_cover_the_truth() -> None:
    """Normal scores one standard deviation apart: the AUROC is Phi(1 / sqrt 2), and 93 to 97% of intervals have it."""
    rng, truth, inside = np.random.default_rng(0), norm.cdf(1 / np.sqrt(2)), 0
    present = np.arange(150) < 50
    for _ in range(400):
        found = auroc(rng.standard_normal(150) + present, present)
        assert found is not None
        _, low, high = interval(*found, least=50)
        inside += low <= truth <= high
    assert 0.92 <= inside / 400 <= 0.98
    assert auroc(np.zeros(3), np.ones(3, dtype=bool)) is None


def test_intervals_of_kappa_and_of_balanced_accuracy_cover_the_truth() -> None:
    """The truth is that of a large sample from the same table."""
    rng, table = np.random.default_rng(1), np.array([[30, 10, 1], [4, 20, 6], [1, 8, 20]]) / 100
    weights = np.square(np.arange(3)[:, None] - np.arange(3))
    kappa = 1 - (weights * table).sum() / (table.sum(1) @ weights @ table.sum(0))
    balanced = (table.diagonal() / table.sum(1)).mean()
    inside = np.zeros(2)
    for _ in range(300):
        cells = rng.choice(9, 200, p=table.ravel())
        answers = Predictions(cells % 3, np.full(200, 0.5), None)
        figures = measure(answers, cells // 3, Task("grades", 3))["measures"]
        for place, (name, truth) in enumerate((("kappa", kappa), ("balanced_accuracy", balanced))):
            _, low, high = figures[name]
            inside[place] += low <= truth <= high
    assert (inside / 300 >= 0.91).all() and (inside / 300 <= 0.99).all()


def test_one_grade_in_the_test_split_has_no_kappa() -> None:
    labels = np.zeros(9, dtype=np.int64)
    figures = measure(Predictions(labels, np.ones(9), np.eye(3)[labels]), labels, Task("grades", 3))["measures"]
    assert figures["kappa"] is None and figures["macro_auroc"] is None and figures["accuracy"][0] == 1


@pytest.mark.parametrize("positive", [9, 18])
def test_a_perfect_ranking_is_1_and_no_more(positive: int) -> None:
    """The values of scikit-learn exceed 1 by rounding here, and a file with more than 1 is refused when it is read."""
    labels = np.array([1] * positive + [0] * 5)
    first = np.linspace(0.9, 0.6, len(labels)) - 0.5 * (labels == 0)
    chances = np.stack([1 - first, first], axis=1)
    figures = measure(Predictions(labels, chances.max(1), chances), labels, Task("classes", 2))["measures"]
    assert figures["average_precision"] == [1.0, 1.0] and figures["macro_auroc"][0] == 1.0
