"""Runs that are chosen after seeing results: the ledger's bound holds for every way of choosing, and plans are tight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import adaptive as attacks
from dpvision.core import accountant, adaptive
from dpvision.core.events import (
    Adaptive,
    Budget,
    Capped,
    ClassScheduled,
    Composed,
    Event,
    Gaussian,
    Later,
    PoissonGaussian,
    Tuned,
    fixed_delta,
    from_json,
    parts,
    to_json,
)
from dpvision.core.ledger import Ledger
from dpvision.errors import BudgetSpent, ConfigError, LedgerMismatch
from dpvision.settings import quick
from dpvision.settings.figures import describe

DELTA = 1e-5
BUDGET = Budget(3.0, DELTA)
TRAINING = PoissonGaussian(0.05, 3.0, 300)
EVENTS: dict[str, Event] = {
    "training": TRAINING,
    "rare": PoissonGaussian(1e-3, 0.9, 2000),
    "one step": PoissonGaussian(0.1, 1.0, 1),
    "by class": ClassScheduled(4.0, (0.1, 0.3), (200, 20)),
    "tuned": Tuned((Gaussian(5.0),), 1.0, 0.3, 1.2, 1e-7),
    "several": Composed((TRAINING, Gaussian(6.0))),
}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger(tmp_path / "ledgers", "ab" * 32)
    book.open(BUDGET)
    return book


@pytest.mark.parametrize("event", EVENTS.values(), ids=list(EVENTS))
@pytest.mark.parametrize("number", [1, 7])
def test_a_later_event_is_dominated_everywhere_and_tightly(event: Event, number: int) -> None:
    later = adaptive.dominate_later(event, delta=DELTA, number=number)
    epsilons = np.linspace(0.0, 30.0, 3001)
    mine = accountant.profile(event, epsilons.tolist())
    theirs = later.leak + (1 - later.leak) * np.array([adaptive.gaussian_delta(1 / later.sigma, e) for e in epsilons])
    assert (mine <= theirs * (1 + 1e-9) + 1e-15).all()
    less = np.array([adaptive.gaussian_delta(0.98 / later.sigma, e) for e in epsilons])
    assert (mine > later.leak + (1 - later.leak) * less).any(), "a Gaussian with 2% more noise would not do"


def test_a_gaussian_is_itself() -> None:
    later = adaptive.dominate_later(Gaussian(4.0, 9), delta=DELTA, number=3)
    assert later.leak == 0.0 and later.sigma == pytest.approx(4 / 3, rel=1e-12) and later.sigma <= 4 / 3


@pytest.mark.parametrize("event", [Gaussian(5.0), PoissonGaussian(0.05, 4.0, 100)], ids=["gaussian", "training"])
def test_equal_later_events_count_one_by_one(event: Event) -> None:
    """Repeating the same settings is another query: epsilon grows at least as for that number of queries."""
    for count in (2, 3, 6):
        total = adaptive.compose((event,) * count, DELTA)
        assert accountant.epsilon(total, DELTA) >= quick.lower_bound(Composed((event,) * count), DELTA) * 0.999
        assert quick.epsilon(total, DELTA) >= 0.999 * accountant.epsilon(total, DELTA)


def test_leaks_never_exceed_what_is_reserved() -> None:
    for delta in (1e-2, 1e-5, 1e-8, 1e-10):
        leaks = [adaptive.dominate_later(TRAINING, delta=delta, number=i).leak for i in (1, 2, 3, 50)]
        assert all(
            leak == adaptive.reserve(delta) / (2 * i * (i + 1)) for leak, i in zip(leaks, (1, 2, 3, 50), strict=True)
        )
        assert adaptive.reserve(delta) <= delta / 2
    with pytest.raises(ConfigError, match="reserved"):
        Adaptive(TRAINING, (Later(TRAINING, 3.0, 1e-6),), 5e-7)


def test_both_accountants_agree_and_the_leak_is_in_delta() -> None:
    both = adaptive.compose((TRAINING, EVENTS["rare"]), DELTA)
    assert isinstance(both, Adaptive) and parts(both) == (TRAINING, EVENTS["rare"])
    assert quick.epsilon(both, DELTA) == pytest.approx(accountant.epsilon(both, DELTA), rel=2e-3)
    assert fixed_delta(both) == adaptive.reserve(DELTA)
    assert accountant.delta(both, 50.0) >= adaptive.reserve(DELTA)
    assert from_json(to_json(both)) == both and "chosen later" in describe(both)


def test_one_event_alone_and_events_of_nothing_cost_what_they_cost() -> None:
    nothing = PoissonGaussian(0.1, 2.0, 0)
    assert adaptive.compose((nothing, TRAINING, nothing), DELTA) == Composed((TRAINING,))
    assert adaptive.compose((nothing,), DELTA) == Composed(())


def test_what_was_chosen_in_turn_stays_in_turn() -> None:
    """A third run starts from the weights of two runs: these are three events, not a first one and a later one."""
    one, two, three = TRAINING, EVENTS["rare"], EVENTS["by class"]
    start = adaptive.compose((one, two), DELTA)
    assert adaptive.compose((start, three), DELTA) == adaptive.compose((one, two, three), DELTA)
    planned = Composed((one, two))
    assert len(adaptive.compose((planned, three), DELTA).later) == 1  # type: ignore[union-attr]


def test_choosing_later_costs_a_little_and_never_less_than_planning() -> None:
    for name, event in EVENTS.items():
        planned = accountant.epsilon(Composed((TRAINING, event)), DELTA)
        chosen = accountant.epsilon(adaptive.compose((TRAINING, event), DELTA), DELTA)
        most = {"one step": 1.3, "tuned": 4.0}.get(name, 1.1)  # one step, and a point, are far from a Gaussian
        assert planned < chosen < most * planned, name


@pytest.mark.parametrize("added", [False, True])
def test_the_best_second_run_stays_within_delta(added: bool) -> None:
    """The exact delta of the best choice among what the ledger accepts; composed distributions alone reach 2 deltas."""
    rates = (1.0, 0.1, 1e-2)
    true = attacks.attack(2.0, 3.0, added=added, runs=2, rates=rates, shares=(), sound=True)
    assert 0.3 * DELTA < true <= DELTA
    naive = attacks.attack(2.0, 3.0, added=False, runs=2, rates=rates, shares=(), sound=False)
    assert naive > 1.5 * DELTA


def test_what_the_attack_takes_for_accepted_the_ledger_accepts(ledger: Ledger) -> None:
    """The attack uses the runs that the ledger accepts, and no weaker ones."""
    ledger.spend(Gaussian(2.0), id="a", run="first")
    left = attacks.gaussian_left(Gaussian(2.0), 3.0)
    for rate in (1.0, 0.1):
        sigma = attacks.accepted_noise(rate, left, 1)
        ledger.require_room(PoissonGaussian(rate, sigma * 1.001, 1), BUDGET)
        with pytest.raises(BudgetSpent):
            ledger.require_room(PoissonGaussian(rate, sigma * 0.99, 1), BUDGET)


def test_the_exact_divergence_is_right() -> None:
    for step in (attacks.Step(1.0, 2.0, False), attacks.Step(0.1, 0.8, False), attacks.Step(0.1, 0.8, True)):
        losses, weights = step.losses(200_001)
        for epsilon in (-1.0, 0.0, 0.05, 1.0):
            by_hand = float(weights @ np.maximum(0.0, -np.expm1(epsilon - losses)))
            assert float(step.delta(np.array([epsilon]))[0]) == pytest.approx(by_hand, rel=1e-3, abs=1e-9)


def test_planned_runs_compose_tightly_in_any_order(ledger: Ledger) -> None:
    one, two = TRAINING, PoissonGaussian(0.05, 4.0, 300)
    ledger.plan(one, run="p")
    assert ledger.account().spent() == 0.0
    ledger.plan(two, run="p")
    account = ledger.spend(two, id="a", run="first")
    both = accountant.epsilon(Composed((one, two)), DELTA)
    assert account.spent() == pytest.approx(both, abs=1e-12) and not isinstance(account.total, Adaptive)
    account = ledger.spend(one, id="b", run="second")
    assert account.spent() == pytest.approx(both, abs=1e-12) and not isinstance(account.total, Adaptive)
    account = ledger.spend(one, id="c", run="third")  # planned once, so this is another one
    assert account.spent() > both and isinstance(account.total, Adaptive)
    assert Ledger(ledger.path.parent, "ab" * 32).account() == account
    assert [account.total_after(i) == account.total_after(1) for i in (1, 2, 3)] == [True, True, False]


def test_a_run_that_is_not_planned_is_charged_with_the_plan(ledger: Ledger) -> None:
    ledger.plan(TRAINING, run="p")
    other = PoissonGaussian(0.02, 3.0, 100)
    account = ledger.spend(other, id="a", run="first")
    assert account.spent() == pytest.approx(accountant.epsilon(Composed((TRAINING, other)), DELTA), abs=1e-12)
    assert ledger.spend(TRAINING, id="b", run="second").spent() == account.spent()


def test_a_plan_can_be_dropped_before_it_is_charged_and_not_after(ledger: Ledger) -> None:
    ledger.plan(TRAINING, run="p")
    assert ledger.drop_plan().plan == ()
    ledger.plan(TRAINING, run="p")
    ledger.plan(Gaussian(9.0), run="p")
    spent = ledger.spend(TRAINING, id="a", run="first").spent()
    assert ledger.drop_plan().spent() == spent
    assert ledger.spend(Gaussian(9.0), id="b", run="second").spent() == spent


def test_a_plan_after_the_first_result_is_one_later_event(ledger: Ledger) -> None:
    ledger.spend(TRAINING, id="a", run="first")
    ledger.plan(Gaussian(9.0), run="p")
    ledger.plan(Gaussian(12.0), run="p")
    account = ledger.spend(Gaussian(12.0), id="b", run="second")
    assert isinstance(account.total, Adaptive) and len(account.groups) == 2
    assert ledger.spend(Gaussian(9.0), id="c", run="third").spent() == account.spent()


def test_a_plan_beyond_the_budget_is_refused(ledger: Ledger) -> None:
    ledger.plan(Gaussian(2.0), run="p")
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetSpent):
        ledger.plan(Gaussian(1.7), run="p")
    with pytest.raises(BudgetSpent):
        ledger.spend(Gaussian(1.7), id="a", run="r")
    assert ledger.path.read_bytes() == before


def test_charges_of_earlier_versions_are_read_as_chosen_later(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their lines have no Gaussian next to them: it is computed."""
    ledger.spend(TRAINING, id="a", run="first")
    append = Ledger._append

    def older(self: Ledger, lines, kind, content):  # type: ignore[no-untyped-def]
        return append(self, lines, kind, {k: v for k, v in content.items() if k not in ("sigma", "leak")})

    new = Ledger(ledger.path.parent, "cd" * 32)
    new.open(BUDGET)
    new.spend(TRAINING, id="a", run="first")
    expected = new.spend(TRAINING, id="b", run="second").total
    monkeypatch.setattr(Ledger, "_append", older)
    assert ledger.spend(TRAINING, id="b", run="second").total == expected


