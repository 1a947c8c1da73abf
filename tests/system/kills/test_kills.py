"""kill -9 at random instants of every verb that takes long: nothing lost, nothing under-counted, a clear message."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.system.kills.killing import Undisturbed, kill_until_done
from tests.system.kills.verbs import EACH, VERBS, Verb


@pytest.mark.parametrize("verb", EACH)
def test_a_few_kills(verb: Verb, server: ForkServer, supplies: Path, undisturbed: Undisturbed) -> None:
    _kill(verb, server, supplies, undisturbed, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_many_kills(verb: Verb, server: ForkServer, supplies: Path, undisturbed: Undisturbed) -> None:
    """At least 275 over all verbs."""
    _kill(verb, server, supplies, undisturbed, kills=25, seed=2)


def _kill(verb: Verb, server: ForkServer, supplies: Path, undisturbed: Undisturbed, *, kills: int, seed: int) -> None:
    tally = kill_until_done(server, verb, supplies, undisturbed(verb), kills=kills, rng=random.Random(seed))
    print(f"{verb.name}: {dict(tally.kills)} kills, {tally.ends} lives")
    assert sum(tally.kills.values()) >= kills
