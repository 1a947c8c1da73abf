"""Processor time of the command line on built-in digits: what a person waits for, apart from the work itself."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.results import Figure, main

# Commands in order, with the limit in seconds: they share a folder and a privacy budget.
# Mistakes and help pages import nothing slow.
ANSWERS = {
    "": 1.0,
    "--help": 1.0,
    "train --help": 1.0,
    "train digits --epsilon 3 --nope": 1.0,
    "train no.npz --epsilon 3": 1.0,
    "train digits": 1.0,
    "audit no": 1.0,
    "predict run no.png": 1.0,
}
# Verbs that need no torch. `ledger` and `report` miss the limit: a total over runs is computed by dp-accounting, whose
# import alone takes 0.8 s (scipy), and the plots of a report take 0.7 s more (matplotlib).
LIGHT = {
    "recipes": 1.0,
    "check digits": 1.0,
    "plan --n 4000 --epsilon 3": 1.0,
    "plan release --n 4000 --epsilon 3": 1.0,
    "verify run --key signer.pub": 1.0,
    "ledger digits": 1.0,
    "board run": 1.0,
    "report run": 1.0,
}
# Verbs that need torch, up to the plan or on little work. `audit`, which also writes plots and a report, misses it.
HEAVY = {
    "train digits --epsilon 3 --dry-run": 3.0,
    "release digits --epsilon 3 --dry-run": 3.0,
    "predict run photos.npz --out answers.csv": 3.0,
    "eval run digits": 3.0,
    "export run --to safetensors --force": 3.0,
    "audit run --runs 100": 3.0,
}
BEFORE = ("train digits --epsilon 3 --out run", "ledger digits --set-budget 20", "sign run --key signer --new-key")


def measure(quick: bool) -> list[Figure]:
    """Each command runs alone; of several times, the least is the one with the fewest disturbances."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for words in BEFORE:
            _seconds(words, folder)
        _write_images(folder / "photos.npz")
        limits = {**ANSWERS, **LIGHT, **HEAVY}
        times = {words: min(_seconds(words, folder) for _ in range(2 if quick else 5)) for words in limits}
    return [Figure(f"dpvision {words}".strip(), times[words], high=limits[words], unit="s") for words in limits]


def _seconds(words: str, folder: Path) -> float:
    """Return the processor time of one command, in user and system mode."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "dpvision", *words.split()]
    environ = {**os.environ, "DPVISION_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    is_mistake = words in ANSWERS and bool(words) and not words.endswith("--help")
    assert (ran.returncode != 0) == is_mistake, (words, ran.returncode, ran.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _write_images(path: Path) -> None:
    import numpy as np
    from sklearn.datasets import load_digits

    images = (load_digits().images[:50] * 15).astype("uint8")
    np.savez(path, images=images)


if __name__ == "__main__":
    main(
        "start",
        measure,
        about="User and system seconds of whole commands on digits, each the least of 5 (quick: 2), with one thread. "
        "Verbs that need torch are measured up to the plan, or with little work.",
    )
