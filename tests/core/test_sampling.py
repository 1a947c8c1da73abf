"""The sampler that runs is the sampler that is accounted: the tests reject four wrong samplers and accept ours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpvision.core.keys import Key
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError
from tests.core import sampler_checks

N, BATCH, STEPS = 400, 56, 600
CLASSES = np.arange(N) % 10
Draw = Callable[[int, int], np.ndarray]  # (seed, step) -> indices


def ours(seed: int, step: int) -> np.ndarray:
    return PoissonSampler(BATCH, N, STEPS).draw(N, Key.for_tests(f"s{seed}").stream("sampling", step=step))


def shuffled(seed: int, step: int) -> np.ndarray:
    """Batches of a shuffled epoch, accounted as Poisson: the usual data loader."""
    epoch, place = divmod(step, N // BATCH)
    return np.random.default_rng([seed, epoch]).permutation(N)[place * BATCH : (place + 1) * BATCH]


def fixed_size(seed: int, step: int) -> np.ndarray:
    return np.random.default_rng([seed, step]).choice(N, BATCH, replace=False)


def one_over_loader(seed: int, step: int) -> np.ndarray:
    """q = 1/len(loader) = 1/ceil(n/B) where B/n was meant: 0.125 for 0.14."""
    return np.flatnonzero(np.random.default_rng([seed, step]).random(N) < 1 / np.ceil(N / BATCH))


def class_first(seed: int, step: int) -> np.ndarray:
    """Draw classes, then records inside them: every record has the right rate, and neighbours come together."""
    rng = np.random.default_rng([seed, step])
    chosen = rng.random(10) < 0.3
    return np.flatnonzero(chosen[CLASSES] & (rng.random(N) < BATCH / N / 0.3))


def skipping_empty(seed: int, step: int) -> np.ndarray:
    """Draw again when nobody was drawn (only visible where that happens often)."""
    rng = np.random.default_rng([seed, step])
    while not len(drawn := np.flatnonzero(rng.random(4) < 0.25)):
        pass
    return drawn


def suspicious(draw: Draw, seed: int, *, n: int = N, rate: float = BATCH / N, steps: int = STEPS) -> list[str]:
    """What is wrong with a sampler."""
    took_part = np.zeros((steps, n))
    for step in range(steps):
        took_part[step, draw(seed, step)] = 1
    return sampler_checks.suspicious(took_part, rate, groups=CLASSES[:n])


@pytest.mark.parametrize("wrong", [shuffled, fixed_size, one_over_loader, class_first])
def test_wrong_samplers_are_rejected(wrong: Draw) -> None:
    for seed in range(3):
        assert suspicious(wrong, seed), f"{wrong.__name__} passed"


def test_drawing_again_when_empty_is_rejected() -> None:
    assert suspicious(skipping_empty, 0, n=4, rate=0.25, steps=4000)


def test_ours_is_accepted_in_100_seeds() -> None:
    alarms = {seed: result for seed in range(100) if (result := suspicious(ours, seed, steps=200))}
    assert not alarms


def test_ours_with_few_units_has_empty_batches_and_they_are_steps() -> None:
    sampler = PoissonSampler(1, 4, 4000)
    key = Key.for_tests("few")

    def draw(_seed: int, step: int) -> np.ndarray:
        return sampler.draw(4, key.stream("sampling", step=step))

    assert not suspicious(draw, 0, n=4, rate=0.25, steps=4000)
    empty = sum(len(draw(0, step)) == 0 for step in range(4000))
    assert abs(empty - 4000 * 0.75**4) < 5 * np.sqrt(4000 * 0.75**4)


def test_the_event_is_the_samplers_own() -> None:
    event = PoissonSampler(4096, 50_000, 875).event(9.3)
    assert (event.rate, event.sigma, event.steps) == (4096 / 50_000, 9.3, 875)
    assert PoissonSampler(4096, 50_000, 875).event(9.3, first=800).steps == 75


def test_how_many_there_really_are_changes_nothing_but_the_coins() -> None:
    sampler, key = PoissonSampler(50, 400, 10), Key.for_tests("n")
    few, many = (sampler.draw(n, key.stream("sampling", step=0)) for n in (399, 400))
    assert np.array_equal(few, many[many < 399]), "one unit more must not move the others' draws"
    assert sampler.rate == 0.125
    assert len(sampler.draw(0, key.stream("sampling", step=0))) == 0


def test_rate_one_takes_everybody_and_the_threshold_never_exceeds_the_rate() -> None:
    key = Key.for_tests("one")
    assert len(PoissonSampler(7, 7, 1).draw(1000, key.stream("s", step=0))) == 1000
    for batch, n in ((1, 3), (1, 2**40), (10**6 - 1, 10**6)):
        from fractions import Fraction

        rate = PoissonSampler(batch, n, 1).rate
        assert Fraction(int(Fraction(rate) * 2**64), 2**64) <= Fraction(rate)


@pytest.mark.parametrize(("batch", "n", "steps"), [(0, 10, 1), (11, 10, 1), (-1, 10, 1), (1, 10, -1)])
def test_impossible_samplers_are_refused(batch: int, n: int, steps: int) -> None:
    with pytest.raises(ConfigError):
        PoissonSampler(batch, n, steps)
