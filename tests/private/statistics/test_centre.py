"""Rows less their noisy mean: one release more, rows of length at most 1, and the same at classification."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpvision.core.events import Budget
from dpvision.core.rows import Preparation, Rows, row_norms
from dpvision.errors import ConfigError
from dpvision.private.statistics import fit_head
from dpvision.private.statistics.row_sums import sum_of_rows
from dpvision.private.statistics.setup import centre_rows, subtract_centre
from tests.private.statistics.cases import BUDGET, CLASSES, NASTY, WIDTH, nasty_row, new_ledger, separable, some_rows


def test_the_sum_moves_by_at_most_one_and_nearly_one() -> None:
    rng, most = np.random.default_rng(0), 0.0
    for kind in NASTY * 10:
        x, y = some_rows(rng, 9)
        x[3] = nasty_row(rng, kind, x)
        rows = Rows.of(x, y, Preparation(), classes=CLASSES)
        fewer = Rows.of(np.delete(x, 3, 0), np.delete(y, 3), Preparation(), classes=CLASSES)
        moved = float(np.linalg.norm(sum_of_rows(rows).total - sum_of_rows(fewer).total))
        assert moved <= sum_of_rows(rows).sensitivity == 1.0
        most = max(most, moved)
    assert most > 0.99


def test_rows_stay_within_length_one_and_broken_ones_stay_zero() -> None:
    rng = np.random.default_rng(1)
    x, y = some_rows(rng, 300)
    x[5], x[7] = nasty_row(rng, "nan", x), nasty_row(rng, "denormal", x)
    rows = Rows.of(x, y, Preparation(unit=True), classes=CLASSES)
    for centre in (rng.normal(size=WIDTH), rng.normal(size=WIDTH) * 1e-200, np.zeros(WIDTH), rows.x[0].astype(float)):
        moved = centre_rows(rows, centre)
        assert (row_norms(moved.x.astype(np.float64)) <= 1).all() and not moved.x[5].any()
        alone = [subtract_centre(rows.x[i : i + 1], centre)[0] for i in range(0, 300, 37) if i != 5]
        assert np.array_equal(alone, [moved.x[i] for i in range(0, 300, 37) if i != 5]), "each row on its own"


def test_one_release_more_is_charged(tmp_path: Path) -> None:
    x, y = some_rows(np.random.default_rng(2), 40)
    head = fit_head(x, y, BUDGET, classes=CLASSES, ledger=new_ledger(tmp_path), steps=7, unit=True, centre=True)
    assert head.event.count == 8 and 0.98 * BUDGET.epsilon < head.epsilon <= BUDGET.epsilon
    assert head.centre is not None and head.centre.shape == (WIDTH,)


def test_it_finds_the_mean_and_uses_it_to_classify(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x, y = separable(rng, 1000)
    x = np.hstack([x, np.full((len(x), 1), 60.0)])  # all images share a large feature
    fit = {"classes": CLASSES, "n": 1000, "steps": 30, "total_rate": 60.0, "unit": True, "test_key": "k"}
    budget = Budget(1.0, 1e-5)
    plain = fit_head(x, y, budget, ledger=new_ledger(tmp_path / "a"), **fit)
    head = fit_head(x, y, budget, ledger=new_ledger(tmp_path / "b"), centre=True, **fit)
    assert head.centre is not None
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert np.linalg.norm(head.centre - unit.mean(0)) < 0.1
    right, wrong = ((h.classes_of(x) == y).mean() for h in (head, plain))
    assert right > 0.95 and right > wrong + 0.05
    lost = replace(head, centre=None)
    assert (lost.classes_of(x) == y).mean() < right, "classified as it was fitted"


def test_a_constant_and_a_centre_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave intercept or centre out"):
        Preparation(centre=True, intercept=0.5)
