"""Random numbers belong to one unit, have their distributions, and do not depend on other units."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from dpvision.core.unit_random import UnitRandom, threefry
from dpvision.errors import ConfigError
from tests.views.builders import SEED, rng_of, same_bits

DRAWS: dict[str, Callable[[UnitRandom], Tensor]] = {
    "uniform": lambda rng: rng.uniform(3),
    "one uniform": lambda rng: rng.uniform(),
    "many uniforms": lambda rng: rng.uniform(5, 7),
    "none": lambda rng: rng.uniform(0),
    "beta": lambda rng: rng.beta(0.2, 4),
    "integers": lambda rng: rng.integers(9, 2),
}


def test_threefry_gives_the_published_answers() -> None:
    """The three vectors for threefry2x64 with 20 rounds that come with Random123."""
    full = (1 << 64) - 1
    known = [
        ((0, 0), (0, 0), (0xC2B6E3A8C2C69865, 0x6F81ED42F350084D)),
        ((full, full), (full, full), (0xE02CB7C4D95D277A, 0xD06633D0893B8B68)),
        (
            (0x243F6A8885A308D3, 0x13198A2E03707344),
            (0xA4093822299F31D0, 0x082EFA98EC4E6C89),
            (0x263C7D30BB0F0AF1, 0x56BE8361D3311526),
        ),
    ]
    for counter, key, answer in known:
        words = threefry(key, *(np.array([word], dtype=np.uint64) for word in counter))
        assert tuple(int(word[0]) for word in words) == answer


@settings(max_examples=60, deadline=None)
@given(
    units=st.lists(st.integers(0, 2**63 - 1), unique=True, min_size=1, max_size=9),
    order=st.randoms(use_true_random=False),
    seed=st.integers(0, 2**128 - 1),
    draws=st.lists(st.sampled_from(sorted(DRAWS)), min_size=1, max_size=5),
)
def test_a_units_numbers_do_not_depend_on_who_else_is_there(units, order, seed, draws) -> None:
    together = UnitRandom(seed, np.array(units, dtype=np.int64))
    all_numbers = [DRAWS[name](together) for name in draws]
    some = order.sample(range(len(units)), order.randint(1, len(units)))
    others = UnitRandom(seed, np.array([units[i] for i in some], dtype=np.int64))
    for name, numbers in zip(draws, all_numbers, strict=True):
        assert same_bits(DRAWS[name](others), numbers[some])


def test_every_part_of_the_counter_and_every_bit_of_the_seed_matters() -> None:
    def first(seed: int = SEED, unit: int = 5, copy: int = 0, before: int = 0) -> float:
        rng = UnitRandom(seed, np.array([unit]), np.array([copy]))
        for _ in range(before):
            rng.uniform()
        return float(rng.uniform())

    seeds = [SEED] + [SEED ^ (1 << bit) for bit in range(128)]
    units = [5 ^ (1 << bit) for bit in range(63)]
    copies = [1 << bit for bit in range(24)]
    results = [first(seed=s) for s in seeds] + [first(unit=u) for u in units]
    results += [first(copy=c) for c in copies] + [first(before=n) for n in range(1, 40)]
    results += rng_of(5).uniform(1000).flatten().tolist()[1:]
    assert len(set(results)) == len(results)


def test_uniform_numbers_are_uniform() -> None:
    numbers = rng_of(*range(2000)).uniform(500).numpy()
    assert numbers.min() >= 0 and numbers.max() < 1
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-4
    cells = np.bincount((numbers.ravel() * 1024).astype(int), minlength=1024)
    assert 1e-4 < stats.chisquare(cells).pvalue < 1 - 1e-4
    by_unit = [stats.kstest(row, "uniform").pvalue for row in numbers[:200]]
    assert stats.kstest(by_unit, "uniform").pvalue > 1e-4, "inside of a unit too"
    bits = (numbers.ravel() * 2**53).astype(np.int64)
    ones = np.array([((bits >> bit) & 1).mean() for bit in range(53)])
    assert np.abs(ones - 0.5).max() < 4.5 * 0.5 / np.sqrt(bits.size)


def test_neighbours_do_not_follow_each_other() -> None:
    """Units, places inside a unit, draws, positions and seeds that are next to each other, to second order too."""
    size = 200_000
    units = np.arange(size)
    rng = UnitRandom(SEED, units)
    first, second = rng.uniform(2), rng.uniform(2)
    pairs = {
        "units": (first[:-1, 0], first[1:, 0]),
        "positions": (first[:, 0], first[:, 1]),
        "draws": (first[:, 0], second[:, 0]),
        "draws and positions": (first[:, 1], second[:, 0]),
        "copies": (first[:, 0], UnitRandom(SEED, units, np.ones(size, dtype=np.int64)).uniform(2)[:, 0]),
        "seeds": (first[:, 0], UnitRandom(SEED + 1, units).uniform(2)[:, 0]),
    }
    for name, (a, b) in pairs.items():
        for change in (lambda x: x, lambda x: (x - 0.5) ** 2):
            result = np.corrcoef(change(a.numpy()), change(b.numpy()))[0, 1]
            assert abs(result) < 4.5 / np.sqrt(size), name
        cells = np.bincount((a * 16).long() * 16 + (b * 16).long(), minlength=256)
        assert stats.chisquare(cells).pvalue > 1e-4, name


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_beta_has_its_law(alpha: float) -> None:
    numbers = rng_of(*range(20_000)).beta(alpha, 2).numpy().ravel()
    assert stats.kstest(numbers, stats.beta(alpha, alpha).cdf).pvalue > 1e-4
    size = numbers.size
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(numbers.mean() - 0.5) < 4.5 * np.sqrt(variance / size)
    fourth = stats.beta(alpha, alpha).stats("k") + 3
    assert abs(numbers.var() - variance) < 4.5 * variance * np.sqrt((fourth - 1) / size)


@pytest.mark.parametrize("high", [1, 2, 9, 25, 1000])
def test_integers_are_all_equally_likely(high: int) -> None:
    numbers = rng_of(*range(30_000)).integers(high, 3)
    assert numbers.dtype == torch.int64
    cells = torch.bincount(numbers.flatten(), minlength=high)
    assert len(cells) == high
    assert high == 1 or stats.chisquare(cells.numpy()).pvalue > 1e-4


def test_a_persons_images_have_their_own_coins_that_only_depend_on_the_person() -> None:
    alone = UnitRandom.grouped(SEED, np.array([7]), [3]).uniform(4)
    among = UnitRandom.grouped(SEED, np.array([2, 7, 9, 11]), [5, 3, 0, 1]).uniform(4)
    assert len(among) == 9
    assert same_bits(among[5:8], alone)
    assert len(torch.unique(among)) == among.numel()
    assert same_bits(UnitRandom.grouped(SEED, np.array([2, 7]), [1, 1]).uniform(3), rng_of(2, 7).uniform(3))
    longer = UnitRandom.grouped(SEED, np.array([7]), [4]).uniform(4)
    assert same_bits(longer[:3], alone), "one more image changes none of the others' numbers"


def test_blocks_draw_what_the_whole_would_and_leave_it_where_they_end() -> None:
    whole, cut = (UnitRandom.grouped(SEED, np.array([5, 2, 9]), [3, 6, 1]) for _ in range(2))
    assert same_bits(whole.uniform(2), cut.uniform(2))
    first, second = whole.beta(0.5, 3), whole.integers(9)
    parts = [(rows, some.beta(0.5, 3), some.integers(9)) for rows, some in cut.blocks(4)]
    assert [len(a) for _, a, _ in parts] == [4, 4, 2]
    for rows, a, b in parts:
        assert same_bits(a, first[rows]) and same_bits(b, second[rows])
    assert same_bits(whole.uniform(), cut.uniform())


def test_nobody_has_no_coins() -> None:
    rng = UnitRandom(0, np.empty(0, dtype=np.int64))
    assert rng.uniform(3, 2).shape == (0, 3, 2) and rng.beta(0.2, 1).shape == (0, 1) and len(rng) == 0
    assert list(rng.blocks(4)) == []
    assert len(UnitRandom.grouped(0, np.empty(0, dtype=np.int64), [])) == 0


@pytest.mark.parametrize(
    ("make", "about"),
    [
        (lambda: UnitRandom(-1, np.arange(2)), "below 2.128"),
        (lambda: UnitRandom(1 << 128, np.arange(2)), "below 2.128"),
        (lambda: UnitRandom(0, np.array([1, 2, 1])), "the same random numbers"),
        (lambda: UnitRandom(0, np.array([1, 1]), np.array([4, 4])), "the same random numbers"),
        (lambda: UnitRandom(0, np.array([0.5, 1.0])), "float64"),
        (lambda: UnitRandom(0, np.zeros((2, 2), dtype=np.int64)), "shapes"),
        (lambda: UnitRandom(0, np.arange(3), np.arange(2)), "shapes"),
        (lambda: UnitRandom(0, np.array([-1])), "numbered from 0"),
        (lambda: UnitRandom(0, np.array([1]), np.array([1 << 24])), "2\\^24"),
        (lambda: UnitRandom.grouped(0, np.arange(3), [1, 1]), "3 units"),
        (lambda: rng_of(1).integers(0), "high is 0"),
    ],
)
def test_images_that_would_share_random_numbers_are_refused(make: Callable[[], object], about: str) -> None:
    with pytest.raises(ConfigError, match=about):
        make()


def test_random_numbers_end_rather_than_repeat() -> None:
    rng = rng_of(3)
    rng._draws = (1 << 12) - 1
    rng.uniform()
    with pytest.raises(ConfigError, match="draws"):
        rng.uniform()
