"""One image more or less moves every released vector by at most what it claims, and changes nothing else.

Each head is fitted on one data set while all that reaches the noise is recorded, then on a neighbour which is given the
very same noisy results: a difference between the two is then due to the one image alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.core import noise
from dpvision.core.rows import AT_A_TIME, BoundedSum, Preparation, Rows, row_norms
from dpvision.errors import ConfigError
from dpvision.private.statistics import fit_head, logistic
from dpvision.private.statistics.baselines.embedding import embedded_sum
from dpvision.private.statistics.closed_form import regression_sums
from dpvision.private.statistics.logistic import clipped_gradient
from dpvision.private.statistics.row_sums import class_counts, class_statistics
from tests.private.statistics.cases import BUDGET, CLASSES, NASTY, SETTINGS, WIDTH, nasty_row, new_ledger, some_rows

COUNTS = (0, 1, 2, 7, AT_A_TIME - 1, AT_A_TIME)


class Recorder:
    """Stands for noise.add_noise: keeps what it gets, and gives back noise, or what another one gave back."""

    def __init__(self, results: list[np.ndarray] | None = None) -> None:
        self.totals: list[np.ndarray] = []
        self.public: list[tuple[float, float, tuple[int, ...]]] = []
        self.results: list[np.ndarray] = []
        self._given = results

    def __call__(self, total: np.ndarray, stream: object, *, sensitivity: float, sigma: float) -> np.ndarray:
        step = len(self.totals)
        self.totals.append(total.copy())
        self.public.append((sensitivity, sigma, total.shape))
        made = total + np.random.default_rng(step).normal(size=total.shape) * 0.1 * len(total)
        self.results.append(made if self._given is None else self._given[step])
        return self.results[-1]


def _recorded(x: np.ndarray, y: np.ndarray, name: str, folder: Path, results: list[np.ndarray] | None = None):
    recorder = Recorder(results)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "add_noise", recorder)
        head = fit_head(x, y, BUDGET, classes=CLASSES, n=100, ledger=new_ledger(folder), test_key="k", **SETTINGS[name])
    return recorder, head


@pytest.mark.parametrize("name", SETTINGS)
def test_a_neighbour_moves_what_is_released_by_at_most_the_sensitivity(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    for number, kind in enumerate(NASTY):
        x, y = some_rows(rng, COUNTS[number % len(COUNTS)])
        if len(x) > 2:
            x[1], x[2] = nasty_row(rng, "huge", x), nasty_row(rng, "nan", x)
        where = int(rng.integers(0, len(x) + 1))
        more = np.insert(x, where, nasty_row(rng, kind, x), axis=0)
        labels = np.insert(y, where, rng.integers(0, CLASSES))
        before, head = _recorded(x, y, name, tmp_path / f"{number} a")
        after, other = _recorded(more, labels, name, tmp_path / f"{number} b", before.results)
        assert before.public == after.public, "sensitivity, sigma, shapes and the number of releases are public"
        assert len(before.totals) == head.event.count
        for a, b, (sensitivity, *_) in zip(before.totals, after.totals, before.public, strict=True):
            assert np.linalg.norm(a - b) <= sensitivity * (1 + 1e-9)
            if kind in ("nan", "inf"):
                assert np.linalg.norm(a - b) <= 1e-12, "such a row is in no sum"
        assert np.array_equal(head.weight, other.weight), "the weights are made of noisy results and public numbers"
        assert np.array_equal(head.bias, other.bias) if head.bias is not None else other.bias is None


QUERIES: dict[str, Callable[[Rows, np.random.Generator], BoundedSum]] = {
    **{
        f"gradient clipped to {clip}": lambda rows, rng, clip=clip: clipped_gradient(
            rows, rng.normal(size=(rows.width, rows.classes)) * 10 ** rng.uniform(-2, 4), clip=clip
        )
        for clip in (0.05, 1.0, 5.0)
    },
    **{f"moments, share {s}": lambda rows, rng, s=s: regression_sums(rows, share=s) for s in (0.02, 0.5, 0.98)},
    **{
        f"class statistics {abc}": lambda rows, rng, abc=abc: class_statistics(rows, a=abc[0], b=abc[1], c=abc[2])
        for abc in ((0.0, 1.0, 0.0), (0.0, 0.9, 0.4), (0.6, 0.8, 0.0), (0.6, 0.7, 0.3))
    },
}


@pytest.mark.parametrize("query", QUERIES)
def test_many_neighbours_of_every_sum(query: str) -> None:
    """400 pairs each, for several numbers of classes; and the claim is not far above what some row attains."""
    rng = np.random.default_rng(17)
    largest = 0.0
    for case in range(400):
        classes = int(rng.integers(2, 12))
        x = rng.normal(size=(int(rng.integers(1, 9)), WIDTH)) * 10 ** rng.uniform(-3, 3)
        x[-1] = nasty_row(rng, NASTY[case % len(NASTY)], x[:-1])
        y = rng.integers(0, classes, len(x))
        preparation = Preparation(unit=bool(case % 2), intercept=float(case % 3))
        rows = [Rows.of(x[:m], y[:m], preparation, classes=classes) for m in (len(x), len(x) - 1)]
        seed = int(rng.integers(1 << 30))
        more, fewer = (QUERIES[query](r, np.random.default_rng(seed)) for r in rows)
        assert more.sensitivity == fewer.sensitivity
        moved = float(np.linalg.norm(more.total - fewer.total)) / more.sensitivity
        assert moved <= 1 + 1e-9
        largest = max(largest, moved)
    assert largest > 0.97, "a claim that nothing comes near to would only add noise"


@pytest.mark.parametrize("task", ["labels", "grades"])
@pytest.mark.parametrize("clip", [2.5, 10.0])
def test_a_row_with_every_label_wrong_moves_the_sum_by_at_most_the_claim(task: str, clip: float) -> None:
    """Each of the 14 outputs has an error of up to 1: together more than the sqrt(2) of classes."""
    rng, outputs, largest = np.random.default_rng(23), 14, 0.0
    for case in range(200):
        x = rng.normal(size=(int(rng.integers(1, 9)), WIDTH)) * 10 ** rng.uniform(-3, 3)
        x[-1] = nasty_row(rng, NASTY[case % len(NASTY)], x[:-1])
        if task == "labels":
            y, classes = rng.integers(-1, 2, (len(x), outputs)), outputs
        else:
            y, classes = rng.integers(0, outputs + 1, len(x)), outputs + 1
        weight = rng.normal(size=(WIDTH, outputs)) * 10 ** rng.uniform(-2, 4)
        if case % 2:  # the last row's scores are large and all wrong
            weight = np.abs(weight) * np.sign(np.nan_to_num(x[-1]))[:, None] * 100
            y[-1] = 0
        sums = [
            Rows.of(x[:m], y[:m], Preparation(unit=True), classes=classes, several=task == "labels")
            for m in (len(x), len(x) - 1)
        ]
        more, fewer = (clipped_gradient(rows, weight, clip=clip, task=task) for rows in sums)
        assert more.sensitivity == fewer.sensitivity
        moved = float(np.linalg.norm(more.total - fewer.total)) / more.sensitivity
        assert moved <= 1 + 1e-9
        largest = max(largest, moved)
    assert largest > 0.97, "a claim that nothing comes near to would only add noise"


def test_a_row_whose_score_is_no_number_adds_nothing() -> None:
    """Weights that overflow in one row's direction alone."""
    x, y = np.eye(WIDTH)[:3], np.array([0, 1, 2])
    x[1, 3], weight = 1.0, np.full((WIDTH, CLASSES), 0.1)
    weight[1, 0], weight[3, 0] = 1.7e308, 1.7e308
    some = Rows.of(x[[0, 2]], y[[0, 2]], Preparation(unit=True), classes=CLASSES)
    every = Rows.of(x, y, Preparation(unit=True), classes=CLASSES)
    with np.errstate(over="ignore", invalid="ignore"):
        result = clipped_gradient(every, weight, clip=1.0).total
    assert np.allclose(result, clipped_gradient(some, weight, clip=1.0).total)
    weight[1, 0], weight[3, 0] = 1e12, 1e12  # a number, but its last bits decide
    assert np.allclose(result, clipped_gradient(every, weight, clip=1.0).total)


def test_the_checks_have_teeth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clipping by the row's length alone, as if |p - y| were 1, is found."""
    calls: list[int] = []

    def forgetful(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return row_norms(x) if len(calls) % 2 else np.ones((len(x), 1))

    monkeypatch.setattr(logistic, "row_norms", forgetful)
    with pytest.raises(AssertionError, match="1e-09"):
        test_many_neighbours_of_every_sum("gradient clipped to 1.0")


@pytest.mark.parametrize(
    "sums",
    [
        class_counts,
        lambda rows: class_statistics(rows, a=0.5, b=0.7, c=0.5),
        lambda rows: regression_sums(rows, share=0.5),
        lambda rows: embedded_sum(rows, lambda x: x, c=0.5),
    ],
)
def test_counts_of_rows_with_several_labels_are_refused(sums: Callable[[Rows], Any]) -> None:
    """Each label would count: a row with all of 14 would add sqrt(14), where the sum states 1."""
    rows = Rows(np.eye(4, dtype=np.float32), np.ones((4, 14), dtype=np.int64), 14)
    with pytest.raises(ConfigError, match="one class each"):
        sums(rows)
