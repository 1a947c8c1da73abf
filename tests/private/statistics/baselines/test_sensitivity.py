"""One image more or less moves every released vector by at most what it claims, and changes nothing else.

Rows are made from one data set while all that reaches the noise is recorded, then from a neighbour which is given the
very same noisy results: a difference between the two is then due to the one image alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpvision.core.rows import AT_A_TIME, BoundedSum, Preparation, Rows
from dpvision.private.statistics.baselines import embedding, p3gm
from dpvision.private.statistics.baselines.embedding import clip_to_norm_1, embedded_sum
from dpvision.private.statistics.baselines.kernels import FourierFeatures, HermiteFeatures, hermite
from dpvision.private.statistics.baselines.synthesis import setup_method
from tests.one_thread import one_thread
from tests.private.statistics.baselines.cases import RELEASES, SETTINGS
from tests.private.statistics.cases import CLASSES, NASTY, WIDTH, nasty_row, some_rows

assert one_thread
COUNTS = (0, 1, 2, 7, AT_A_TIME - 1, AT_A_TIME)


class Recorder:
    """Stands for `Releases.noisy`: keeps what it gets, and gives back noise, or what another one gave back."""

    def __init__(self, given: list[np.ndarray] | None = None) -> None:
        self.asked: list[BoundedSum] = []
        self.results: list[np.ndarray] = []
        self._given = given

    def __call__(self, bounded: BoundedSum) -> np.ndarray:
        step = len(self.asked)
        self.asked.append(BoundedSum(bounded.total.copy(), bounded.sensitivity))
        made = bounded.total + np.random.default_rng(step).normal(size=bounded.total.shape) * 3
        self.results.append(made if self._given is None else self._given[step])
        return self.results[-1]


def _made(x: np.ndarray, y: np.ndarray, name: str, given: list[np.ndarray] | None = None) -> Any:
    plan = setup_method(SETTINGS[name]["method"], {k: v for k, v in SETTINGS[name].items() if k != "method"})
    recorder = Recorder(given)
    rows = Rows.of(x, y, plan.preparation, classes=CLASSES)
    made, labels = plan.method.make(rows, n=100, sigma=3.0, add_noise=recorder, count=9, seed=5)
    assert len(recorder.asked) == plan.method.releases == RELEASES.get(name, 1)
    return recorder, made, labels


@pytest.mark.parametrize("name", SETTINGS)
def test_a_neighbour_moves_what_is_released_by_at_most_the_sensitivity(name: str) -> None:
    rng = np.random.default_rng(11)
    largest = 0.0
    for number, kind in enumerate(NASTY):
        x, y = some_rows(rng, COUNTS[number % len(COUNTS)])
        if len(x) > 2:
            x[1], x[2] = nasty_row(rng, "huge", x), nasty_row(rng, "nan", x)
        where = int(rng.integers(0, len(x) + 1))
        more = np.insert(x, where, nasty_row(rng, kind, x), axis=0)
        labels = np.insert(y, where, rng.integers(0, CLASSES))
        before, made, classes = _made(x, y, name)
        after, other, other_classes = _made(more, labels, name, before.results)
        for a, b in zip(before.asked, after.asked, strict=True):
            assert a.sensitivity == b.sensitivity and a.total.shape == b.total.shape, "both are public"
            moved = np.linalg.norm(a.total - b.total)
            assert moved <= a.sensitivity * (1 + 1e-6)
            largest = max(largest, moved / a.sensitivity)
            if kind in ("nan", "inf"):
                assert moved <= 1e-9, "such a row is in no sum"
        assert made.tobytes() == other.tobytes() and classes.tobytes() == other_classes.tobytes()
    assert largest > 0.8, "a claim that nothing comes near to would only add noise"


def test_a_row_that_is_no_number_adds_nothing_at_all() -> None:
    x, y = some_rows(np.random.default_rng(3), 6)
    for name in SETTINGS:
        alone, *_ = _made(x[:0], y[:0], name)
        bad = np.full_like(x, np.nan)
        bad[::2] = np.inf
        result, *_ = _made(bad, y, name, alone.results)
        assert not any(asked.total.any() for asked in result.asked), name


def test_fourier_features_have_length_1_and_make_the_kernel() -> None:
    x = np.random.default_rng(0).normal(size=(20, WIDTH)) * 0.2
    phi = FourierFeatures(WIDTH, size=20_000, length=0.5, seed=1)(torch.from_numpy(x)).numpy()
    assert np.allclose(np.linalg.norm(phi, axis=1), 1, atol=1e-12)
    kernel = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / (2 * 0.5**2))
    assert np.abs(phi @ phi.T - kernel).max() < 0.05


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_hermite_terms_make_the_kernel_and_are_within_length_1(rho: float) -> None:
    t = torch.linspace(-2.5, 2.5, 41, dtype=torch.float64)
    many, few = (hermite(t, order=order, rho=rho).numpy() for order in (300, 3))
    kernel = np.exp(-rho / (1 - rho**2) * (t[:, None] - t[None]).numpy() ** 2)
    assert np.abs(many @ many.T - kernel).max() < 1e-9
    assert np.linalg.norm(few, axis=1).max() <= 1 + 1e-12
    far = hermite(torch.tensor([1e6, -1e6], dtype=torch.float64), order=50, rho=rho)
    assert torch.isfinite(far).all() and far.norm(dim=1).max() <= 1


@pytest.mark.parametrize(("products", "together"), [(0, 2), (1, 1), (5, 2), (3, 3)])
def test_hermite_features_of_a_row_are_within_length_1(products: int, together: int) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(500, WIDTH)))
    made = HermiteFeatures(WIDTH, order=4, rho=0.6, scale=1.0, products=products, together=together, share=0.3, seed=0)
    phi = made(x)
    assert phi.shape[1] == 5 * WIDTH + products * 5**together
    assert 0.8 < float(phi.norm(dim=1).max()) <= 1 + 1e-12


def test_a_product_has_every_pair_of_terms() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 2)))
    made = HermiteFeatures(2, order=2, rho=0.6, scale=1.0, products=1, together=2, share=0.5, seed=0)(x)
    a, b = hermite(x[0], order=2, rho=0.6)
    pairs = {round(float(v), 12) for v in (0.5**0.5 * torch.outer(a, b)).flatten()}
    assert {round(float(v), 12) for v in made[0, 6:]} == pairs


def test_an_embedding_that_breaks_its_promise_is_cut() -> None:
    """The bound does not rest on phi."""
    x, y = some_rows(np.random.default_rng(4), 5)
    rows = [Rows.of(x[:m], y[:m], Preparation(), classes=CLASSES) for m in (5, 4)]
    for phi in (lambda t: 50 * t, lambda t: t / 0.0, lambda t: t + float("nan")):
        more, fewer = (embedded_sum(r, phi, c=0.3).total for r in rows)
        assert np.linalg.norm(more - fewer) <= 1 + 1e-9
    assert np.array_equal(clip_to_norm_1(np.array([[3.0, 4.0], [np.inf, 0.0]])), [[0.6, 0.8], [0.0, 0.0]])


def test_the_checks_have_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts next to a sum that already has all of the length are found, and so are shares that add up to 2."""
    monkeypatch.setattr(embedding.math, "sqrt", lambda value: 1.0)
    with pytest.raises(AssertionError, match="1e-06"):
        test_a_neighbour_moves_what_is_released_by_at_most_the_sensitivity("merf")
    monkeypatch.undo()
    original = p3gm.softmax
    monkeypatch.setattr(p3gm, "softmax", lambda scores: 2 * original(scores))
    with pytest.raises(AssertionError, match="1e-06"):
        test_a_neighbour_moves_what_is_released_by_at_most_the_sensitivity("p3gm, some components")
