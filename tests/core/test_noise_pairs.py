"""The noise is right jointly, for pairs of numbers, also where the words that make them are forced to be extreme.

Box-Muller makes two numbers of one radius. If the radius has too few bits, far pairs lie on visible circles, and whoever
knows two candidates for the sum sees that one of them is impossible, although every single number is perfectly normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import stats

from dpvision.core import accountant, noise
from dpvision.core.keys import Key

KEY = Key.for_tests("pairs")
TOP = 1 << 64
PAIRS = noise.BLOCK // 2

Words = np.ndarray  # (4, pairs): U's high and low word, V's high and low word


class Forced:
    """A stream whose words were chosen."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def words(self, count: int) -> np.ndarray:
        assert count == self._words.size
        return self._words.reshape(-1).copy()


def _random(pairs: int, step: int = 0) -> Words:
    return KEY.stream("words", step=step).words(4 * pairs).reshape(4, pairs).copy()


def _forced(which: int, low: int, high: int, *, pairs: int = 400) -> Words:
    words = _random(pairs, step=low % 1009)
    words[which] = np.array([low + int(x) % (high - low) for x in words[which]], dtype=np.uint64)
    return words


EXTREMES = {
    "ordinary": _random(4000),
    "the least radius words": _forced(0, 0, 2),
    "far out": _forced(0, 0, 1_000_000),
    "the largest radius words": _forced(0, TOP - 2, TOP),
    "near zero": _forced(0, TOP - (1 << 40), TOP),
    "where the series begins": _forced(0, TOP - (1 << 48) - (1 << 30), TOP - (1 << 48) + (1 << 30)),
    "along the axis": _forced(2, 0, 4),
    "a quarter": _forced(2, (1 << 62) - 2, (1 << 62) + 2),
    "a half": _forced(2, (1 << 63) - 2, (1 << 63) + 2),
    "three eighths": _forced(2, 3 * (1 << 61) - 2, 3 * (1 << 61) + 2),
    "nearly a whole turn": _forced(2, TOP - 3, TOP),
}


@pytest.mark.parametrize("words", EXTREMES.values(), ids=list(EXTREMES))
@pytest.mark.parametrize("deviation", [2.0**22, 2.0**23.3, 3.0, 2.0**35])
def test_every_number_is_the_correctly_rounded_one(words: Words, deviation: float) -> None:
    pairs = words.shape[1]
    got = noise.rounded_normal(Forced(words), 2 * pairs, deviation)  # type: ignore[arg-type]
    for place in range(0, 2 * pairs, 7):
        u, v = ((int(words[i, place % pairs]) << 64) + int(words[i + 1, place % pairs]) for i in (0, 2))
        assert got[place] == noise.round_exactly(u, v, deviation, sine=place >= pairs)


def test_sixty_digits_are_right() -> None:
    """Against the same in 100 digits by another way: the sine by its own series, the radius by bisection of exp."""
    for word in KEY.stream("digits", step=0).words(40).reshape(10, 4).tolist():
        u, v = (word[0] << 64) + word[1], (word[2] << 64) + word[3]
        cos, sin = (noise.round_exactly(u, v, 1e40, sine=sine) for sine in (False, True))
        with localcontext() as context:
            context.prec = 100
            cell = Decimal(2) ** -129
            radius = (Decimal(cos) ** 2 + Decimal(sin) ** 2).sqrt() / Decimal("1e40")
            assert abs((-(radius**2) / 2).exp() / ((2 * u + 1) * cell) - 1) < Decimal("1e-13"), "the radius"
            angle = float((2 * v + 1) * cell) * 2 * math.pi
        assert (
            math.hypot(cos / math.hypot(cos, sin) - math.cos(angle), sin / math.hypot(cos, sin) - math.sin(angle))
            < 1e-14
        )


def test_float64_is_far_better_than_its_allowance() -> None:
    """The allowance rests on the functions' errors; here they are seen against 60 digits."""
    worst = 0.0
    for words in EXTREMES.values():
        pairs = words.shape[1]
        fast = noise._box_muller(words)
        for place in range(0, 2 * pairs, 11):
            u, v = ((int(words[i, place % pairs]) << 64) + int(words[i + 1, place % pairs]) for i in (0, 2))
            exact = noise.round_exactly(u, v, 2.0**80, sine=place >= pairs) / 2.0**80
            worst = max(worst, abs(fast[place] - exact))
    assert 2.0**-56 < worst < noise.FLOAT_ERROR / 4


def test_numbers_near_a_middle_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the allowance as it is some are, and no size is preferred; without it, a few are rounded the wrong way."""
    seen: list[float] = []
    exact = noise.round_exactly

    def counting(u: int, v: int, deviation: float, *, sine: bool) -> float:
        seen.append(exact(u, v, deviation, sine=sine) / deviation)
        return seen[-1]

    monkeypatch.setattr(noise, "round_exactly", counting)
    blocks, deviation = 60, 2.0**23
    for step in range(blocks):
        noise.rounded_normal(KEY.stream("middles", step=step), noise.BLOCK, deviation)
    due = blocks * noise.BLOCK * 2 * deviation * noise.FLOAT_ERROR
    assert stats.poisson.cdf(len(seen), due) > 1e-6 and stats.poisson.sf(len(seen) - 1, due) > 1e-6


def _circles_of_53_bits(words: Words, deviation: float) -> np.ndarray:
    """How the radius must not be made: of one word's upper 53 bits."""
    radius = np.sqrt(-2 * np.log(((words[0] >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53))
    angle = words[2].astype(np.float64) * (2 * math.pi * 2.0**-64)
    return np.rint(deviation * np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]))