def test_a_forged_plan_is_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.spend(TRAINING, id="a", run="first")
    append = Ledger._append

    def forged(self: Ledger, lines, kind, content):  # type: ignore[no-untyped-def]
        return append(self, lines, kind, {**content, "plan": 1})

    monkeypatch.setattr(Ledger, "_append", forged)
    with pytest.raises(LedgerMismatch, match="no such event remains"):
        ledger.spend(Gaussian(8.0), id="b", run="second")


def test_a_smaller_delta_keeps_the_leaks_that_were_given(ledger: Ledger) -> None:
    ledger.spend(PoissonGaussian(0.05, 9.0, 100), id="a", run="first")
    ledger.spend(PoissonGaussian(0.05, 9.0, 100), id="b", run="second")
    account = ledger.set_budget(Budget(3.0, 1e-6))
    assert isinstance(account.total, Adaptive) and account.total.reserve >= account.total.later[0].leak
    with pytest.raises(BudgetSpent, match="which this run exceeds"):
        ledger.spend(PoissonGaussian(0.05, 9.0, 100), id="c", run="third")


def test_many_later_runs_still_pass(ledger: Ledger) -> None:
    for i in range(30):
        account = ledger.spend(PoissonGaussian(0.01, 8.0, 20), id=f"{i}", run=f"{i}")
    planned = accountant.epsilon(Composed((PoissonGaussian(0.01, 8.0, 600),)), DELTA)
    assert planned < account.spent() < BUDGET.epsilon


