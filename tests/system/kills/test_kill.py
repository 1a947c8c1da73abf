"""kill -9 at random instants of the real command line, then resume: the same bits, and never an uncharged release."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from dpvision.core.ledger import Ledger
from tests.system.runs.commands import run, start, write_data

SETTINGS = ("--epsilon", "3", "--batch", "20", "--steps", "250", "--checkpoint-every", "7")
KEY = "kill"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, float]:
    """The data, the weights of a run that nobody disturbs, and how long the process lives."""
    folder = tmp_path_factory.mktemp("unbroken")
    data = write_data(folder / "data.npz")
    code, _, err = run("train", data, *SETTINGS, "--out", folder / "first", home=folder / "home0", key=KEY)
    assert code == 0, err
    began = time.monotonic()
    code, _, err = run("train", data, *SETTINGS, "--out", folder / "run", home=folder / "home", key=KEY)
    assert code == 0, err
    weights = (folder / "run" / "weights.safetensors").read_bytes()
    assert weights == (folder / "first" / "weights.safetensors").read_bytes(), "the same run twice gives the same bytes"
    return data, weights, time.monotonic() - began


def _released(run_folder: Path) -> bool:
    return any((run_folder / name).exists() for name in ("weights.safetensors", "metrics.jsonl"))


def _kill_until_done(folder: Path, data: Path, weights: bytes, life: float, *, kills: int, rng: random.Random) -> int:
    """Kill again and again, each time at a random instant of the process's life; resume in between."""
    done, out, home = 0, folder / "run", folder / "home"
    while done < kills:
        began = out.exists()
        words = ("resume", out) if began else ("train", data, *SETTINGS, "--out", out)
        process, started = start(*words, home=home, key=KEY), time.monotonic()
        try:
            process.wait(timeout=rng.uniform(0.2, 1.0) * life)
            life = time.monotonic() - started  # the machine's load changes: keep aiming inside the process's life
        except subprocess.TimeoutExpired:
            process.kill()
            done += 1
        process.communicate()
        ledgers = list((home / "ledgers").glob("*.jsonl")) if home.exists() else []
        if out.exists() and _released(out):
            assert ledgers, "something was released before anything was charged"
        for path in ledgers:
            fingerprint = path.read_text().split('"fingerprint": "')[1].split('"')[0] if path.stat().st_size else ""
            if fingerprint:
                charges = Ledger(path.parent, fingerprint).account().charges
                assert len(charges) <= 1, "resuming the same branch must not charge again"
                if out.exists() and _released(out):
                    assert charges and charges[0].event.steps == 250  # type: ignore[union-attr]
        if (out / "weights.safetensors").exists() and process.returncode == 0:
            assert (out / "weights.safetensors").read_bytes() == weights
            shutil.rmtree(folder)
            folder.mkdir()
    if out.exists():
        code, _, err = run("resume", out, home=home, key=KEY)
        assert code == 0, err
        assert (out / "weights.safetensors").read_bytes() == weights
    return done


@pytest.mark.parametrize("seed", range(2))
def test_a_few_kills(seed: int, tmp_path: Path, unbroken: tuple[Path, bytes, float]) -> None:
    assert _kill_until_done(tmp_path, *unbroken, kills=6, rng=random.Random(seed)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_a_hundred_kills(seed: int, tmp_path: Path, unbroken: tuple[Path, bytes, float]) -> None:
    """100 in all, in 10 pieces for the two cores."""
    assert _kill_until_done(tmp_path, *unbroken, kills=10, rng=random.Random(seed)) == 10
