"""Released moments: one image moves them by 1 at most, noise is as charged, and nothing comes out without a charge."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.core import noise
from dpvision.core.events import Gaussian, PoissonGaussian
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Rows
from dpvision.errors import ConfigError, LedgerMismatch, PrivacyError
from dpvision.private.statistics.moments import MomentsMechanism
from dpvision.private.statistics.row_sums import class_statistics
from dpvision.released.moments import ClassMoments
from tests.private.statistics.cases import NASTY, nasty_row
from tests.private.statistics.releases.charged import CLASSES, KEY, WIDTH, N, charge, data, rows_of

COUNTS = {"private counts": None, "declared counts": (30, 40, 20)}
SHARES = ((0.4, 0.02), (0.9, 0.05), (0.05, 0.9))


def _of(rows: Rows, *, share: float = 0.4, counts_share: float = 0.02, declared: Any = None) -> MomentsMechanism:
    return MomentsMechanism(rows, share=share, counts_share=counts_share, n=N, class_counts=declared)


def _released(folder: Path, moments: MomentsMechanism, *, sigma: float) -> ClassMoments:
    return moments.noisy_moments(charge(folder, moments, moments.event(sigma)), KEY)


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("counts", COUNTS)
def test_one_record_more_moves_the_released_vector_by_1_at_most(
    counts: str, shares: tuple[float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    asked: set[float] = set()

    def recorded(total: np.ndarray, _: object, *, sensitivity: float, sigma: float) -> np.ndarray:
        seen.append(total.copy())
        asked.add(sensitivity)
        return total

    monkeypatch.setattr(noise, "add_noise", recorded)
    rng, (x, labels), largest = np.random.default_rng(1), data(), 0.0
    for number, kind in enumerate(NASTY):
        row = np.resize(nasty_row(rng, kind, x), WIDTH)
        both = rows_of(np.vstack([x, row]), np.r_[labels, number % CLASSES]), rows_of(x, labels)
        seen.clear()
        for which, rows in enumerate(both):
            moments = _of(rows, share=shares[0], counts_share=shares[1], declared=COUNTS[counts])
            _released(tmp_path / f"{number} {which}", moments, sigma=1.0)
        moved = float(np.linalg.norm(seen[0] - seen[1]))
        assert moved <= 1 + 1e-9
        if kind in ("nan", "inf"):
            assert not moved, "such a record is in no sum and in no count"
        largest = max(largest, moved)
    assert largest > 0.999, "a claim that nothing comes near to would only add noise"
    (sensitivity,) = asked
    assert sensitivity == pytest.approx(1.0, abs=1e-12)
    assert len(seen[0]) == WIDTH * CLASSES + WIDTH * (WIDTH + 1) // 2 + (0 if COUNTS[counts] else CLASSES)


@pytest.mark.parametrize("counts", COUNTS)
def test_noise_is_as_charged_and_as_told(counts: str, tmp_path: Path) -> None:
    """Of nobody, what comes out is noise of sigma over the part's weight."""
    nobody = rows_of(np.full((1, WIDTH), np.nan), np.array([0]))
    of_sums, of_counts, diagonal, off = [], [], [], []
    for number in range(60):
        moments = MomentsMechanism(nobody, share=0.4, counts_share=0.1, n=N + number, class_counts=COUNTS[counts])
        got = _released(tmp_path / str(number), moments, sigma=2.0)
        of_sums.append(got.sums)
        of_counts.append(got.counts)
        diagonal.append(np.diag(got.second))
        off.append(got.second[np.triu_indices(WIDTH, 1)])
        assert np.array_equal(got.second, got.second.T)
    b2 = 0.6 if COUNTS[counts] else 0.5
    assert got.noise_of_sums == pytest.approx(2 / math.sqrt(b2)) and np.std(of_sums) == pytest.approx(
        got.noise_of_sums, rel=0.06
    )
    assert got.noise_of_second == pytest.approx(2 / math.sqrt(0.4))
    assert np.std(diagonal) == pytest.approx(got.noise_of_second, rel=0.1)
    assert np.std(off) == pytest.approx(got.noise_of_second / math.sqrt(2), rel=0.06)
    if COUNTS[counts]:
        assert got.noise_of_counts == 0 and all(np.array_equal(c, COUNTS[counts]) for c in of_counts)
    else:
        assert got.noise_of_counts == pytest.approx(2 / math.sqrt(0.1))
        assert np.std(of_counts) == pytest.approx(got.noise_of_counts, rel=0.2)


