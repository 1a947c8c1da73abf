"""A training run that is killed again and again, compared with one that nobody disturbs.

Runs of the same settings under a fixed key are killed (SIGKILL) at random instants and resumed, until each is finished.
The weights must have the same bits as those of the undisturbed run, and each ledger at least as many charges as the run
had branches: a branch that goes unpaid would be noise for nothing. Under a fixed key nothing is private; the data are
random images.

    python -m benchmarks.soak --device cuda                  20 steps of WRN-16-4, 16 views; estimated: an hour
    python -m benchmarks.soak --device cuda --quick --json   a small network; less than 5 minutes
    python -m tests.standin -m benchmarks.soak --device standin --quick --json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.results import Figure, main
from dpvision.core.ledger import Ledger
from dpvision.storage import safetensors
from dpvision.storage.run_folder import Run

STAND_IN = "standin"
KILLS, QUICK_KILLS, MAX_LIVES = 12, 10, 100
QUICK_SECONDS = 200.0  # after that, a quick soak begins no new run, and kills no more
KEY = "soak"
FULL = ("--model", "wrn-16-4", "--k-base", "16", "--augment", "crop,flip", "--batch", "4096", "--steps", "20")
QUICK = ("--model", "small-cnn", "--k-base", "2", "--augment", "crop,flip", "--batch", "64", "--steps", "60")


@dataclass
class Disturbed:
    """What happened to the runs that were killed."""

    runs: int = 0
    kills: int = 0
    kills_in_training: int = 0  # after the first step was saved
    same: int = 0  # finished with the bits of the undisturbed run
    paid: int = 0  # with at least as many charges as branches
    charges: list[int] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)


class Soak:
    """All runs of one soak, in one folder."""

    def __init__(self, device: str, precision: str, seed: int) -> None:
        self._device, self._precision, self._random = device, precision, random.Random(seed)

    def measure(self, quick: bool) -> list[Figure]:
        """Run once in peace, then kill others until there were enough kills."""
        began, wanted = time.monotonic(), QUICK_KILLS if quick else KILLS
        measured = Disturbed()
        with tempfile.TemporaryDirectory(dir=os.environ.get("DPVISION_SCRATCH")) as place:
            folder = Path(place).resolve()
            data = self._write_data(folder / "data.npz", quick)
            words = self._words(data, quick)
            whole = Run(folder / "whole")
            started = time.monotonic()
            self._live(words, whole, folder / "home of whole", kill_after=None)
            seconds = time.monotonic() - started
            while measured.kills < wanted and not (quick and time.monotonic() - began > QUICK_SECONDS):
                run, home = Run(folder / f"run-{measured.runs}"), folder / f"home-{measured.runs}"
                self._until_done(words, run, home, measured, seconds, wanted, began if quick else None)
                measured.same += _bits(run) == _bits(whole)
        name = f"{self._device}, {self._precision}"
        return [
            Figure(f"{name}: runs with the bits of the undisturbed run / runs", measured.same / measured.runs, low=1),
            Figure(f"{name}: runs with a charge for each branch / runs", measured.paid / measured.runs, low=1),
            Figure(f"{name}: charges", sum(measured.charges)),
            Figure(f"{name}: branches", sum(measured.branches), low=1),
            Figure(f"{name}: runs", measured.runs, low=1),
            Figure(f"{name}: kills", measured.kills, low=1),
            Figure(f"{name}: kills after the first saved step", measured.kills_in_training, low=1),
            Figure(f"{name}: seconds of the undisturbed run", seconds, unit="s"),
            Figure(f"{name}: minutes in all", (time.monotonic() - began) / 60, unit="min"),
        ]

    def _write_data(self, path: Path, quick: bool) -> Path:
        """Write random images: 256 of 16x16 pixels, or as many and as large as CIFAR-10's."""
        count, side = (256, 16) if quick else (50_000, 32)
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        np.savez(path, train_images=images, train_labels=np.arange(count) % 10)
        return path

    def _words(self, data: Path, quick: bool) -> list[str]:
        settings = (*(QUICK if quick else FULL), "--epsilon", "3", "--budget", "100", "--checkpoint-every", "1")
        return ["train", str(data), *settings, "--device", self._device, "--precision", self._precision]

    def _until_done(
        self,
        words: list[str],
        run: Run,
        home: Path,
        measured: Disturbed,
        seconds: float,
        wanted: int,
        began: float | None,
    ) -> None:
        """Start one run, kill it at random instants, and resume it until it is finished."""
        seen: set[str] = set()
        for _ in range(MAX_LIVES):
            late = began is not None and time.monotonic() - began > QUICK_SECONDS
            spared = measured.kills >= wanted or late or self._random.random() < 0.2
            after = None if spared else self._random.uniform(0.3, 1.0) * seconds
            done = self._live(words, run, home, kill_after=after)
            seen |= _branch(run)
            if done:
                charges = _charges(home)
                measured.runs, measured.paid = measured.runs + 1, measured.paid + (charges >= len(seen))
                measured.charges.append(charges)
                measured.branches.append(len(seen))
                return
            measured.kills += 1
            measured.kills_in_training += bool(_branch(run))
        raise RuntimeError(f"a run was not finished after {MAX_LIVES} starts")

    def _live(self, words: list[str], run: Run, home: Path, *, kill_after: float | None) -> bool:
        """Run the command, or resume what it began, and kill it after some seconds; return whether it finished."""
        begun = run.folder.exists()
        ours = ["resume", str(run.folder)] if begun else [*words, "--out", str(run.folder)]
        launch = ["-m", "tests.standin"] if self._device.startswith(STAND_IN) else []
        environment = os.environ | {"DPVISION_HOME": str(home), "DPVISION_TEST_KEY": KEY}
        process = subprocess.Popen(
            [sys.executable, *launch, "-m", "dpvision", *ours],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            printed, _ = process.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return False
        if process.returncode != 0:
            raise RuntimeError(f"dpvision {' '.join(ours)} ended with {process.returncode}:\n{printed}")
        return True


def _bits(run: Run) -> dict[str, bytes]:
    """Return the released weights as they are on the disk."""
    return {name: values.tobytes() for name, values in load_file(run.weights).items()}


def _branch(run: Run) -> set[str]:
    """Return the name of the branch that the run's state is on, if a step was saved."""
    return {safetensors.read(run.state).header["branch"]} if run.state.exists() else set()


def _charges(home: Path) -> int:
    """Return the number of charges on the one ledger of a home."""
    (path,) = (home / "ledgers").glob("*.jsonl")
    first = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
    return len(Ledger(path.parent, first["fingerprint"]).account().charges)


def options() -> argparse.ArgumentParser:
    """The options of this benchmark."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", default="cpu", help="where to train, by name")
    parser.add_argument("--precision", default="float32", help="float32, tf32 or bf16")
    parser.add_argument("--seed", type=int, default=0, help="of the instants of the kills")
    return parser


if __name__ == "__main__":
    more = options()
    given = more.parse_known_args()[0]
    main(
        "soak",
        Soak(given.device, given.precision, given.seed).measure,
        about="Training runs under a fixed key, killed at random instants and resumed, compared with a run that "
        "nobody disturbs: released weights bit by bit, and charges on the ledger with branches.",
        more=more,
    )
