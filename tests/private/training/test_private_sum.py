"""The coupling: nothing is released that was not charged, every step draws its own noise, empty batches are steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.core import noise
from dpvision.core.account import Charge
from dpvision.core.events import Budget, Gaussian
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import PrivacyError
from dpvision.models import build
from dpvision.private.engine import ClippedSum
from dpvision.private.training.private_sum import PrivateSum
from tests.charges import charged

SAMPLER = PoissonSampler(5, 40, 30)
SIGMA, KEY = 4.0, Key.for_tests("x")


def _charge(tmp_path: Path, *, first: int = 0) -> Charge:
    ledger = Ledger(tmp_path / "ledgers", "ab" * 32)
    ledger.open(Budget(50.0, 1e-5))
    return ledger.spend(SAMPLER.event(SIGMA, first=first), id="b", run="r", private=False).charges[-1]


def _sum(charge: Charge, *, key: Key = KEY, sampler: PoissonSampler = SAMPLER, first: int = 0) -> PrivateSum:
    model = build("linear", (1, 8, 8), classes=10, seed=0)
    clipped_sum = ClippedSum(model, partial(F.cross_entropy, reduction="none"), clip=1.0)
    return PrivateSum(Gate(charge, key, sampler, name=charge.id, first=first), clipped_sum)


def _fetch(drawn: np.ndarray, _seed: int) -> tuple[Tensor, Tensor, list[int]]:
    images = torch.linspace(-1, 1, 40)[drawn].reshape(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    return images, torch.from_numpy(drawn % 10), [1] * len(drawn)


def test_it_can_not_be_built_for_what_was_not_charged(tmp_path: Path) -> None:
    charge = _charge(tmp_path)
    _sum(charge)
    for wrong in (
        lambda: _sum(charge, sampler=PoissonSampler(5, 41, 30)),
        lambda: _sum(charge, sampler=PoissonSampler(5, 40, 31)),
        lambda: _sum(charge, first=1),
        lambda: _sum(charged(Gaussian(4.0))),
    ):
        with pytest.raises(PrivacyError, match="was charged for"):
            wrong()


def test_no_step_outside_of_the_charge(tmp_path: Path) -> None:
    charge = _charge(tmp_path, first=10)
    private = _sum(charge, first=10)
    for step in (-1, 0, 9, 30, 31):
        with pytest.raises(PrivacyError, match=r"was not charged|already done|is done"):
            _sum(charge, first=10).step(step, 40, _fetch)
    assert torch.isfinite(private.step(10, 40, _fetch)).all()


def test_the_divisor_and_the_noise_do_not_depend_on_the_data(tmp_path: Path) -> None:
    """Same draws, one unit more: what reaches the noise differs by at most C; all else is equal."""
    charge, seen = _charge(tmp_path), []
    fewer, more = _sum(charge), _sum(charge)
    original = noise.add_noise

    def recording(total, stream, *, sensitivity, sigma):
        seen.append((total.copy(), sensitivity, sigma))
        return original(total, stream, sensitivity=sensitivity, sigma=sigma)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "add_noise", recording)
        for step in range(30):
            shorter, longer = fewer.step(step, 39, _fetch), more.step(step, 40, _fetch)
            (a, *public_a), (b, *public_b) = seen[-2:]
            assert public_a == public_b == [1.0, SIGMA]
            assert np.linalg.norm(a - b) <= 1 + 1e-6
            assert float((longer - shorter).norm()) * SAMPLER.batch <= 1 + 1e-3, "same noise, same divisor"


def test_a_step_is_done_once(tmp_path: Path) -> None:
    """The same noise on two sums would show their difference."""
    private = _sum(_charge(tmp_path))
    private.step(0, 40, _fetch)
    private.step(2, 40, _fetch)
    for number in (0, 1, 2):
        with pytest.raises(PrivacyError, match="is already done"):
            private.step(number, 40, _fetch)


def test_an_empty_batch_is_a_step_of_noise_only(tmp_path: Path) -> None:
    private = _sum(_charge(tmp_path))
    nobody = torch.stack([private.step(step, 0, _fetch) for step in range(30)])
    assert float(nobody.std()) * SAMPLER.batch == pytest.approx(SIGMA, rel=0.05)
    assert len({row.numpy().tobytes() for row in nobody}) == 30


def test_noise_is_drawn_once_with_the_full_scale(tmp_path: Path) -> None:
    """Over steps, the variance around the mean gradient is (sigma C / B)^2 in every coordinate."""
    private = _sum(_charge(tmp_path))
    rows = torch.stack([private.step(step, 0, _fetch) for step in range(30)]) * SAMPLER.batch / SIGMA
    spread = rows.var(0, unbiased=False) * 30
    assert float(spread.mean()) == pytest.approx(29, rel=0.05)
    assert float(spread.max()) < 90 and float(spread.min()) > 5
