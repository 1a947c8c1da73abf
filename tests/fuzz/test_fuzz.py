"""Hostile files and command lines: only errors of ours come out, no code runs, nothing is written elsewhere.

DPVISION_FUZZ is how many inputs there are in all: some 200 by default, 10,000 by `make fuzz`.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import Campaign

INPUTS = int(os.environ.get("DPVISION_FUZZ", "200"))
FUZZ = settings(
    max_examples=INPUTS // 2,
    deadline=None,
    database=None,
    derandomize="DPVISION_FUZZ" not in os.environ,  # the same each time in CI, new ones by `make fuzz`
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),  # an input is known by its message; to make it smaller would take minutes
)


def test_files(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    _all(campaign, "files", campaign.read, capsys)


def test_command_lines(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    _all(campaign, "command lines", campaign.call, capsys)


def _all(campaign: Campaign, what: str, attempt: object, capsys: pytest.CaptureFixture[str]) -> None:
    campaign.counts.clear()

    @FUZZ
    @given(st.integers(0, (1 << 64) - 1))
    def hostile(seed: int) -> None:
        attempt(Random(seed))  # type: ignore[operator]

    hostile()
    campaign.require_untouched()
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(campaign.counts.items()))
    with capsys.disabled():
        print(f"\n{sum(campaign.counts.values()):,} hostile {what}: {counts}; nothing run, nothing written elsewhere")
    assert sum(campaign.counts.values()) >= INPUTS // 2
