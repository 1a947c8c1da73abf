"""The ledger charges before, refuses what exceeds, survives crashes, and finds every edit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from pathlib import Path

import pytest

from dpvision.core import accountant, adaptive, files
from dpvision.core.events import Adaptive, Budget, Composed, Gaussian, PoissonGaussian, Tuned
from dpvision.core.ledger import Ledger
from dpvision.errors import BudgetSpent, ConfigError, LedgerMismatch, PrivacyError

DATA = "ab" * 32
STEP = PoissonGaussian(0.1, 4.0, 50)
BUDGET = Budget(3.0, 1e-5)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger(tmp_path / "ledgers", DATA)
    book.open(BUDGET)
    return book


def _filled(ledger: Ledger, count: int = 4) -> Ledger:
    for i in range(count):
        ledger.spend(Gaussian(30.0), id=f"charge-{i}", run=f"run-{i}")
    return ledger


def test_runs_on_the_same_data_compose(ledger: Ledger) -> None:
    ledger.spend(STEP, id="a", run="first")
    account = ledger.spend(STEP, id="b", run="second")
    planned = accountant.epsilon(Composed((STEP, STEP)), BUDGET.delta)
    assert accountant.epsilon(STEP, BUDGET.delta) < planned < account.spent() < 1.02 * planned
    assert account.spent() == accountant.epsilon(adaptive.compose((STEP, STEP), BUDGET.delta), BUDGET.delta)
    assert isinstance(account.total, Adaptive)
    assert Ledger(ledger.path.parent, DATA).account() == account


def test_a_plan_is_paid_once_and_taken_once(ledger: Ledger) -> None:
    """Planned twice, an event is charged with the first run, free for the second, and charged again for the third."""
    ledger.plan(STEP, run="r")
    ledger.plan(STEP, run="r")
    first, second, third = (ledger.spend(STEP, id=name, run="r") for name in "abc")
    assert first.spent() == second.spent() == accountant.epsilon(Composed((STEP, STEP)), BUDGET.delta)
    assert third.spent() > 1.2 * second.spent()
    assert [account.line_of_plan(STEP) is None for account in (first, second, third)] == [False, True, True]


def test_a_plan_of_one_run_does_not_pay_for_a_second(ledger: Ledger) -> None:
    ledger.plan(STEP, run="r")
    planned = ledger.spend(STEP, id="a", run="r")
    assert planned.line_of_plan(STEP) is None and planned.spent() == accountant.epsilon(STEP, BUDGET.delta)
    assert ledger.spend(STEP, id="b", run="r").spent() > 1.2 * planned.spent()


def test_what_exceeds_the_budget_is_refused_and_nothing_is_written(ledger: Ledger) -> None:
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetSpent, match=r"Nothing was charged.*is left"):
        ledger.spend(Gaussian(0.5), id="a", run="r")
    assert ledger.path.read_bytes() == before
    assert ledger.account().charges == ()


def test_the_same_charge_is_paid_once_but_never_for_another_event(ledger: Ledger) -> None:
    first = ledger.spend(STEP, id="a", run="r")
    assert ledger.spend(STEP, id="a", run="r") == first
    with pytest.raises(LedgerMismatch):
        ledger.spend(Gaussian(9.0), id="a", run="r")


def test_the_charge_is_on_the_disk_when_spend_returns(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is synced, then the folder, then the seal: in this order, before the call is over."""
    order: list[str] = []
    sync = os.fsync

    def recording(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        if order[0] == ledger.path.name:
            assert '"id": "a"' in ledger.path.read_text()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    ledger.spend(STEP, id="a", run="r")
    assert order[0] == ledger.path.name and order[1] == ledger.path.parent.name
    assert any("seal" in name for name in order[2:])


def test_a_full_disk_refuses_and_loses_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    _filled(ledger, 2)

    def full(*_args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(PrivacyError, match="nothing was released"):
            ledger.spend(STEP, id="x", run="r")
    assert len(ledger.account().charges) == 2


def test_budget_can_be_raised_but_not_below_what_is_spent(ledger: Ledger) -> None:
    spent = ledger.spend(STEP, id="a", run="r").spent()
    assert ledger.set_budget(Budget(8.0, 1e-5)).budget.epsilon == 8.0
    assert ledger.open(Budget(1.0, 1e-5)).budget.epsilon == 8.0, "opening again must not change the budget"
    with pytest.raises(BudgetSpent):
        ledger.set_budget(Budget(spent / 2, 1e-5))
    assert [b.epsilon for _, b in ledger.account().budgets] == [3.0, 8.0], "every change is kept and reported"


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of dp-accounting, without noise
def test_delta_can_be_used_up_too(ledger: Ledger) -> None:
    ledger.set_budget(Budget(20.0, 1e-5))
    tuned = Tuned((Gaussian(5.0),), 1.0, 0.3, 2.9, 4.9e-6)
    ledger.plan(tuned, run="r")
    ledger.plan(tuned, run="r")
    with pytest.raises(BudgetSpent, match=r"use up 0 of delta and this one 4.9e-06: .* smaller --delta"):
        ledger.plan(tuned, run="r")
    ledger.spend(tuned, id="a", run="r")
    ledger.spend(tuned, id="b", run="r")
    with pytest.raises(BudgetSpent, match=r"may use up 2.5e-07 of delta.*smaller --delta"):
        ledger.spend(tuned, id="c", run="r")
    with pytest.raises(BudgetSpent, match=r"use up a delta of 9.8e-06, .*Fix: use a larger --delta"):
        ledger.set_budget(Budget(20.0, 4e-6))
    with pytest.raises(BudgetSpent, match="smaller --epsilon"):  # for want of noise, not of delta
        Ledger(ledger.path.parent, "cd" * 32).require_room(PoissonGaussian(0.5, 0.05, 3), Budget(20.0, 1e-5))
    assert len(ledger.account().charges) == 2 and ledger.account().budget.delta == 1e-5


def test_early_refusal_agrees_with_spend(ledger: Ledger, tmp_path: Path) -> None:
    ledger.require_room(STEP, Budget(0.001, 1e-5))  # its own budget of 3 counts, not the one for a new ledger
    with pytest.raises(BudgetSpent):
        ledger.require_room(Gaussian(0.5), BUDGET)
    new = Ledger(tmp_path / "ledgers", "cd" * 32)
    with pytest.raises(BudgetSpent):
        new.require_room(STEP, Budget(0.001, 1e-5))
    assert not new.exists()


def test_every_single_byte_matters(ledger: Ledger) -> None:
    """Change any one byte anywhere in the ledger or its seal: found."""
    _filled(ledger)
    for path in (ledger.path, ledger._seal):
        whole = path.read_bytes()
        rng = random.Random(3)
        for at in sorted(rng.sample(range(len(whole)), min(len(whole), 150))):
            changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            path.write_bytes(changed)
            with pytest.raises(LedgerMismatch):
                ledger.account()
        path.write_bytes(whole)
    assert len(ledger.account().charges) == 4


def test_lines_can_not_be_removed_swapped_doubled_or_added(ledger: Ledger) -> None:
    _filled(ledger)
    whole = ledger.path.read_bytes().splitlines(keepends=True)
    bad = [whole[:i] + whole[i + 1 :] for i in range(len(whole))]
    bad += [[*whole[:-2], whole[-1], whole[-2]], [*whole, whole[-1]], whole[:1], []]
    forged = json.loads(whole[-1]) | {"n": len(whole), "previous": json.loads(whole[-1])["hash"]}
    bad += [[*whole, json.dumps(forged).encode() + b"\n"], [*whole, b"{}\n"], [*whole, b"[" * 100_000 + b"\n"]]
    for lines in bad:
        ledger.path.write_bytes(b"".join(lines))
        for call in (ledger.account, lambda: ledger.spend(STEP, id="new", run="r"), lambda: ledger.open(BUDGET)):
            with pytest.raises(LedgerMismatch):
                call()
    ledger.path.write_bytes(b"".join(whole))
    assert len(ledger.account().charges) == 4


def test_deleting_the_ledger_or_its_seal_is_found(ledger: Ledger) -> None:
    _filled(ledger)
    for path in (ledger.path, ledger._seal):
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(LedgerMismatch):
            ledger.open(BUDGET)
        path.write_bytes(whole)


def test_an_old_copy_can_not_be_put_back(ledger: Ledger) -> None:
    old = ledger.path.read_bytes()
    _filled(ledger)
    ledger.path.write_bytes(old)
    with pytest.raises(LedgerMismatch):
        ledger.account()


def test_a_ledger_of_other_data_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    _filled(ledger)
    other = Ledger(tmp_path / "ledgers", "cd" * 32)
    other.path.write_bytes(ledger.path.read_bytes())
    other._seal.write_bytes(ledger._seal.read_bytes())
    with pytest.raises(LedgerMismatch, match="other data"):
        other.account()


def test_a_crash_between_line_and_seal_is_mended(ledger: Ledger) -> None:
    """The line is durable before the seal moves: the charge stands."""
    _filled(ledger, 2)
    seal = ledger._seal.read_bytes()
    ledger.spend(STEP, id="late", run="r")
    files.write(ledger._seal, seal)
    assert [c.id for c in ledger.account().charges][-1] == "late"
    assert ledger._seal.read_bytes() != seal


def test_a_crash_in_the_middle_of_a_line_is_mended(ledger: Ledger) -> None:
    """Half a line was never followed by a release, so it is cut off."""
    _filled(ledger, 2)
    whole, seal = ledger.path.read_bytes(), ledger._seal.read_bytes()
    ledger.spend(STEP, id="late", run="r")
    line = ledger.path.read_bytes()[len(whole) :]
    for length in (1, len(line) // 2, len(line) - 1):
        ledger.path.write_bytes(whole + line[:length])
        files.write(ledger._seal, seal)
        assert len(ledger.account().charges) == 2
    ledger.spend(STEP, id="again", run="r")
    assert len(ledger.account().charges) == 3


def test_a_crash_while_opening_is_mended(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "ledgers", DATA)
    book.path.parent.mkdir()
    files.write(book._seal, "0 -\n")
    assert not book.exists()
    book.require_room(STEP, BUDGET)
    assert book.open(BUDGET).charges == ()
    assert book.exists()


def test_a_fingerprint_can_not_name_another_file(tmp_path: Path) -> None:
    for name in ("../../x", "", "AB" * 32, "a/b"):
        with pytest.raises(ConfigError):
            Ledger(tmp_path, name)


def _take(folder: str, name: str, start, results) -> None:
    start.wait()
    try:
        Ledger(Path(folder), DATA).spend(STEP, id=name, run=name)
        results.put("got it")
    except BudgetSpent:
        results.put("refused")


def test_two_runs_can_not_both_take_the_last_of_it(tmp_path: Path) -> None:
    last = accountant.epsilon(STEP, 1e-5) * 1.01  # room for one, not for two
    context = multiprocessing.get_context("spawn")
    for trial in range(2):
        folder = tmp_path / str(trial)
        Ledger(folder, DATA).open(Budget(last, 1e-5))
        start, results = context.Event(), context.Queue()
        runs = [context.Process(target=_take, args=(str(folder), f"r{i}", start, results)) for i in range(4)]
        for process in runs:
            process.start()
        start.set()
        answers = sorted(results.get(timeout=120) for _ in runs)
        for process in runs:
            process.join()
        assert answers == ["got it", "refused", "refused", "refused"]
        assert len(Ledger(folder, DATA).account().charges) == 1


def test_a_fixed_key_is_marked(ledger: Ledger) -> None:
    ledger.spend(STEP, id="a", run="r", private=False)
    assert [c.private for c in ledger.spend(STEP, id="b", run="r").charges] == [False, True]
