"""The estimates on docs/gpus.md are those of models/cost.py, and what its programs print is complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import count
from typing import Any

import pytest

from benchmarks.gpus import PAGE, describe, write_tables
from benchmarks.soak import Soak


def test_the_estimates_are_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert write_tables(text) == text, "run `python -m benchmarks.gpus`"


def test_a_changed_estimate_is_noticed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith(f"| {describe('a100').name} | wrn-16-4 | 16 |"))
    changed = text.replace(row, re.sub(r"\d+(?= \|$)", "99", row.rstrip("|") + "|"))
    assert changed != text and write_tables(changed) == text


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no mark"):
        write_tables("# Nothing\n")


@pytest.mark.slow
def test_a_card_is_described_in_one_json() -> None:
    """Run in a new process: the stand-in must be loaded before the first backward pass."""
    words = ("-m", "tests.standin", "-m", "benchmarks.accelerator", "--device", "standin", "--quick")
    process = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=500)
    if "CannotBuild" in process.stderr:
        pytest.skip(process.stderr.splitlines()[-1])
    output: dict[str, Any] = json.loads(process.stdout)
    assert output["exact float64"]["passed"] and output["card"]["memory_bytes"] > 0
    assert [case["precision"] for case in output["trials"]] == ["float32", "tf32", "bf16"]
    assert all(case["passed"] for case in output["trials"])
    assert [case["precision"] for case in output["speed"] if case["images_per_second"] > 0 < case["peak_bytes"]] == [
        "float32",
        "tf32",
        "bf16",
    ]


@pytest.mark.slow
def test_a_soak_finds_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong in an honest soak; with another seed in each run, the bits differ."""
    monkeypatch.setattr("benchmarks.soak.QUICK_KILLS", 2)
    figures = {f.name.partition(": ")[2]: f for f in Soak("cpu", "float32", 0).measure(quick=True)}
    assert figures["runs with the bits of the undisturbed run / runs"].value == 1
    assert figures["runs with a charge for each branch / runs"].value == 1
    assert figures["kills"].value == 2

    honest, seeds = Soak._live, count()

    def live(self: Soak, words: list[str], *given: Any, **named: Any) -> bool:
        return honest(self, [*words, "--seed", str(next(seeds))], *given, **named)

    monkeypatch.setattr(Soak, "_live", live)
    monkeypatch.setattr("benchmarks.soak.QUICK_KILLS", 1)
    figures = {f.name.partition(": ")[2]: f for f in Soak("cpu", "float32", 0).measure(quick=True)}
    assert figures["runs with the bits of the undisturbed run / runs"].value == 0
