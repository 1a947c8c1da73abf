"""The choice among settings is made on public rows, with noise that weighs as much as in the private fit."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from dpvision.core.events import Budget
from dpvision.errors import ConfigError
from dpvision.private.statistics import choose, fit_head
from tests.private.statistics.cases import CLASSES, new_ledger, separable

X, Y = separable(np.random.default_rng(1), 300)
BUDGET = Budget(1.0, 1e-5)


def test_it_takes_nothing_private() -> None:
    names = set(inspect.signature(choose).parameters)
    assert names == {
        "public_features",
        "public_labels",
        "candidates",
        "budget",
        "classes",
        "n",
        "public",
        "repeats",
        "seed",
    }


def test_the_better_candidate_wins_and_can_be_fitted(tmp_path: Path) -> None:
    candidates = [
        {"method": "gd", "steps": 2, "bound": 1e6, "total_rate": 1.0},  # rows of no length: noise only
        {"method": "lda", "unit": True},
        {"method": "moments", "bound": 1e6},
    ]
    choice = choose(X, Y, candidates, BUDGET, classes=CLASSES, n=2000)
    assert choice.settings is candidates[1]
    assert choice.accuracy == choice.accuracies[1] == max(choice.accuracies) > 0.95
    assert choice.accuracies[0] < 0.6
    head = fit_head(X, Y, BUDGET, classes=CLASSES, n=300, ledger=new_ledger(tmp_path), **choice.settings)
    assert head.method == "lda"


def test_the_noise_weighs_as_it_would_beside_n_private_rows() -> None:
    """The same public rows: good for a large private data set, useless for a tiny one."""
    results = [
        choose(X, Y, [{"method": "lda", "unit": True}], BUDGET, classes=CLASSES, n=n).accuracy for n in (5, 10**6)
    ]
    assert results[0] < 0.6 and results[1] > 0.95


@pytest.mark.parametrize("n", [20, 400])
def test_what_it_expects_is_what_a_fit_reaches(n: int, tmp_path: Path) -> None:
    """The mean over many simulated and over many real fits on as many rows agree."""
    candidate = {"method": "lda", "unit": True, "balanced": True}
    expected = choose(X, Y, [candidate], Budget(0.5, 1e-5), classes=CLASSES, n=n, repeats=40).accuracy
    rng = np.random.default_rng(2)
    test_x, test_y = separable(rng, 500)
    reached = []
    for i in range(40):
        x, y = separable(rng, n)
        ledger = new_ledger(tmp_path / str(i))
        head = fit_head(x, y, Budget(0.5, 1e-5), classes=CLASSES, n=n, ledger=ledger, test_key=str(i), **candidate)
        reached.append((head.classes_of(test_x) == test_y).mean())
    assert expected == pytest.approx(np.mean(reached), abs=0.1)


def test_the_same_seed_gives_the_same_choice() -> None:
    candidates = [{"method": "lda"}, {"method": "moments"}]
    a, b = (choose(X, Y, candidates, BUDGET, classes=CLASSES, n=50) for _ in "ab")
    assert a.accuracies == b.accuracies
    assert a.accuracies != choose(X, Y, candidates, BUDGET, classes=CLASSES, n=50, seed=9).accuracies


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": []}, "candidates is empty"),
        ({"candidates": [{"method": "nothing"}]}, "method is 'nothing'"),
        ({"candidates": [{"methods": "gd"}]}, "methods"),
        ({"candidates": [{"method": "newton"}]}, "public features"),
        ({"n": 0}, "n and repeats"),
        ({"public_labels": Y[:-1]}, "300 public rows and 299 labels"),
        ({"public_labels": Y + 1}, "public_labels must be from 0 to 3"),
        ({"public_features": X[:, 0]}, "public_features must be a matrix"),
    ],
)
def test_wrong_inputs_are_refused_by_name(changes, message: str) -> None:
    given = {
        "public_features": X,
        "public_labels": Y,
        "candidates": [{"method": "lda"}],
        "budget": BUDGET,
        "classes": CLASSES,
        "n": 100,
    }
    with pytest.raises(ConfigError, match=message):
        choose(**(given | changes))
