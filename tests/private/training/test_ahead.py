"""What the host prepares while a device works: parts in their order, and noise that is still given once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dpvision.core import noise
from dpvision.core.events import Budget
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import BoundedSum
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import PrivacyError
from dpvision.private.training.private_sum import fetch_ahead

SAMPLER, SIGMA, SIZE = PoissonSampler(5, 40, 4), 4.0, noise.BLOCK + 77


@pytest.fixture
def make_gate(tmp_path: Path) -> Iterator[object]:
    ledger = Ledger(tmp_path / "ledgers", "ab" * 32)
    ledger.open(Budget(50.0, 1e-5))
    charge = ledger.spend(SAMPLER.event(SIGMA), id="b", run="r", private=False).charges[-1]
    yield lambda: Gate(charge, Key.for_tests("x"), SAMPLER, name=charge.id)


def _sum(sensitivity: float = 1.0, size: int = SIZE) -> BoundedSum:
    return BoundedSum(np.linspace(-1, 1, size), sensitivity)


def test_noise_that_was_drawn_ahead_has_the_same_bits(make_gate) -> None:
    plain, ahead = make_gate(), make_gate()
    for number in (0, 2):
        ahead.draw_ahead(number, SIZE, 1.0)
        assert np.array_equal(ahead.noisy(_sum(), number), plain.noisy(_sum(), number))


def test_it_is_given_once_and_for_its_own_release(make_gate) -> None:
    plain, gate = make_gate(), make_gate()
    gate.draw_ahead(0, SIZE, 1.0)
    assert np.array_equal(gate.noisy(_sum(), 1), plain.noisy(_sum(), 1))  # the noise of 0 is not that of 1
    first = gate.noisy(_sum(), 0)
    assert np.array_equal(first, plain.noisy(_sum(), 0))
    gate.draw_ahead(0, SIZE, 1.0)
    with pytest.raises(PrivacyError, match="is done"):
        gate.noisy(_sum(), 0)
    with pytest.raises(PrivacyError, match="was not charged"):
        gate.draw_ahead(9, SIZE, 1.0)
        gate.noisy(_sum(), 9)


@pytest.mark.parametrize("other", [_sum(2.0), _sum(size=SIZE - 1)], ids=["sensitivity", "size"])
def test_a_sum_of_another_kind_gets_noise_that_fits_it(make_gate, other: BoundedSum) -> None:
    plain, ahead = make_gate(), make_gate()
    ahead.draw_ahead(0, SIZE, 1.0)
    assert np.array_equal(ahead.noisy(other, 0), plain.noisy(other, 0))


def test_parts_are_fetched_in_order_and_one_ahead() -> None:
    fetched = threading.Semaphore(0)

    def parts() -> Iterator[tuple[torch.Tensor, torch.Tensor, list[int]]]:
        for number in range(4):
            fetched.release()
            yield torch.tensor([number]), torch.tensor([0]), [1]

    seen = []
    for images, _, _ in fetch_ahead(parts()):
        if not seen:
            assert fetched.acquire(timeout=10) and fetched.acquire(timeout=10)  # this part and the next one
        seen.append(int(images))
    assert seen == [0, 1, 2, 3]


def test_an_error_of_a_fetch_is_raised_and_its_thread_ends() -> None:
    def parts() -> Iterator[tuple[torch.Tensor, torch.Tensor, list[int]]]:
        yield torch.zeros(1), torch.zeros(1), [1]
        raise OSError("the disk")

    before = threading.active_count()
    with pytest.raises(OSError, match="the disk"):
        list(fetch_ahead(parts()))
    abandoned = fetch_ahead(parts())
    next(abandoned)
    abandoned.close()
    assert threading.active_count() == before
