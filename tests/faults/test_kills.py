"""kill -9 at random instants of every verb that takes long: nothing lost, nothing under-counted, a clear message."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.killing import kill_until_done, unbroken
from tests.faults.verbs import VERBS, Verb, World
from tests.fork_server import ForkServer


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_few_kills(verb: Verb, server: ForkServer, supplies: Path, tmp_path: Path) -> None:
    _kill(verb, server, supplies, tmp_path, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_many_kills(verb: Verb, server: ForkServer, supplies: Path, tmp_path: Path) -> None:
    """At least 225 over all verbs."""
    _kill(verb, server, supplies, tmp_path, kills=25, seed=2)


def _kill(verb: Verb, server: ForkServer, supplies: Path, tmp_path: Path, *, kills: int, seed: int) -> None:
    whole = unbroken(server, verb, World(tmp_path.resolve() / "unbroken", supplies))
    tally = kill_until_done(server, verb, supplies, whole, kills=kills, rng=random.Random(seed))
    print(f"{verb.name}: {dict(tally.kills)} kills, {tally.ends} lives")
    assert sum(tally.kills.values()) >= kills
