"""Run the real command line in its own process: `start` a new one, `run` a fork of one that has imported everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.fork_server import shared

# One thread each: tests run side by side, and training here is tiny.
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "200"}


def start(
    *words: str | Path | float, home: Path, key: str | None = None, cwd: Path | None = None
) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "DPVISION_TEST_KEY"} | QUIET
    environment["DPVISION_HOME"] = str(home)
    if key:
        environment["DPVISION_TEST_KEY"] = key
    command = [sys.executable, "-m", "dpvision", *map(str, words)]
    return subprocess.Popen(
        command, env=environment, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(
    *words: str | Path | float, home: Path, key: str | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """(exit code, output, errors)"""
    own = ("DPVISION_TEST_KEY", "DPVISION_HOME")
    more = {name: value for name, value in os.environ.items() if name.startswith("DPVISION_") and name not in own}
    return shared().run(*words, home=home, key=key, cwd=cwd or Path.cwd(), **more)


def write_data(path: Path, *, images: int = 200, seed: int = 0) -> Path:
    """A small .npz that a linear model can learn: the class decides which quarter of the image is bright."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for split, count in (("train", images), ("test", 60)):
        labels = rng.integers(0, 4, count)
        pixels = rng.integers(0, 100, (count, 8, 8))
        for image, label in zip(pixels, labels, strict=True):
            row, column = divmod(int(label), 2)
            image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 120
        arrays |= {f"{split}_images": pixels.astype(np.uint8), f"{split}_labels": labels}
    np.savez(path, **arrays)
    return path
