"""Blocks side by side: in order, to the same bits on any number of threads, and not all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpvision.core import noise
from dpvision.core.sampling import MixtureSampler, Poisson
from dpvision.private.statistics.mixtures import BLOCK, Mixtures, RandomWeights
from dpvision.settings.release import round_robin
from tests.private.statistics.releases.charged import CLASSES, KEY, N, charge, data, mixed, rows_of

ROWS = 5 * BLOCK + 37


@pytest.mark.parametrize("weights", [None, RandomWeights(0.3, 0.2)], ids=["average", "weighted"])
@pytest.mark.parametrize(
    "sampler", [Poisson(9, N, ROWS), round_robin(ROWS, rates=[0.3] * CLASSES)], ids=["poisson", "turn"]
)
def test_the_number_of_threads_changes_no_bit(
    sampler: MixtureSampler, weights: RandomWeights | None, tmp_path: Path
) -> None:
    """Nor the name, and so the charge: the same release."""
    mixtures = Mixtures(rows_of(*data()), sampler, degree=9, weights=weights)
    results, names = [], set()
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        names.add(mixtures.name(KEY, mixtures.event(1.0)))
        results.append(mixed(tmp_path / str(threads), mixtures, sigma=1.5))
    assert len(names) == 1
    for features, labels in results:
        assert features.shape[0] == labels.shape[0] == ROWS
        assert np.array_equal(features, results[0][0]) and np.array_equal(labels, results[0][1])
    assert len({features.tobytes() for features in np.split(results[0][0][: 5 * BLOCK], 5)}) == 5


def _watched(monkeypatch: pytest.MonkeyPatch, watch: Callable[[], None]) -> None:
    release = noise.add_noise

    def wrapped(*args: Any, **named: Any) -> np.ndarray:
        watch()
        return release(*args, **named)

    monkeypatch.setattr(noise, "add_noise", wrapped)


def test_threads_work_and_a_few_blocks_only_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    where: list[int] = []
    both = threading.Barrier(2, timeout=20)  # passes only where two blocks are worked on at a time

    def watch() -> None:
        where.append(threading.get_ident())
        if len(where) <= 2:
            both.wait()

    _watched(monkeypatch, watch)
    mixtures = Mixtures(rows_of(*data()), Poisson(9, N, 40 * BLOCK), degree=9)
    blocks = mixtures.blocks(charge(tmp_path, mixtures, mixtures.sampler.event(1.5)), KEY)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert len(set(where)) == 2 and threading.get_ident() not in where
    assert len(where) <= 3, "one was asked for: it, and two more"


def test_what_fails_on_a_thread_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)

    def fail() -> None:
        raise ZeroDivisionError

    _watched(monkeypatch, fail)
    with pytest.raises(ZeroDivisionError):
        mixed(tmp_path, Mixtures(rows_of(*data()), Poisson(9, N, 3 * BLOCK), degree=9), sigma=1.5)
