"""Every planted bug is found, and sound code raises no alarm."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.system.planted.bugs import BUGS, BY_NAME
from tests.system.planted.bugs_of_devices import BUGS_OF_DEVICES
from tests.system.planted.nursery import Nursery
from tests.system.planted.planting import Edit

SEEDS = 100


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def test_there_are_enough_and_each_has_a_source_and_a_killer() -> None:
    assert len(BY_NAME) == len(BUGS) >= 36
    assert {bug.number for bug in BUGS} >= set(range(1, 39)), "one at least of every kind"
    assert all(bug.source and bug.killers and bug.edits for bug in BUGS)


ON_DEVICES = tuple(bug.name for bug in BUGS_OF_DEVICES)


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ON_DEVICES])
def test_a_planted_bug_is_found(name: str, nursery: Nursery) -> None:
    """By one of the checks that are listed beside it; those are run first, up to the first alarm."""
    _require_found(name, nursery)


@pytest.mark.parametrize("name", ON_DEVICES)
def test_a_planted_bug_of_devices_is_found(name: str, nursery: Nursery, standin: ModuleType) -> None:
    _require_found(name, nursery)


def _require_found(name: str, nursery: Nursery) -> None:
    result = nursery.ask(name, checks=BY_NAME[name].killers, first=True)["alarms"]
    assert set(result) <= set(BY_NAME[name].killers) and result, "no alarm was raised"


def test_sound_code_raises_no_alarm(nursery: Nursery) -> None:
    assert nursery.ask(None)["alarms"] == {}


def test_a_bug_that_can_not_be_planted_is_told() -> None:
    """So that none is passed over when the code changes."""
    with pytest.raises(ValueError, match="2 times"):
        Edit("x", "a", "b").apply("a a")
    with pytest.raises(ValueError, match="0 times"):
        Edit("x", "a", "b").apply("c")


@pytest.mark.slow
def test_no_false_alarm_in_100_clean_seeds(nursery: Nursery) -> None:
    samplers = ["sampler of training", "sampler of releases", "blocks of releases"]
    statistical = ["keys", "noise", *samplers, "auditor", "law of tuning"]
    assert nursery.ask(None, checks=statistical, seeds=list(range(SEEDS)))["alarms"] == {}


@pytest.mark.slow
def test_who_catches_what(nursery: Nursery) -> None:
    """The whole suite against every bug, as a table; who is listed as a killer is one."""
    missed = {}
    for bug in BUGS:
        result = nursery.ask(bug.name)["alarms"]
        print(f"{bug.number:3d}  {bug.name:60s} {', '.join(result)}", flush=True)
        if wrong := set(bug.killers) - set(result):
            missed[bug.name] = wrong
    assert not missed
