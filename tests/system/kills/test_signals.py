"""Ctrl-C and SIGTERM in the middle of every verb that takes long: 130, what to do next, and the same end afterwards."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.system.kills.killing import Undisturbed
from tests.system.kills.verbs import EACH, KEY, Verb, World

# A change to the disk before the last step, where the middle one may come after it.
FIRST = {"pretrain": 2, "synth fit": 2, "synth sample": 6}
# Verbs that save their state when they are asked to stop; the others end at once and are begun again.
SAVING = {"train", "train, with canaries", "pretrain", "synth fit", "synth guide", "synth sample", "warm"}


@pytest.mark.parametrize("verb", EACH)
def test_a_verb_that_is_asked_to_stop_can_go_on(
    verb: Verb, server: ForkServer, supplies: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    whole = undisturbed(verb)
    asks = (signal.SIGTERM, signal.SIGINT) if verb.name == "warm" else (signal.SIGINT,)
    for ask in asks:
        world = World(tmp_path / ask.name, supplies)
        world.out.parent.mkdir(parents=True)
        middle = FIRST.get(verb.name, whole.changes // 2)
        job = server.start(*verb.words(world), home=world.home, key=KEY, arena=world.folder, die_at=middle, die_by=ask)
        code, out, err = server.wait(job)
        assert code == 130, (out, err)
        if verb.name in SAVING:
            assert "continue" in out.lower() and not err, (out, err)
        else:
            assert err == "dpvision: interrupted.\n"
        code, _, err = server.run(*verb.words(world), home=world.home, key=KEY)
        assert code == 0, err
        assert verb.result(world) == whole.result
