"""The only door: nothing comes out that was not charged, on disk, and each noisy sum comes out once."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dpvision
from dpvision.core.account import Charge
from dpvision.core.events import Gaussian, PoissonGaussian, Tuned
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.rows import BoundedSum
from dpvision.core.sampling import EveryRecord, Poisson, PoissonSampler
from dpvision.errors import LedgerMismatch, PrivacyError
from tests.charges import charged

KEY = Key.for_tests("x")
ZEROS = BoundedSum(np.zeros(50), 1.0)


def test_sums_come_out_as_often_as_was_charged_each_with_its_own_noise() -> None:
    gate = Gate(charged(Gaussian(2.0, 3)), KEY, EveryRecord(3), name="b")
    sums = [gate.next(ZEROS) for _ in range(3)]
    assert len({s.tobytes() for s in sums}) == 3
    with pytest.raises(PrivacyError, match="all 3 releases"):
        gate.next(ZEROS)


@pytest.mark.parametrize(
    ("event", "sampler"),
    [
        (Gaussian(2.0, 3), EveryRecord(4)),
        (Gaussian(2.0, 3), PoissonSampler(3, 3, 3)),
        (PoissonGaussian(0.1, 2.0, 3), EveryRecord(3)),
        (PoissonGaussian(0.1, 2.0, 3), PoissonSampler(2, 10, 3)),
        (PoissonGaussian(0.1, 2.0, 3), PoissonSampler(1, 10, 4)),
        (PoissonGaussian(0.1, 2.0, 30), Poisson(2.0, 10, 30)),
        (Tuned((Gaussian(2.0, 3),), 1.0, 0.5, 1.0, 1e-6), EveryRecord(3)),
    ],
)
def test_another_sampler_than_the_charged_one_is_refused(event: Gaussian, sampler: EveryRecord) -> None:
    with pytest.raises(PrivacyError, match="was charged for"):
        Gate(charged(event), KEY, sampler, name="b")


def test_a_charge_that_is_not_on_the_disk_is_refused() -> None:
    """Whatever an object claims: the ledger is read again."""
    made = Charge("b", "r", Gaussian(2.0, 3), "now", private=False)
    with pytest.raises(PrivacyError, match="not in a ledger on disk"):
        Gate(made, KEY, EveryRecord(3), name="b")
    real = charged(Gaussian(2.0, 3))
    for forged in (replace(real, id="c"), replace(real, run="s"), replace(made, ledger=real.ledger)):
        with pytest.raises(PrivacyError, match="not in a ledger on disk"):
            Gate(forged, KEY, EveryRecord(3), name=forged.id)
    with pytest.raises(PrivacyError, match="not in a ledger on disk"):
        Gate(replace(real, event=Gaussian(9.0, 3)), KEY, EveryRecord(3), name="b")
    Gate(real, KEY, EveryRecord(3), name="b")


def test_a_ledger_that_was_removed_meanwhile_lets_nothing_out() -> None:
    real = charged(Gaussian(2.0, 3))
    assert real.ledger is not None
    real.ledger.path.unlink()
    with pytest.raises(LedgerMismatch):
        Gate(real, KEY, EveryRecord(3), name="b")


def test_the_key_must_be_as_secret_as_the_charge_states() -> None:
    with pytest.raises(PrivacyError, match="the key is a fixed one"):
        Gate(charged(Gaussian(2.0, 3), private=True), KEY, EveryRecord(3), name="b")
    Gate(
        charged(Gaussian(2.0, 3)), Key.fresh(), EveryRecord(3), name="b"
    )  # what began with a fixed key stays marked so


def test_other_records_than_those_charged_for_are_refused() -> None:
    with pytest.raises(PrivacyError, match="other records, settings or software"):
        Gate(charged(Gaussian(2.0, 3)), KEY, EveryRecord(3), name="another")


def test_a_sum_that_is_refused_is_not_done_again_with_the_same_noise() -> None:
    gate = Gate(charged(Gaussian(2.0, 2)), KEY, EveryRecord(2), name="b")
    with pytest.raises(PrivacyError, match="not finite"):
        gate.next(BoundedSum(np.full(3, np.nan), 1.0))
    assert gate.left == 1


def test_rows_of_one_array_are_releases_each() -> None:
    gate = Gate(charged(PoissonGaussian(0.1, 2.0, 30)), KEY, Poisson(1.0, 10, 30), name="b")
    gate.noisy(BoundedSum(np.zeros((10, 4)), 1.0), 0, releases=range(10))
    for again in (range(9, 12), range(28, 31)):
        with pytest.raises(PrivacyError, match="done or was not charged"):
            gate.noisy(BoundedSum(np.zeros((3, 4)), 1.0), 1, releases=again)
    assert gate.left == 20


def test_no_noise_is_used_twice() -> None:
    """Whatever releases are claimed for it."""
    gate = Gate(charged(Gaussian(2.0, 8)), KEY, EveryRecord(8), name="b")
    gate.noisy(ZEROS, 0, releases=range(1, 2))
    with pytest.raises(PrivacyError, match="was used already"):
        gate.noisy(ZEROS, 0, releases=range(2, 3))


def test_nothing_but_a_trial_is_paid_by_another_charge() -> None:
    real = charged(Gaussian(50.0, 1))
    forged = replace(real, id="anything", event=Gaussian(0.1, 1000), paid_by=real)
    with pytest.raises(PrivacyError, match="not in a ledger on disk"):
        Gate(forged, KEY, EveryRecord(1000), name="anything")


def test_of_threads_that_want_the_same_sum_one_gets_it() -> None:
    gate = Gate(charged(Gaussian(2.0, 8)), KEY, EveryRecord(8), name="b")

    def ask(number: int) -> bool:
        try:
            gate.noisy(ZEROS, number)
            return True
        except PrivacyError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, [*range(8)] * 8)) == 8


def test_noise_is_drawn_by_the_gate_alone() -> None:
    gate = Gate(charged(Gaussian(2.0, 8)), KEY, EveryRecord(8), name="b")
    with pytest.raises(PrivacyError, match="only the gate may draw noise"):
        gate.stream("noise", 0)


def test_a_trial_is_paid_by_its_tuning_alone() -> None:
    trial = PoissonGaussian(0.1, 2.0, 3)
    tuning = charged(Tuned((trial, Gaussian(5.0)), 1.0, 0.5, 1.0, 1e-6))
    gate = Gate(tuning.trial(trial, id="first"), KEY, PoissonSampler(1, 10, 3), name="first")
    assert gate.left == 3
    with pytest.raises(LedgerMismatch, match="not charged for a tuning run with such a trial"):
        tuning.trial(PoissonGaussian(0.1, 1.9, 3), id="other")
    with pytest.raises(LedgerMismatch, match="not charged for a tuning run with such a trial"):
        charged(trial).trial(trial, id="other")
    with pytest.raises(LedgerMismatch, match="not charged for a tuning run with such a trial"):
        replace(tuning, ledger=None).trial(trial, id="other")


def test_nothing_else_in_the_package_adds_noise() -> None:
    """By its source: `noise.add_noise` is called in core/gate.py, and nowhere else; audits replace it."""
    package = Path(dpvision.__file__).parent
    callers = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "dpvision.core.noise":
                assert "release" not in {alias.name for alias in node.names}, path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "noise.add_noise":
                callers.add(path.relative_to(package).as_posix())
    assert callers == {"core/gate.py"}