def _ours(words: Words, deviation: float) -> np.ndarray:
    return noise.rounded_normal(Forced(words), words.size // 2, deviation)  # type: ignore[arg-type]


def _ruled_out(numbers: np.ndarray, deviation: float) -> float:
    """The share of pairs that lie on no circle of a 53-bit radius, seen through the grid."""
    a, b = np.abs(numbers.reshape(2, -1))
    nearest, farthest = np.hypot(np.maximum(a - 0.5, 0), np.maximum(b - 0.5, 0)), np.hypot(a + 0.5, b + 0.5)
    k = np.rint(2.0**53 * np.exp(-((np.hypot(a, b) / deviation) ** 2) / 2))
    possible = np.zeros(len(a), dtype=bool)
    for near in (-2, -1, 0, 1, 2):
        radius = deviation * np.sqrt(-2 * np.log(np.maximum(k + near, 1) * 2.0**-53))
        possible |= (nearest <= radius + 1e-6) & (radius - 1e-6 <= farthest)
    return 1 - float(possible.mean())


@pytest.mark.parametrize("least, most", [(1, 10**3), (10**3, 10**5), (10**5, 3 * 10**5), (3 * 10**5, 10**6)])
def test_no_circle_tells_the_truth_from_a_neighbour(least: int, most: int) -> None:
    """A million far pairs in all: the truth lies on circles no more often than what one unit moved. (Teeth: 53 bits.)"""
    rng, deviation = np.random.default_rng(least), 2.0**22.6
    shift = 850.0  # 2e-4 standard deviations in each number
    rates: dict[str, list[tuple[float, float]]] = {"ours": [], "53 bits": []}
    for step in range(16):
        words = _random(PAIRS, step=step)
        words[0] = ((rng.integers(least, most, PAIRS) - 1).astype(np.uint64) << np.uint64(11)) | (
            words[0] >> np.uint64(53)
        )
        for name, sampler in (("ours", _ours), ("53 bits", _circles_of_53_bits)):
            numbers = sampler(words, deviation)
            rates[name].append((_ruled_out(numbers, deviation), _ruled_out(numbers + shift, deviation)))
    truth, neighbour = np.mean(rates["ours"], axis=0)
    error = math.sqrt(0.5 / (16 * PAIRS))
    assert abs(truth - neighbour) < 6 * error, "the two are ruled out equally often"
    truth, neighbour = np.mean(rates["53 bits"], axis=0)
    assert truth == 0.0 and neighbour > 0.1, f"the test would see the circles: {neighbour}"


@pytest.mark.parametrize("high", [0, 1, 7, 1000, 10**6, TOP - 1])
def test_a_word_leaves_a_continuum_of_radii(high: int) -> None:
    """With the first radius word fixed, the radius that is left is spread over its whole interval, by the second."""
    words = _random(2000, step=high % 997)
    words[0] = np.uint64(high)
    deviation = 2.0**60  # a fine grid, so that the interval has many cells
    squared = ((_ours(words, deviation).reshape(2, -1) / deviation) ** 2).sum(axis=0)
    left = -np.expm1(-squared / 2) * TOP if high == TOP - 1 else np.exp(-squared / 2) * TOP - high
    assert stats.kstest(left, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("of", [np.abs, np.square, np.positive, lambda x: np.abs(x) > 3])
def test_pairs_and_neighbours_in_a_block_are_independent(of: Callable[[np.ndarray], np.ndarray]) -> None:
    draws = np.stack([_ours(_random(PAIRS, step=step), 2.0**22.5) / 2.0**22.5 for step in range(20)])
    for lag in (1, 2, PAIRS - 1, PAIRS, PAIRS + 1):
        left, right = of(draws[:, :-lag]).ravel().astype(float), of(draws[:, lag:]).ravel().astype(float)
        assert abs(np.corrcoef(left, right)[0, 1]) < 5.5 / math.sqrt(left.size)


def test_the_accountant_pays_for_the_sampler() -> None:
    """2.7 million weights over ten million steps at epsilon 8 fit into what is taken off delta."""
    assert 2.7e6 * 1e7 * (1 + math.exp(8)) * noise.DISTANCE < accountant.SAMPLER <= accountant.hidden_by_rounding(0)
    c = 2.0**23.4
    assert 2 * c * 2.0**-129 * (13.4 + 2 * math.pi * math.sqrt(math.pi / 2)) < noise.DISTANCE
    assert math.sqrt(2 * 129 * math.log(2)) < 13.4
