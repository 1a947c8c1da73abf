"""Events are immutable values that read back from JSON to the last bit and expose what each kind of record meets."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpvision.errors import ConfigError
from dpvision.privacy.events import (
    Budget,
    ClassScheduled,
    Composed,
    Event,
    Exposure,
    Gaussian,
    PoissonGaussian,
    describe,
    exposures,
    from_json,
    to_json,
)

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


def test_of_classes_with_one_rate_the_one_with_the_most_rows_counts() -> None:
    scheduled = ClassScheduled(2.0, (0.1, 0.1, 0.2, 0.1), (5, 9, 3, 7))
    assert exposures(scheduled) == [(Exposure(0.1, 2.0, 9),), (Exposure(0.2, 2.0, 3),)]
