"""Released rows: a record moves a row by its own contribution of length 1 at most, and only where it was drawn."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.core import noise
from dpvision.core.events import PoissonGaussian
from dpvision.core.gate import Gate
from dpvision.core.keys import Key, Stream
from dpvision.core.sampling import MixtureSampler, Poisson, RowMembers, Scheduled
from dpvision.errors import ConfigError, PrivacyError
from dpvision.private.statistics.mixtures import BLOCK, WEIGHT_BITS, Mixtures, RandomWeights, round_to_grid, sum_chosen
from dpvision.settings.release import hierarchical, round_robin
from tests.private.statistics.releases.charged import CLASSES, KEY, WIDTH, N, charge, data, mixed, rows_of

NASTY = {
    "long": np.full(WIDTH, 1e30),
    "short": np.full(WIDTH, 1e-30),
    "nan": np.full(WIDTH, np.nan),
    "inf": np.r_[np.inf, np.zeros(WIDTH - 1)],
    "alone": np.r_[-1.0, np.zeros(WIDTH - 1)],
}
SAMPLERS: dict[str, tuple[MixtureSampler, float]] = {
    "poisson": (Poisson(9, N, 700), 9),
    "hierarchical": (hierarchical(700, degree=9, n=N, classes=CLASSES, drawn=1.5, seed=1), 9),
    "in turn": (round_robin(700, rates=[0.3] * CLASSES), 9),
}


@pytest.mark.parametrize("weights", [None, RandomWeights(0.3, 0.2)], ids=["average", "weighted"])
@pytest.mark.parametrize("kind", NASTY)
@pytest.mark.parametrize("name", SAMPLERS)
def test_one_record_more_moves_only_its_own_rows(
    name: str, kind: str, weights: RandomWeights | None, tmp_path: Path, monkeypatch: Any
) -> None:
    """What reaches the noise, replayed: all others with the same draws and weights, and the new one with its own."""
    sampler, degree = SAMPLERS[name]
    x, labels = data()
    more, longer = np.vstack([x, NASTY[kind]]), np.r_[labels, 1]
    totals: list[np.ndarray] = []
    rng: dict[int, RowMembers] = {}
    shares: dict[int, np.ndarray] = {}
    kept: list[tuple[int, np.ndarray]] = []  # first row of a block, and which of those drawn are there
    choose, draw = type(sampler).choose, RandomWeights.shares

    def replayed(self: Any, of: np.ndarray, rows: range, stream: Any) -> RowMembers:
        """Those of the larger data set, without the last record for the smaller."""
        if rows.start not in rng:
            rng[rows.start] = choose(self, of, rows, stream)
        whole = rng[rows.start]
        there = whole.members < len(of)
        kept.append((rows.start, there))
        row = np.repeat(np.arange(len(rows)), np.diff(whole.starts))[there]
        return RowMembers(whole.members[there], np.searchsorted(row, np.arange(len(rows) + 1)))

    def weighed(self: Any, stream: Any, count: int, *, degree: float) -> np.ndarray:
        first, there = kept[-1]
        assert count == there.sum(), "one weight for each that was drawn"
        if first not in shares:
            shares[first] = draw(self, stream, count, degree=degree)
        return shares[first][there]

    monkeypatch.setattr(type(sampler), "choose", replayed)
    monkeypatch.setattr(RandomWeights, "shares", weighed)
    asked: set[float] = set()
    monkeypatch.setattr(
        noise,
        "add_noise",
        lambda total, _, *, sensitivity, sigma: asked.add(sensitivity) or totals.append(total.copy()) or total,
    )
    results = []
    for number, rows in enumerate((rows_of(more, longer), rows_of(x, labels))):
        totals.clear()
        mixtures = Mixtures(rows, sampler, degree=degree, weights=weights)
        list(mixtures.blocks(charge(tmp_path / str(number), mixtures, sampler.event(1.5)), KEY))
        results.append(np.vstack(totals))
    assert asked == {1.0}
    moved = np.linalg.norm(results[0] - results[1], axis=1)
    mine = np.concatenate(
        [np.diff(np.searchsorted(np.flatnonzero(c.members == N), c.starts)) for _, c in sorted(rng.items())]
    )
    assert moved.max() <= 1 + 1e-6 and not moved[mine == 0].any(), "exactly: not in the last bit"
    if kind in ("nan", "inf"):
        assert not moved.any(), "such a record is in no row"
    elif kind != "short":
        own = 1.0
        if weights is not None:
            own = np.concatenate([shares[first][c.members == N] for first, c in sorted(rng.items())])
            assert own.max() == 1.0 and own.min() < 0.1, "some are cut, some are small"
        assert np.allclose(moved[mine == 1], own, atol=1e-4), "its own row times its own weight"


def test_sums_do_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 40)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    grid = round_to_grid((x, 1.0), degree=64)
    values = grid.x
    assert (np.abs(values) <= np.abs(x)).all() and np.abs(values - x).max() <= 2.0**-16
    members = rng.integers(0, 500, 200)
    starts = np.array([0, 200, 200])
    sums = [sum_chosen(grid, RowMembers(order, starts)) for order in (members, members[::-1].copy(), np.sort(members))]
    assert all(np.array_equal(sums[0], other) for other in sums[1:])
    assert np.array_equal(sums[0][0], values.astype(np.float64)[members].sum(0)), "as in exact arithmetic"
    assert not sums[0][1].any(), "nobody: zero"
    joined = round_to_grid((x[:, :7], 1.0), (x[:, 7:], 0.5), degree=64).x
    assert np.array_equal(joined[:, :7], values[:, :7]) and (np.abs(joined[:, 7:]) <= 0.5 * np.abs(x[:, 7:])).all()


def test_weighted_sums_are_exact_too() -> None:
    """As in whole numbers: of 2^-bits for values and of 2^-WEIGHT_BITS for weights."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(500, 40)).astype(np.float32)
    grid = round_to_grid((x, 1.0), degree=64)
    members, starts = rng.integers(0, 500, 1400), np.array([0, 900, 900, 1400])
    steps = rng.integers(0, 2**WEIGHT_BITS + 1, len(members))
    weights = steps * 2.0**-WEIGHT_BITS
    result = sum_chosen(grid, RowMembers(members, starts), weights)
    whole = (grid.x.astype(np.float64) * grid.max_terms**-1 * 2.0**24).astype(np.int64)
    assert np.array_equal(whole * 2.0**-24 * grid.max_terms, grid.x)
    for row in range(3):
        part = slice(starts[row], starts[row + 1])
        wanted = (steps[part, None] * whole[members[part]]).sum(axis=0)
        assert np.array_equal(result[row] * (2.0 ** (24 + WEIGHT_BITS) / grid.max_terms), wanted)
    order = rng.permutation(900)
    shuffled = sum_chosen(grid, RowMembers(members[:900][order], np.array([0, 900])), weights[:900][order])
    assert np.array_equal(shuffled[0], result[0])


