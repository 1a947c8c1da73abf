"""Hostile files and command lines: only errors of ours come out, no code runs, nothing is written elsewhere.

DPVISION_FUZZ is how many inputs there are in all: 400 by default, 10,000 by `make fuzz`. A file is an input if a reader
refused it or opened what is hostile in it; a command line always is. What fails stays on disk (Campaign.attempt).
"""

from __future__ import annotations

import os
import secrets
from random import Random

import pytest

from tests.system.fuzz import corpus
from tests.system.fuzz.campaign import FILES_AT_ONCE, ON_A_FILE, UNSEEN, Campaign
from tests.system.fuzz.mutations import WAYS, put_in_its_place, sound_copy

INPUTS = int(os.environ.get("DPVISION_FUZZ", "400"))
FIRST = secrets.randbits(64) if "DPVISION_FUZZ" in os.environ else 0  # new ones by `make fuzz`
ENOUGH = 5000  # inputs, to have tried every verb
MAX_FAULTS = 20


def test_files(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    """Three quarters of the inputs."""
    assert _all(campaign, "read", 3 * INPUTS // 4, capsys) >= 3 * INPUTS // 4


def test_command_lines(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    assert _all(campaign, "call", INPUTS // 4, capsys) >= INPUTS // 4
    assert INPUTS < ENOUGH or not campaign.never_finished()


@pytest.mark.slow
def test_something_else_under_every_name(campaign: Campaign) -> None:
    """Every file of the corpus in turn is a folder, a pipe, a device, a link, without end, or missing."""
    arena, inputs = campaign._arena(), []
    for kind in corpus.KINDS:
        files = len(sound_copy(campaign.corpus / kind, arena / kind))
        for number, way in ((n, w) for n in range(files) for w in range(WAYS)):
            place = arena / f"{kind}-{number}-{way}" / kind
            place.parent.mkdir()
            path = sound_copy(campaign.corpus / kind, place)[number]
            put_in_its_place(way, path, campaign.outside)
            inputs.append((place, "heavy", path))
            if len(inputs) == FILES_AT_ONCE:
                campaign.read_all(arena, inputs)
                arena, inputs = campaign._arena(), []
    campaign.read_all(arena, inputs)
    campaign.require_untouched()


def _all(campaign: Campaign, what: str, inputs: int, capsys: pytest.CaptureFixture[str]) -> int:
    """Try the requested number, and return how many there were. Faults are reported together, at the end or when there are many."""
    campaign.counts.clear()
    seeds, count, faults = Random(FIRST), 0, list[str]()
    while count < inputs and len(faults) < MAX_FAULTS:
        before = count
        try:
            campaign.attempt(what, seeds.getrandbits(64))
        except AssertionError as exc:
            faults.append(str(exc))
        count = sum(n for name, n in campaign.counts.items() if name not in (UNSEEN, ON_A_FILE))
        if count // 250 > before // 250 or count >= inputs:
            result = ", ".join(f"{n:,} {name}" for name, n in sorted(campaign.counts.items()))
            with capsys.disabled():
                print(f"\n{count:,} hostile inputs to {what}: {result}; {len(faults)} faults", end="", flush=True)
    campaign.require_untouched()  # nothing was run, and nothing written elsewhere
    assert not faults, "\n\n".join(faults)
    return count
