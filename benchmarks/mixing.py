"""Seconds and memory of released mixtures, compared with a dense product of matrices with numpy's noise."""

from __future__ import annotations

import resource
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import Figure, main
from dpvision.core.account import Charge
from dpvision.core.events import Budget
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Preparation, Rows
from dpvision.core.sampling import Poisson
from dpvision.private.statistics.mixtures import BLOCK, Mixtures, RandomWeights

RECORDS, WIDTH, CLASSES, ROWS, DEGREE, SIGMA = 60_000, 3_969, 10, 60_000, 64, 1.0
SECONDS, GIGABYTES = 60.0, 4.0
FEW = 12 * BLOCK  # rows of the quick form, and of the comparison
DENSE = 2  # blocks


def measure(quick: bool) -> list[Figure]:
    rows = FEW if quick else ROWS
    private = _private()
    key = Key.fresh()
    mixtures = Mixtures(private, Poisson(DEGREE, RECORDS, ROWS), degree=DEGREE)
    wall, work = time.perf_counter(), time.process_time()
    charge = _charge(mixtures, key)
    features = np.empty((rows, WIDTH), dtype=np.float32)
    labels = np.empty((rows, CLASSES), dtype=np.float32)
    first, ready = 0, 0.0
    for x, y in islice(mixtures.blocks(charge, key), -(-rows // BLOCK)):
        ready = ready or time.perf_counter() - wall  # with the first block
        features[first : first + len(x)], labels[first : first + len(y)] = x, y
        first += len(x)
    wall, work = time.perf_counter() - wall, time.process_time() - work
    seconds = ready + (wall - ready) * (ROWS - BLOCK) / (rows - BLOCK)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    missing = (ROWS - rows) * (WIDTH + CLASSES) * 4 / 1e9
    assert first == rows and np.isfinite(features).all() and np.isfinite(labels).all()
    measured = f", from {rows:,} of them" if quick else ""
    every = [
        Figure(f"{ROWS:,} rows{measured}", seconds, high=SECONDS, unit="s"),
        Figure("of which before the first block is released", ready, unit="s"),
        Figure(f"processor time of {rows:,} rows, all threads", work, unit="s"),
        Figure("peak memory of the process", memory, high=GIGABYTES - missing, unit="GB"),
    ]
    dense = _dense(private.x) * ROWS / (DENSE * BLOCK)
    weighted = _weighted(private, key) * ROWS / FEW
    return [
        *every,
        Figure(f"dense product and numpy's noise, from {DENSE * BLOCK:,} rows", dense, unit="s"),
        Figure("times faster than the dense product", dense / seconds, low=1.0),
        Figure(f"with random weights, from {FEW:,} rows", weighted, unit="s"),
    ]


def _private() -> Rows:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((RECORDS, WIDTH), dtype=np.float32)
    return Rows.of(x, rng.integers(0, CLASSES, RECORDS), Preparation(unit=True), classes=CLASSES)


def _charge(mixtures: Mixtures, key: Key) -> Charge:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder), "ab" * 16)
        ledger.open(Budget(1e6, 1e-5))
        event = mixtures.sampler.event(SIGMA)
        return ledger.spend(event, id=mixtures.name(key, event), run="benchmark", private=key.private).charges[-1]


def _weighted(private: Rows, key: Key) -> float:
    """Return the seconds of FEW rows, after the first block."""
    weights = RandomWeights(0.5, 4 / DEGREE)
    mixtures = Mixtures(private, Poisson(DEGREE, RECORDS, FEW + BLOCK), degree=DEGREE, weights=weights)
    blocks = mixtures.blocks(_charge(mixtures, key), key)
    next(blocks)
    start = time.perf_counter()
    assert sum(len(x) for x, _ in blocks) == FEW
    return time.perf_counter() - start


def _dense(x: NDArray[np.float32]) -> float:
    """Measure the seconds of the same rows computed directly: a 0/1 matrix of draws times the features, plus noise."""
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(DENSE):
        drawn = (rng.random((BLOCK, len(x)), dtype=np.float32) < DEGREE / len(x)).astype(np.float32)
        noisy = (drawn @ x + SIGMA * rng.standard_normal((BLOCK, WIDTH))) / DEGREE
        assert noisy.shape == (BLOCK, WIDTH)
    return time.perf_counter() - start


ABOUT = (
    f"{ROWS:,} rows of degree {DEGREE} over {RECORDS:,} x {WIDTH:,} features in float32, with the charge, on torch's "
    "threads. Memory: the prepared rows, their copy on the grid and the released rows, which are kept; the features "
    "as they came are dropped once they are prepared. The dense product has features only, no labels."
)

if __name__ == "__main__":
    main("mixing", measure, about=ABOUT)