def test_charges_of_nothing_are_read_and_cost_nothing(ledger: Ledger) -> None:
    """Earlier versions wrote such lines when a run was ended early."""
    nothing = PoissonGaussian(0.1, 2.0, 0)
    ledger.spend(nothing, id="0", run="r")
    spent = ledger.spend(TRAINING, id="a", run="r").spent()
    account = ledger.spend(nothing, id="b", run="r")
    assert account.spent() == spent == accountant.epsilon(TRAINING, DELTA) and not isinstance(account.total, Adaptive)
    assert ledger.spend(TRAINING, id="c", run="r").total == adaptive.compose((TRAINING, TRAINING), DELTA)


def test_what_no_gaussian_dominates_is_refused(ledger: Ledger) -> None:
    ledger.set_budget(Budget(1e6, DELTA))
    ledger.spend(Gaussian(5.0), id="a", run="r")
    with pytest.raises(BudgetSpent):
        ledger.spend(Gaussian(2e-3, 10_000), id="b", run="r")


def test_a_cap_states_the_budget_and_keeps_what_was_done() -> None:
    inside = adaptive.compose((TRAINING, EVENTS["rare"]), DELTA)
    capped = Capped(inside, 8.0, DELTA)
    assert accountant.epsilon(capped, DELTA) == quick.epsilon(capped, DELTA) == 8.0
    assert accountant.epsilon(capped, 1e-6) == np.inf
    assert parts(capped) == parts(inside) and from_json(to_json(capped)) == capped
    profile = accountant.profile(capped, [0.0, 4.0, 8.0, 20.0])
    assert profile[0] == pytest.approx(np.tanh(4.0), rel=1e-4) and profile[2] == profile[3] == DELTA
    assert adaptive.compose((capped, TRAINING), DELTA) == adaptive.compose((*parts(inside), TRAINING), DELTA)