def test_sums_are_exact_however_many_are_drawn() -> None:
    """Ones, then many of the grid's least value: float32 alone would lose them, or not, as one record decides."""
    degree = 4
    x = np.full((5000, 1), 2.0**-20, dtype=np.float32)
    x[:40] = 1.0
    grid = round_to_grid((x, 1.0), degree=degree)
    assert grid.x[-1, 0] == 2.0**-20
    members, starts = np.r_[np.arange(5000), np.arange(1, 5000)], np.array([0, 5000, 5000, 9999])
    result = sum_chosen(grid, RowMembers(members, starts))[:, 0]
    assert result[0] == 40 + 4960 * 2.0**-20 and result[1] == 0 and result[0] - result[2] == 1.0


@pytest.mark.parametrize("name", SAMPLERS)
def test_noise_as_charged_and_means_as_wanted(name: str, tmp_path: Path) -> None:
    """Without records, rows are noise of sigma / (a m) and sigma / (b m); with them, their means."""
    sampler, degree = SAMPLERS[name]
    none = rows_of(np.zeros((1, WIDTH)) * np.nan, np.array([0]))
    mixtures = Mixtures(none, sampler, degree=degree, balance=2.0)
    features, labels = mixed(tmp_path / "a", mixtures, sigma=1.5)
    assert features.shape == (700, WIDTH) and len(labels) == 700 and BLOCK < 700
    a = 1.0 if name == "in turn" else 2 / math.sqrt(5)
    assert features.std() == pytest.approx(1.5 / (a * degree), rel=0.05)
    if isinstance(sampler, Scheduled) and name == "in turn":
        assert labels.dtype == np.int64 and np.array_equal(np.eye(CLASSES)[labels], sampler.table)
    else:
        assert labels.dtype == np.float32 and labels.shape == (700, CLASSES)
        assert labels.std() == pytest.approx(1.5 * math.sqrt(5) / degree, rel=0.1)
    x, y = data()
    mixtures = Mixtures(rows_of(x, y), sampler, degree=degree)
    features, labels = mixed(tmp_path / "b", mixtures, sigma=0.05)
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    if isinstance(sampler, Scheduled):
        for k in range(CLASSES):  # a row's part of class k, by regression on which classes it is about
            about = sampler.table[:, k]
            others = [np.full(700, 1.0), *(sampler.table[:, j] for j in range(CLASSES) if j != k)]
            effect = np.linalg.lstsq(np.column_stack([about, *others]), features, rcond=None)[0][0]
            if name == "hierarchical":
                wanted = unit[y == k].sum(0) * sampler.rates[k] / degree
                assert np.allclose(effect, wanted, atol=0.1)
    else:
        assert np.allclose(features.mean(0), unit.mean(0), atol=0.03)
        assert np.allclose(labels.mean(0), np.bincount(y) / N, atol=0.03)


