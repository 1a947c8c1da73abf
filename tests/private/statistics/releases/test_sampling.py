"""Bernoulli draws and samplers: the stated probability, independent draws, nobody dropped, and the event that is charged."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpvision.core.events import ClassScheduled, PoissonGaussian
from dpvision.core.keys import Key
from dpvision.core.sampling import Poisson, RowMembers, Scheduled, bernoulli
from dpvision.errors import ConfigError
from dpvision.settings.release import hierarchical, round_robin

KEY = Key.for_tests("release")


@pytest.mark.parametrize("rate", [0.0, 1e-5, 64 / 60_000, 1 / 256, 0.02, 0.3, 1.0])
def test_coins_have_their_probability(rate: float) -> None:
    count = 2_000_000
    result = bernoulli(KEY.stream(f"coins {rate}", step=0), count, rate=rate)
    assert np.all(np.diff(result) > 0) and (not len(result) or 0 <= result[0] <= result[-1] < count)
    if rate in (0.0, 1.0):
        assert len(result) == rate * count
    else:
        assert stats.binomtest(len(result), count, rate).pvalue > 1e-6


def test_a_coin_that_a_byte_leaves_open_is_tossed_by_a_word() -> None:
    """Rates between two multiples of 1/256: without the second draw they would be one of these."""
    count = 1_000_000
    for rate in (0.9 / 256, 1.5 / 256, 200.25 / 256):
        assert stats.binomtest(len(bernoulli(KEY.stream("open", step=0), count, rate=rate)), count, rate).pvalue > 1e-6


class _Written:
    """Stands for a stream: every byte once, and then one word."""

    def __init__(self, word: int) -> None:
        self._next = [np.arange(256, dtype=np.uint8).view(np.uint64), np.array([word], dtype=np.uint64)]

    def words(self, count: int) -> np.ndarray:
        words = self._next.pop(0)
        assert count == len(words), "one byte for each, and one word for the one that its byte leaves open"
        return words


RATES = [0.0, 5e-324, 1e-25, 1e-5, 64 / 60_000, 1 / 256, 0.02, 0.1, 1 / 3, 0.5, 1 - 2.0**-53]


@pytest.mark.parametrize("rate", RATES)
def test_the_probability_of_heads_counted_over_all_bits(rate: float) -> None:
    """All 2^72 outcomes of one draw: 256 bytes, and with the open one all words, those below some number being successes."""

    def shown(word: int) -> list[int]:
        stream: Any = _Written(word)
        return bernoulli(stream, 256, rate=rate).tolist()

    sure = shown(2**64 - 1)
    low, high = 0, 2**64  # heads below `low`, tails from `high` on
    while low < high:
        middle = (low + high) // 2
        if len(shown(middle)) > len(sure):
            low = middle + 1
        else:
            high = middle
    assert sure == list(range(len(sure))) and len(sure) == math.floor(256 * rate)
    probability = Fraction(len(sure) * 2**64 + low, 2**72)
    assert Fraction(rate) - Fraction(1, 2**72) < probability <= Fraction(rate)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_no_probability_no_coins(rate: float) -> None:
    with pytest.raises(ConfigError, match="from 0 to 1"):
        bernoulli(KEY.stream("x", step=0), 10, rate=rate)


def _table(chosen: RowMembers, records: int) -> np.ndarray:
    out = np.zeros((len(chosen.starts) - 1, records), dtype=int)
    for row in range(len(out)):
        for member in chosen.members[chosen.starts[row] : chosen.starts[row + 1]]:
            out[row, member] += 1
    return out


def test_poisson_rows() -> None:
    """Every record alike, in every row alike; sizes spread as those of independent draws; those without a class never."""
    labels = np.array([0, 1, -1, 2, 0, 1, 2, 2, -1, 0])
    sampler = Poisson(2.4, 8, 30_000)
    result = np.vstack(
        [_table(sampler.choose(labels, range(s, s + 500), KEY.stream("p", step=s)), 10) for s in range(0, 30_000, 500)]
    )
    assert result.max() == 1 and not result[:, labels < 0].any()
    there = result[:, labels >= 0]
    for record in range(8):
        assert stats.binomtest(int(there[:, record].sum()), 30_000, 0.3).pvalue > 1e-5
    counts = np.bincount(there.sum(1), minlength=9)
    assert counts[0] > 0, "a row in which nobody is, is a row"
    assert stats.chisquare(counts, 30_000 * stats.binom.pmf(np.arange(9), 8, 0.3)).pvalue > 1e-5
    both = (there[:, 0] & there[:, 1]).sum()
    assert stats.binomtest(int(both), 30_000, 0.09).pvalue > 1e-5
    assert sampler.event(2.0) == PoissonGaussian(0.3, 2.0, 30_000)


def test_scheduled_rows_are_about_their_classes() -> None:
    labels = np.array([0, 1, 2, 2, 0, 1, -1])
    table = np.random.default_rng(0).random((20_000, 3)) < 0.5
    sampler = Scheduled(table, (0.5, 0.1, 1.0))
    result = np.vstack(
        [_table(sampler.choose(labels, range(s, s + 1000), KEY.stream("s", step=s)), 7) for s in range(0, 20_000, 1000)]
    )
    for record, label in enumerate(labels):
        drawn = table[:, label] if label >= 0 else np.zeros(20_000, dtype=bool)
        assert not result[~drawn, record].any(), "only in rows of its own class"
        if label >= 0 and sampler.rates[label] < 1:
            assert stats.binomtest(int(result[:, record].sum()), int(drawn.sum()), sampler.rates[label]).pvalue > 1e-5
    assert result[table[:, 2]][:, [2, 3]].all(), "rate 1: always"
    assert sampler.event(3.0) == ClassScheduled(3.0, (0.5, 0.1, 1.0), tuple(table.sum(0).tolist()))


def test_one_class_in_turn() -> None:
    sampler = round_robin(7, rates=[0.1, 0.2, 0.3])
    assert sampler.table.argmax(1).tolist() == [0, 1, 2, 0, 1, 2, 0] and (sampler.table.sum(1) == 1).all()
    assert sampler.event(1.0).rows == (3, 2, 2)


def test_hierarchical_is_accounted_inside_the_class() -> None:
    """The paper's own setting: 64 of 50,000 records, 3 of 100 classes a row."""
    sampler = hierarchical(5_000, degree=64, n=50_000, classes=100, drawn=3, seed=0)
    event = sampler.event(1.0)
    assert event.rates == (pytest.approx(64 / (50_000 * 0.03)),) * 100, "and not 64 / 50,000"
    assert abs(sum(event.rows) / 5_000 - 3) < 0.1
    again = hierarchical(5_000, degree=64, n=50_000, classes=100, drawn=3, seed=0)
    assert np.array_equal(sampler.table, again.table), "public randomness: anyone can draw it again"


def test_what_can_not_be_drawn_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 < degree <= n"):
        Poisson(11, 10, 5)
    with pytest.raises(ConfigError, match="at least one"):
        Poisson(2, 10, 0)
    with pytest.raises(ConfigError, match="fewer records than that"):
        hierarchical(10, degree=90, n=100, classes=2, drawn=1, seed=0)
    with pytest.raises(ConfigError, match="at most 2"):
        hierarchical(10, degree=9, n=100, classes=2, drawn=3, seed=0)
    with pytest.raises(ConfigError, match="one column"):
        Scheduled(np.ones((4, 2), dtype=np.bool_), (0.5,))
