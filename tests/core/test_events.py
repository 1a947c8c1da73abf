"""Events are immutable values that read back from JSON to the last bit and expose what each kind of record meets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpvision.core import accountant
from dpvision.core import events as events_module
from dpvision.core.events import (
    MAX_KINDS,
    Budget,
    ClassScheduled,
    Composed,
    Event,
    Exposure,
    Gaussian,
    PoissonGaussian,
    exposures,
    from_json,
    to_json,
)
from dpvision.errors import ConfigError
from dpvision.settings import quick
from dpvision.settings.figures import describe

sigmas = st.floats(1e-3, 1e6)
rates = st.floats(0, 1)
counts = st.integers(0, 10**7)
simple = st.one_of(
    st.builds(Gaussian, sigmas, counts),
    st.builds(PoissonGaussian, rates, sigmas, counts),
    st.lists(st.tuples(rates, counts), min_size=1, max_size=4).flatmap(
        lambda rows: st.builds(
            ClassScheduled, sigmas, st.just(tuple(r for r, _ in rows)), st.just(tuple(c for _, c in rows))
        )
    ),
)
events = st.recursive(simple, lambda inner: st.builds(Composed, st.lists(inner, max_size=3).map(tuple)), max_leaves=5)


@given(events)
def test_json_keeps_every_bit(event: Event) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
    assert describe(event)


@pytest.mark.parametrize("event", [Gaussian(1.0), PoissonGaussian(0.1, 1.0, 5), Composed(())])
def test_events_are_immutable(event: Event) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.sigma = 2.0  # type: ignore[union-attr,misc]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0),
        lambda: Gaussian(float("nan")),
        lambda: Gaussian(float("inf")),
        lambda: Gaussian(True),
        lambda: PoissonGaussian(1.5, 1.0, 1),
        lambda: PoissonGaussian(-0.1, 1.0, 1),
        lambda: PoissonGaussian(float("nan"), 1.0, 1),
        lambda: PoissonGaussian(0.1, 1.0, -1),
        lambda: PoissonGaussian(0.1, 1.0, 1.5),  # type: ignore[arg-type]
        lambda: ClassScheduled(1.0, (0.1,), (1, 2)),
        lambda: ClassScheduled(1.0, (), ()),
        lambda: Budget(0.0, 1e-5),
        lambda: Budget(float("inf"), 1e-5),
        lambda: Budget(1.0, 0.0),
        lambda: Budget(1.0, 1.0),
        lambda: from_json({"type": "laplace"}),
        lambda: from_json({"type": "gaussian", "sigma": 1.0, "extra": 2}),
        lambda: from_json({"type": "composed"}),
        lambda: from_json([1, 2]),
        lambda: from_json({"type": "poisson-gaussian", "rate": "0.1", "sigma": 1.0, "steps": 3}),
    ],
)
def test_impossible_events_are_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()


def test_equal_exposures_are_merged() -> None:
    twice = Composed((PoissonGaussian(0.1, 2.0, 3), PoissonGaussian(0.1, 2.0, 4), PoissonGaussian(0.0, 1.0, 9)))
    assert exposures(twice) == [(Exposure(0.1, 2.0, 7),)]


def test_a_class_schedule_exposes_each_class_at_its_own_rate() -> None:
    schedule = ClassScheduled(5.0, rates=(0.3, 0.01, 0.3), rows=(10, 1000, 10))
    assert exposures(schedule) == [(Exposure(0.01, 5.0, 1000),), (Exposure(0.3, 5.0, 10),)]


def test_two_schedules_combine_in_every_way() -> None:
    """Class k of one schedule need not be class k of the other: the worst pair must be among the kinds."""
    a = ClassScheduled(5.0, rates=(0.3, 0.01), rows=(10, 20))
    b = ClassScheduled(7.0, rates=(0.2, 0.02), rows=(30, 40))
    kinds = exposures(Composed((a, b)))
    assert len(kinds) == 4
    assert (Exposure(0.2, 7.0, 30), Exposure(0.3, 5.0, 10)) in kinds


schedules = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.5]), st.integers(0, 4)), min_size=1, max_size=MAX_KINDS + 3
).flatmap(
    lambda classes: st.builds(
        ClassScheduled,
        st.sampled_from([2.0, 3.0]),
        st.just(tuple(rate for rate, _ in classes)),
        st.just(tuple(rows for _, rows in classes)),
    )
)


def _every_kind(schedules: list[ClassScheduled]) -> Iterator[dict[float, list[float]]]:
    """By brute force: for each choice of a class of each schedule, the rates of all steps, by their noise."""
    for choice in product(*(zip(s.rates, s.rows, strict=True) for s in schedules)):
        met: dict[float, list[float]] = {2.0: [], 3.0: []}
        for schedule, (rate, rows) in zip(schedules, choice, strict=True):
            met[schedule.sigma] += [rate] * rows if rate else []
        yield {sigma: sorted(rates, reverse=True) for sigma, rates in met.items()}


@given(st.lists(schedules, max_size=3), st.sampled_from([1, 3, MAX_KINDS]))
def test_no_combination_of_classes_meets_more_than_some_kind(schedules: list[ClassScheduled], most: int) -> None:
    """However few kinds are distinguished."""
    kinds = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_module, "MAX_KINDS", most)
        result = exposures(Composed(tuple(schedules)))
    for kind in result:
        met: dict[float, list[float]] = {2.0: [], 3.0: []}
        for rate, sigma, steps in kind:
            met[sigma] += [rate] * steps
        kinds.append({sigma: sorted(rates, reverse=True) for sigma, rates in met.items()})
    assert 1 <= len(kinds) <= most
    possible = list(_every_kind(schedules))
    for one in possible:
        assert any(
            all(
                len(rates) <= len(kind[sigma]) and all(a <= b for a, b in zip(rates, kind[sigma], strict=False))
                for sigma, rates in one.items()
            )
            for kind in kinds
        )
    if len(kinds) > 1:  # nothing was made coarse, so every kind is one that there may be
        assert all(kind in possible for kind in kinds)


def test_a_few_releases_are_accounted_as_by_brute_force() -> None:
    few = [ClassScheduled(2.0 + i, rates=(0.3, 0.02), rows=(3, 500 + i)) for i in range(3)]
    brute = max(
        quick.epsilon(Composed(choice), 1e-5)
        for choice in product(
            *([PoissonGaussian(q, s.sigma, n) for q, n in zip(s.rates, s.rows, strict=True)] for s in few)
        )
    )
    assert quick.epsilon(Composed(tuple(few)), 1e-5) == brute
    assert quick.epsilon(Composed((*few, few[0], few[1])), 1e-5) > brute


def test_many_releases_are_accounted_in_seconds() -> None:
    """Of the same settings, or each with its own noise: two kinds each are 2^25 combinations."""
    same = ClassScheduled(20.0, rates=(0.06, 0.05), rows=(200, 201))
    for releases in ((same,) * 25, tuple(replace(same, sigma=20.0 + i / 8) for i in range(25))):
        (kind,) = exposures(Composed(releases))
        assert sum(x.steps for x in kind) == 25 * 201 and {x.rate for x in kind} == {0.06}
    many = accountant.epsilon(Composed((same,) * 25), 1e-5)
    exact = max(
        accountant.epsilon(PoissonGaussian(rate, 20.0, 25 * rows), 1e-5)
        for rate, rows in zip(same.rates, same.rows, strict=True)
    )
    assert exact <= many < 1.01 * exact


def test_what_surely_fares_no_worse_is_not_counted() -> None:
    """2 steps at 0.5 and 4 at 0.1 can be matched with 3 at 0.5 and 4 at 0.2; of the other pairs, none can."""
    a = ClassScheduled(2.0, rates=(0.5, 0.1), rows=(3, 4))
    b = ClassScheduled(2.0, rates=(0.5, 0.2), rows=(2, 4))
    assert exposures(Composed((a, b))) == [
        (Exposure(0.1, 2.0, 4), Exposure(0.2, 2.0, 4)),
        (Exposure(0.2, 2.0, 4), Exposure(0.5, 2.0, 3)),
        (Exposure(0.5, 2.0, 5),),
    ]


def test_of_classes_with_one_rate_the_one_with_the_most_rows_counts() -> None:
    scheduled = ClassScheduled(2.0, (0.1, 0.1, 0.2, 0.1), (5, 9, 3, 7))
    assert exposures(scheduled) == [(Exposure(0.1, 2.0, 9),), (Exposure(0.2, 2.0, 3),)]