@pytest.mark.parametrize("counts", COUNTS)
def test_with_hardly_any_noise_they_are_the_moments(counts: str, tmp_path: Path) -> None:
    x, labels = data()
    x[3] = np.nan
    rows = rows_of(x, labels)
    got = _released(tmp_path, _of(rows, declared=COUNTS[counts]), sigma=1e-3)
    good = np.arange(N) != 3
    unit = rows.x[good].astype(np.float64)
    assert np.allclose(got.sums, unit.T @ np.eye(CLASSES)[labels[good]], atol=0.04)
    assert np.allclose(got.second, unit.T @ unit, atol=0.04)
    wanted = COUNTS[counts] or np.bincount(labels[good])
    assert np.allclose(got.counts, wanted, atol=0.04) and got.n == N
    exact = class_statistics(rows, a=0.6, b=0.8, c=0.0)
    assert exact.sensitivity == 1.0


def test_without_its_charge_nothing_comes_out(tmp_path: Path) -> None:
    moments = _of(rows_of(*data()))
    good = charge(tmp_path / "a", moments, Gaussian(1.5, 1))
    for event in (Gaussian(1.5, 2), PoissonGaussian(0.5, 1.5, 1), PoissonGaussian(1.0, 1.5, 1)):
        with pytest.raises(PrivacyError, match="was charged for"):
            moments.noisy_moments(replace(good, event=event), KEY)
    with pytest.raises(PrivacyError, match="other records, settings or software"):
        moments.noisy_moments(replace(good, id="00" * 16), KEY)
    with pytest.raises(PrivacyError, match="the key is a fixed one"):
        moments.noisy_moments(replace(good, private=True), KEY)
    with pytest.raises(PrivacyError):
        moments.noisy_moments(good, Key.fresh())
    with pytest.raises(LedgerMismatch, match="this data set has no ledger yet"):
        Ledger(tmp_path, "cd" * 16).spend(Gaussian(1.5, 1), id=moments.name(KEY, Gaussian(1.5, 1)), run="r")
    once, again = (moments.noisy_moments(good, KEY) for _ in range(2))
    assert np.array_equal(once.sums, again.sums) and np.array_equal(once.second, again.second), "the same release"


def test_other_records_or_settings_do_not_get_the_same_noise(tmp_path: Path) -> None:
    x, y = data()
    good = charge(tmp_path, _of(rows_of(x, y)), Gaussian(1.5, 1))
    changed, relabelled = x.copy(), y.copy()
    changed[7] = 0
    relabelled[7] = (y[7] + 1) % CLASSES
    rows = rows_of(x, y)
    others = [
        _of(rows_of(changed, y)),
        _of(rows_of(x, relabelled)),
        _of(rows, share=0.5),
        _of(rows, counts_share=0.03),
        _of(rows, declared=(30, 40, 20)),
        MomentsMechanism(rows, share=0.4, counts_share=0.02, n=N + 1),
    ]
    for other in others:
        with pytest.raises(PrivacyError, match="other records, settings or software"):
            other.noisy_moments(good, KEY)


@pytest.mark.parametrize(
    ("share", "counts_share"), [(0.0, 0.1), (1.0, 0.1), (0.5, 0.5), (0.5, 0.0), (-0.1, 0.1), (math.nan, 0.1)]
)
def test_shares_that_leave_nothing_are_refused(share: float, counts_share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        _of(rows_of(*data()), share=share, counts_share=counts_share)
