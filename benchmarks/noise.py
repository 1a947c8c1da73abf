"""The price of noise that is cryptographic, float64 and on a grid, compared with torch's ordinary generator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.results import Figure, main
from dpvision.core import noise
from dpvision.core.keys import Key

SIZE = 2_700_000  # weights of a WRN-16-4


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(quick: bool) -> list[Figure]:
    torch.set_num_threads(1)
    key, total = Key.fresh(), np.zeros(SIZE)
    ours, plain = [], []
    for step in range(7 if quick else 25):
        stream = key.stream("noise", step=step)
        ours.append(_seconds(lambda stream=stream: noise.add_noise(total, stream, sensitivity=1.0, sigma=5.0)))
        plain.append(_seconds(lambda: torch.randn(SIZE, dtype=torch.float64)))
    return [
        Figure("secure noise on a grid", statistics.median(ours) / SIZE * 1e9, high=40.0, unit="ns per weight"),
        Figure("torch.randn in float64", statistics.median(plain) / SIZE * 1e9, unit="ns per weight"),
        Figure("ratio", statistics.median(ours) / statistics.median(plain)),
    ]


if __name__ == "__main__":
    main("noise", measure, about="CPU nanoseconds per weight of a release of 2.7 million numbers, one thread, medians.")
