"""Every verb's help has an example, and every example runs: as it is written but for the values in SMALLER.

A new verb is found by itself. Where its example would take long, or needs a file, say so in the tables below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.system.docs.examples import call, examples, words_of
from tests.system.runs.commands import write_data

# Options that examples get in addition to their own, so that all of them take seconds.
SMALLER: dict[str, dict[str, str]] = {
    "audit": {"--runs": "200", "--confidence": "0.999999"},  # by default a true claim is refuted once in twenty audits
    "data split": {"--public": "100"},
    "geometry": {"--most": "64", "--top": "1", "--probes": "2"},
    "images": {"--count": "2", "--size": "16"},
    "pretrain": {"--steps": "1", "--size": "8", "--finer": "1", "--count": "2", "--batch": "2", "--hidden": "16"},
    "release": {"--encoder": "pixels", "--rank": "0", "--rows": "40"},
    "synth fit": {"--size": "tiny", "--steps": "1", "--batch": "2"},
    "synth guide": {"--samples": "4", "--extractor-steps": "1", "--steps": "1", "--batch": "4", "--width": "8"},
    "synth quality": {"--most": "100", "--no-cas": ""},
    "synth sample": {"--count": "100", "--steps": "2"},
    "train": {"--steps": "5"},
    "tune": {"--steps": "2", "--trials": "1.5"},
    "warm": {"--steps": "1", "--batch": "4"},
}
# These make what the others take; the rest follow by name. Files that no example makes are made by `world`.
FIRST = ("train", "ledger", "data split", "synth fit", "synth sample", "warm", "release")
# Run by a test that has what they need.
ELSEWHERE = {
    "synth words": Path(__file__).parents[2] / "public" / "test_prompts_with_a_pipeline.py",
    "weights get": Path(__file__).parents[2] / "storage" / "weights" / "test_commands.py",
    "weights where": Path(__file__).parents[2] / "storage" / "weights" / "test_commands.py",
}

EXAMPLES = examples()
ORDER = sorted(EXAMPLES.keys() - ELSEWHERE.keys(), key=lambda v: (FIRST.index(v) if v in FIRST else len(FIRST), v))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with stand-ins for the files that examples name, and a ledger that all of them share."""
    folder, before = tmp_path_factory.mktemp("examples"), Path.cwd()
    write_data(folder / "cifar10.npz", images=200)
    write_data(folder / "private.npz", images=200, seed=1)
    write_data(folder / "public.npz", images=100, seed=2)
    rng = np.random.default_rng(0)
    for place in (*(f"photos/{s}/{c}" for s in ("train", "test") for c in ("cat", "dog")), "new_photos"):
        (folder / place).mkdir(parents=True)
        for name in ("1.png", "2.png"):
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / place / name)
    os.chdir(folder)
    yield folder
    os.chdir(before)


def test_every_verb_has_an_example() -> None:
    assert {"train", "export", "data pack", "plan release", "synth words", "recipes"} <= EXAMPLES.keys()
    assert [verb for verb, lines in EXAMPLES.items() if not lines] == []
    assert [v for v, lines in EXAMPLES.items() if not any(line.startswith(f"dpvision {v}") for line in lines)] == []
    for verb, test in ELSEWHERE.items():
        assert f'EXAMPLES["{verb}"]' in test.read_text()


@pytest.mark.parametrize("verb", ORDER)
def test_the_help_shows_it(verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert call([*verb.split(), "--help"], monkeypatch) == 0
    assert f"Example: {EXAMPLES[verb][0]}" in " ".join(capsys.readouterr().out.split())


def test_all_of_them_run(world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(world / "home"))
    seen: set[str] = set()
    failed = []
    for verb in ORDER:
        for example in EXAMPLES[verb]:
            if example in seen:
                continue
            seen.add(example)
            of = next(
                (v for v in sorted(EXAMPLES, key=len, reverse=True) if example.startswith(f"dpvision {v} ")), verb
            )
            words = words_of(example, SMALLER.get(of, {}))
            code = call(words, monkeypatch)
            output = capsys.readouterr().err
            failed += [f"{example}\nran as: dpvision {' '.join(words)}\nended with {code}: {output}"] if code else []
    assert not failed, "\n".join(failed)
