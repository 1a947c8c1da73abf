"""Hostile files and command lines: only errors of ours come out, no code runs, nothing is written elsewhere.

DPVISION_FUZZ is how many inputs there are in all: 400 by default, 10,000 by `make fuzz`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import FILES_AT_ONCE, Campaign

INPUTS = int(os.environ.get("DPVISION_FUZZ", "400"))
FUZZ = settings(
    deadline=None,
    database=None,
    derandomize="DPVISION_FUZZ" not in os.environ,  # the same each time in CI, new ones by `make fuzz`
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),  # an input is known by its message; to make it smaller would take minutes
)


def test_files(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    """Three quarters of the inputs."""
    _all(campaign, "files", campaign.read, 3 * INPUTS // 4, FILES_AT_ONCE, capsys)


def test_command_lines(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    _all(campaign, "command lines", campaign.call, INPUTS // 4, 1, capsys)


def _all(
    campaign: Campaign,
    what: str,
    attempt: Callable[[Random], None],
    inputs: int,
    at_once: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    campaign.counts.clear()

    @settings(FUZZ, max_examples=-(-inputs // at_once))
    @given(st.integers(0, (1 << 64) - 1))
    def hostile(seed: int) -> None:
        attempt(Random(seed))

    hostile()
    campaign.require_untouched()
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(campaign.counts.items()))
    with capsys.disabled():
        print(f"\n{sum(campaign.counts.values()):,} hostile {what}: {counts}; nothing run, nothing written elsewhere")
    assert sum(campaign.counts.values()) == -(-inputs // at_once) * at_once
