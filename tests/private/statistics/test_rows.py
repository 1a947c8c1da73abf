"""Rows are at most 1 long whatever is in them, depend on no other row, and wrong inputs are refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpvision.core.rows import AT_A_TIME, Preparation, Rows, row_norms
from dpvision.errors import ConfigError
from dpvision.private.statistics import Whitening
from tests.private.statistics.cases import NASTY, PUBLIC, WIDTH, nasty_row, some_rows

PREPARATIONS = {
    "plain": Preparation(),
    "bound": Preparation(bound=2.5),
    "unit": Preparation(unit=True),
    "whitened": Preparation(whitening=Whitening.of(PUBLIC)),
    "intercept": Preparation(intercept=0.7),
    "whitened to a few": Preparation(whitening=Whitening.of(PUBLIC, rank=2)),
    "whitened, intercept": Preparation(whitening=Whitening.of(PUBLIC, ridge=1e-3), intercept=2.0),
}


@pytest.mark.parametrize("how", PREPARATIONS)
@pytest.mark.parametrize("kind", NASTY)
def test_no_row_is_longer_than_1(how: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    others, _ = some_rows(rng, 300)
    features = np.stack([nasty_row(rng, kind, others[i:]) for i in range(300)])
    for dtype in (np.float64, np.float32):
        with np.errstate(over="ignore"):
            given = features.astype(dtype)
        x, finite = PREPARATIONS[how].apply(given)
        assert np.isfinite(x).all()
        assert row_norms(x.astype(np.float64)).max() <= 1.0
        assert np.array_equal(finite, np.isfinite(given).all(axis=1))
        if kind in ("huge", "out of range", "one feature"):
            assert row_norms(x.astype(np.float64))[finite].min(initial=1.0) > 0.99, "a long row is shortened, not lost"
        assert not x[~finite].any(), "a row that is not finite is zero, its constant feature too"


def test_rows_keep_their_direction_and_short_ones_their_length() -> None:
    features, _ = some_rows(np.random.default_rng(0), 50)
    x, _ = Preparation(bound=2.0).apply(features)
    norms = row_norms(features)
    assert np.allclose(x, features / np.maximum(norms, 2.0), atol=1e-6)
    x, _ = Preparation(unit=True).apply(features)
    assert np.allclose(x, features / norms, atol=1e-6)
    preparation = Preparation(unit=True, intercept=0.5)
    x, _ = preparation.apply(features)
    assert np.allclose(x[:, :-1], features / norms / np.sqrt(1.25), atol=1e-6)
    assert (x[:, -1] == np.float32(preparation.constant)).all() and preparation.constant > 0.44


@pytest.mark.parametrize("how", PREPARATIONS)
def test_a_row_is_the_same_alone_and_beside_others(how: str) -> None:
    """Bit by bit, at the edges of blocks too."""
    features, _ = some_rows(np.random.default_rng(1), AT_A_TIME + 9)
    together, _ = PREPARATIONS[how].apply(features)
    for i in (0, 1, 7, AT_A_TIME - 1, AT_A_TIME, AT_A_TIME + 8):
        alone, _ = PREPARATIONS[how].apply(features[i : i + 1])
        assert np.array_equal(alone[0], together[i])
    shifted, _ = PREPARATIONS[how].apply(features[3:])
    assert np.array_equal(shifted, together[3:])


def test_a_row_that_is_not_finite_has_no_class() -> None:
    features, labels = some_rows(np.random.default_rng(2), 5)
    features[1, 0], features[4, 2] = np.nan, np.inf
    rows = Rows.of(features, labels, Preparation(intercept=1.0), classes=4)
    assert rows.labels.tolist() == [labels[0], -1, labels[2], labels[3], -1]
    (block,) = rows.blocks()
    assert np.array_equal(block[1].sum(axis=1)[:5], [1, 0, 1, 1, 0]) and not block[1][5:].any()
    assert not block[0][[1, 4]].any()


def test_tensors_and_halves_are_taken() -> None:
    features, labels = some_rows(np.random.default_rng(2), 5)
    a = Rows.of(features.astype(np.float32), labels, Preparation(), classes=4)
    b = Rows.of(torch.from_numpy(features).float(), torch.from_numpy(labels), Preparation(), classes=4)
    assert np.array_equal(a.x, b.x) and np.array_equal(a.labels, b.labels)
    assert Rows.of(features.astype(np.float16), labels, Preparation(), classes=4).x.shape == (5, WIDTH)


@pytest.mark.parametrize(
    ("features", "labels", "classes", "message"),
    [
        (np.zeros(3), [0, 1, 2], 4, "features must be a matrix"),
        (np.zeros((3, 0)), [0, 1, 2], 4, "features must be a matrix"),
        (np.zeros((3, 2), dtype=int), [0, 1, 2], 4, "features must be a matrix of floats"),
        ([["a", "b"]], [0], 4, "features must be a matrix of floats"),
        ([[1.0], [1.0, 2.0]], [0, 1], 4, "features cannot be read"),
        (np.zeros((3, 2)), [0, 1], 4, "3 rows of features and 2 labels"),
        (np.zeros((3, 2)), [0, 1, 4], 4, "labels must be from 0 to 3"),
        (np.zeros((3, 2)), [0, -1, 1], 4, "labels must be from 0 to 3"),
        (np.zeros((3, 2)), [0.0, 1.0, 2.0], 4, "labels must be a list of whole numbers"),
        (np.zeros((3, 2)), [[0], [1], [2]], 4, "labels must be a list of whole numbers"),
        (np.zeros((3, 2)), [0, 0, 0], 1, "classes is 1"),
        (np.zeros((3, 2)), [0, 0, 0], True, "classes is True"),
        (np.zeros((3, 2)), [0, 0, 0], 2.0, "classes is 2.0"),
    ],
)
def test_wrong_inputs_are_refused_by_name(features, labels, classes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rows.of(features, labels, Preparation(), classes=classes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bound": 0.0}, "bound is 0"),
        ({"bound": np.inf}, "bound is inf"),
        ({"intercept": -1.0}, "intercept is -1"),
        ({"intercept": np.nan}, "intercept is nan"),
        ({"whitening": np.eye(3)}, "whitening must be made by"),
        ({"bound": 2.0, "unit": True}, "bound has no effect"),
    ],
)
def test_wrong_preparations_are_refused_by_name(settings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preparation(**settings)


def test_whitening_makes_public_features_alike_in_all_directions() -> None:
    rng = np.random.default_rng(5)
    public = rng.normal(size=(400, WIDTH)) @ rng.normal(size=(WIDTH, WIDTH)) + 3
    white = Whitening.of(public, ridge=1e-9).apply(public)
    assert np.allclose(np.cov(white, rowvar=False, bias=True), np.eye(WIDTH), atol=1e-5)
    assert np.allclose(white.mean(axis=0), 0, atol=1e-9)
    # (C + q tr(C)/d I)^(-1/2), from its definition.
    c = np.cov(public, rowvar=False, bias=True)
    w = Whitening.of(public, ridge=0.5).matrix
    assert np.allclose(w @ w @ (c + 0.5 * np.trace(c) / WIDTH * np.eye(WIDTH)), np.eye(WIDTH), atol=1e-9)


def test_a_whitening_with_a_rank_keeps_the_directions_that_differ_most() -> None:
    rng = np.random.default_rng(6)
    turn, _ = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))
    spread = np.array([0.1, 3.0, 1.0, 0.2, 2.0, 0.5])
    public = rng.normal(size=(4000, WIDTH)) * spread @ turn + 3
    white = Whitening.of(public, ridge=1e-9, rank=3)
    assert white.width == 3 and white.matrix.shape == (WIDTH, 3)
    rows = white.apply(public)
    assert np.allclose(np.cov(rows, rowvar=False, bias=True), np.eye(3), atol=1e-5)
    for column, direction in enumerate((1, 4, 2)):  # of the largest spread first
        assert abs(turn[direction] @ white.matrix[:, column]) * spread[direction] > 0.97
    # (E + q tr(C)/d)^(-1/2) V^T, from its definition.
    c = np.cov(public, rowvar=False, bias=True)
    values, vectors = np.linalg.eigh(c)
    ridged = Whitening.of(public, ridge=0.5, rank=2).matrix
    wanted = vectors[:, ::-1][:, :2] / np.sqrt(values[::-1][:2] + 0.5 * np.trace(c) / WIDTH)
    assert np.allclose(np.abs(ridged), np.abs(wanted))
    # All of them: the same lengths and angles as without a rank.
    full, every = Whitening.of(public, rank=WIDTH), Whitening.of(public)
    assert np.allclose(full.apply(public) @ full.apply(public[:9]).T, every.apply(public) @ every.apply(public[:9]).T)
    x, _ = Preparation(whitening=white).apply(public)
    assert x.shape == (4000, 3) and np.allclose(row_norms(x.astype(np.float64)), 1, atol=1e-5)


@pytest.mark.parametrize("rank", [0, -1, WIDTH + 1])
def test_no_such_rank(rank: int) -> None:
    with pytest.raises(ConfigError, match=f"rank is {rank}: it must be from 1 to {WIDTH}"):
        Whitening.of(PUBLIC, rank=rank)


@pytest.mark.parametrize(
    ("public", "ridge", "message"),
    [
        (PUBLIC, 0.0, "ridge is 0"),
        (PUBLIC[:1], 0.1, "at least 2 rows"),
        (np.full((5, 3), np.nan), 0.1, "finite"),
        (np.ones((5, 3)), 0.1, "all the same"),
    ],
)
def test_a_whitening_of_nothing_is_refused(public, ridge, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Whitening.of(public, ridge=ridge)


def test_a_whitening_of_other_features_is_refused() -> None:
    with pytest.raises(ConfigError, match="the whitening expects 6"):
        Preparation(whitening=Whitening.of(PUBLIC)).apply(np.zeros((2, 5)))


@pytest.mark.parametrize("count", [1, 2, 5, 255, 256, 257, 300])
def test_a_row_has_the_same_bits_in_the_last_block(count: int) -> None:
    """Every block has the same number of rows: a product with few rows rounds them differently."""
    rng = np.random.default_rng(0)
    features, weight = rng.standard_normal((600, 37)), rng.standard_normal((37, 5))
    of = lambda n: Rows.of(features[:n], np.arange(n) % 5, Preparation(unit=True), classes=5)  # noqa: E731
    scores = np.vstack([x @ weight for x, _, _ in of(600).blocks()])
    blocks = list(of(count).blocks())
    assert np.array_equal(np.vstack([x @ weight for x, _, _ in blocks])[:count], scores[:count])
    assert sum(y.sum() for _, y, _ in blocks) == count
    assert {len(x) for x, *_ in blocks} == {AT_A_TIME}