def test_rows_of_different_blocks_have_different_members(tmp_path: Path) -> None:
    """Rows of one-hot records under little noise show their members, each of which is drawn independently."""
    rows = rows_of(np.eye(WIDTH), np.arange(WIDTH) % CLASSES)
    mixtures = Mixtures(rows, Poisson(WIDTH / 2, WIDTH, 3 * BLOCK), degree=WIDTH / 2)
    features, _ = mixed(tmp_path, mixtures, sigma=0.05)
    members = (features * mixtures.divisor > 0.5).reshape(3, -1)
    for one, other in itertools.combinations(members, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(one.size)


@pytest.mark.parametrize("weights", [None, RandomWeights(0.3, 0.2)], ids=["average", "weighted"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_block_has_draws_and_weights_of_its_own(
    name: str, weights: RandomWeights | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[tuple[str, int]] = Counter()
    stream = Gate.stream

    def recorded(self: Gate, purpose: str, step: int, *, rank: int = 0) -> Stream:
        asked[purpose, step] += 1
        return stream(self, purpose, step, rank=rank)

    monkeypatch.setattr(Gate, "stream", recorded)
    sampler, degree = SAMPLERS[name]
    mixed(tmp_path, Mixtures(rows_of(*data()), sampler, degree=degree, weights=weights), sigma=1.5)
    assert set(asked.values()) == {1}, "no stream is used twice"
    purposes = ["coins"] if weights is None else ["coins", "weights"]
    assert asked.keys() >= set(itertools.product(purposes, range(math.ceil(sampler.rows / BLOCK))))


def test_what_was_not_charged_is_not_done(tmp_path: Path) -> None:
    sampler, rows = Poisson(9, N, 20), rows_of(*data())
    mixtures = Mixtures(rows, sampler, degree=9)
    charged = charge(tmp_path / "a", mixtures, sampler.event(1.5))
    for other in (Poisson(10, N, 20), Poisson(9, N, 21)):
        with pytest.raises(PrivacyError, match="was charged for"):
            next(Mixtures(rows, other, degree=9).blocks(charged, KEY))
    with pytest.raises(PrivacyError, match="noise must not be reused"):
        next(mixtures.blocks(charged, Key.fresh()))
    secret = charge(tmp_path / "b", mixtures, sampler.event(1.5), Key.fresh())
    with pytest.raises(PrivacyError, match="the key is a fixed one"):
        next(mixtures.blocks(secret, KEY))
    with pytest.raises(ConfigError, match="lambda"):
        Mixtures(rows, sampler, degree=9, balance=0.0)
    with pytest.raises(ConfigError, match="degree"):
        Mixtures(rows, sampler, degree=math.inf)
    once, again = (np.vstack([x for x, _ in mixtures.blocks(charged, KEY)]) for _ in range(2))
    assert np.array_equal(once, again), "a second time it is the same release"
    assert charged.event == PoissonGaussian(0.1, 1.5, 20)


def test_other_records_or_settings_do_not_get_the_same_noise(tmp_path: Path) -> None:
    x, y = data()
    sampler = round_robin(20, rates=[0.3] * CLASSES)
    mixtures = Mixtures(rows_of(x, y), sampler, degree=9)
    charged = charge(tmp_path, mixtures, sampler.event(1.5))
    changed, relabelled = x.copy(), y.copy()
    changed[7] = 0
    relabelled[7] = (y[7] + 1) % CLASSES
    turned = Scheduled(sampler.table[[1, 0, *range(2, 20)]], sampler.rates)
    others = [
        Mixtures(rows_of(changed, y), sampler, degree=9),
        Mixtures(rows_of(x, relabelled), sampler, degree=9),
        Mixtures(rows_of(x, y), sampler, degree=8),
        Mixtures(rows_of(x, y), turned, degree=9),
        Mixtures(rows_of(x, y), sampler, degree=9, weights=RandomWeights(0.3, 0.2)),
    ]
    assert turned.event(1.5) == charged.event
    for other in others:
        with pytest.raises(PrivacyError, match="other records, settings or software"):
            next(other.blocks(charged, KEY))
    poisson = Poisson(9, N, 20)
    one, two = (Mixtures(rows_of(x, y), poisson, degree=9, balance=b) for b in (1.0, 3.0))
    assert one.name(KEY, one.event(1.0)) != two.name(KEY, two.event(1.0))
    weighted = [RandomWeights(0.3, 0.2), RandomWeights(0.3, 0.1), RandomWeights(0.4, 0.2)]
    names = {
        Mixtures(rows_of(x, y), poisson, degree=9, weights=w).name(KEY, poisson.event(1.0)) for w in [None, *weighted]
    }
    assert len(names) == 4
    with pytest.raises(ValueError, match="read-only"):
        sampler.table[:] = True
