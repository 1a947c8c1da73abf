"""What a ledger states: a budget, the charges against it, what they add up to, and what still fits.

A *charge* is an event that is about to happen. Charges form *groups*: the events of a group were all in the ledger
before the first of them had a result, so they compose by their privacy loss distributions. A later group was chosen
after seeing results; it counts as the Gaussian and the leak that dominate it (core/adaptive.py), which its line states.
All that is *planned* when the next run is charged forms one group with it, and may then be run at no further cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpvision.core import accountant, adaptive, events
from dpvision.core.events import Adaptive, Budget, Composed, Event, Later, Tuned, exposures, from_json, given_up
from dpvision.errors import BudgetSpent, LedgerMismatch, PrivacyError

if TYPE_CHECKING:
    from dpvision.core.ledger import Ledger

Planned = tuple[int, Event]  # a planned event, with the number of its line in the ledger


@dataclass(frozen=True)
class Charge:
    """One event in the ledger. `id` names the branch of a run it pays for: paid once, however often it is resumed."""

    id: str
    run: str
    event: Event
    time: str
    private: bool = True  # False: its noise came from a fixed key, so it hides nothing
    new_account: str | None = None  # why it is not on the accounts that have some of the same images
    ledger: Ledger | None = field(default=None, compare=False, repr=False)  # that it was read from
    paid_by: Charge | None = field(default=None, compare=False, repr=False)  # of a trial: the charge of its tuning

    def on_disk(self) -> bool:
        """Whether its ledger, read now, has this very charge; of a trial, that of its tuning."""
        charge = self.paid_by or self
        if self.paid_by and not (isinstance(charge.event, Tuned) and self.event in charge.event.trials):
            return False
        return charge.ledger is not None and charge in charge.ledger.account().charges

    def trial(self, event: Event, *, id: str) -> Charge:
        """One of the trials that this charge of a tuning pays for, as a charge of its own noise."""
        if not isinstance(self.event, Tuned) or event not in self.event.trials or not self.on_disk():
            raise LedgerMismatch("the ledger was not charged for a tuning with such a trial.")
        return replace(self, id=id, event=event, paid_by=self)


@dataclass(frozen=True)
class Group:
    """Events that were all in the ledger before the first of them had a result: planned ones, and the one charged."""

    events: tuple[Event, ...]
    later: Later | None = None  # what dominates them, where they were chosen after seeing results
    planned: tuple[Planned, ...] = ()  # those of a plan that no run has taken yet

    @property
    def event(self) -> Event:
        return self.events[0] if len(self.events) == 1 else Composed(self.events)


@dataclass(frozen=True)
class Account:
    """All that a ledger states, after its chain was checked."""

    id: str  # random: reveals nothing about the data
    budget: Budget
    unit: str  # "image" or "person": whom every epsilon on this account is about
    charges: tuple[Charge, ...]
    budgets: tuple[tuple[str, Budget], ...] = ()  # the first one and every change, with their times
    groups: tuple[Group, ...] = ()  # in the order in which they were charged
    plan: tuple[Planned, ...] = ()  # events that are planned, of which none was run yet
    grouped: tuple[int, ...] = field(default=(), repr=False)  # for each charge, the number of groups after it

    @property
    def total(self) -> Event:
        """The event of everything that was charged."""
        return self._of(self.groups)

    def total_after(self, charges: int) -> Event:
        """The event of the first `charges` charges."""
        return self._of(self.groups[: self.grouped[charges - 1]] if charges else ())

    @property
    def total_planned(self) -> Event:
        """The event of everything that was charged, and of what is planned."""
        return self._of((*self.groups, self._group(tuple(e for _, e in self.plan)))) if self.plan else self.total

    @property
    def largest_budget(self) -> Budget:
        """The most that was ever granted: one that is lowered after seeing results bounds nothing that they led to."""
        budgets = [budget for _, budget in self.budgets] or [self.budget]
        return Budget(max(b.epsilon for b in budgets), max(b.delta for b in budgets))

    def spent(self) -> float:
        """Epsilon of everything charged so far, at the budget's delta: a meter of what is used of the budget."""
        return accountant.epsilon(self.total, self.budget.delta)

    def line_of_plan(self, event: Event) -> int | None:
        """The line in which this event was planned: one that is paid already, else one that is not charged yet."""
        paid = (planned for group in self.groups for planned in group.planned)
        return next((line for line, planned in (*paid, *self.plan) if planned == event), None)

    def with_charge(self, charge: Charge, line: int | None, later: tuple[float, float] | None = None) -> Account:
        """The account after one more charge, of an event that was planned in this line or in none.

        `later` is the sigma and the leak of what dominates the event's group, where the ledger states them already.
        """
        planned, groups, plan = (line, charge.event), self.groups, self.plan
        if line is None or planned in plan:  # a new group, of this event and all that is planned
            together = tuple(event for _, event in plan) + ((charge.event,) if line is None else ())
            groups, plan = (*groups, self._group(together, tuple(x for x in plan if x != planned), later)), ()
        else:  # an event of a plan that was charged before
            if sum(planned in group.planned for group in groups) != 1:
                raise ValueError(f"it is charged as line {line} of a plan, which has no such event left")
            groups = tuple(replace(g, planned=tuple(x for x in g.planned if x != planned)) for g in groups)
        charges, grouped = (*self.charges, charge), (*self.grouped, len(groups))
        return replace(self, charges=charges, groups=groups, grouped=grouped, plan=plan)

    def with_event(self, event: Event) -> Account:
        """The account if this event were charged next."""
        return self.with_charge(Charge("", "", event, ""), self.line_of_plan(event))

    def _group(
        self, together: tuple[Event, ...], planned: tuple[Planned, ...] = (), later: tuple[float, float] | None = None
    ) -> Group:
        group = Group(together, planned=planned)
        if later is not None:
            return replace(group, later=Later(group.event, *later))
        number = sum(any(exposures(other.event)) for other in self.groups)  # among those chosen after seeing results
        if number:
            group = replace(group, later=adaptive.dominate_later(group.event, delta=self.budget.delta, number=number))
        return group

    def _of(self, groups: tuple[Group, ...]) -> Event:
        real = [group for group in groups if any(exposures(group.event))]
        if not real:
            return Composed(())
        chosen = [group.later for group in real[1:] if group.later is not None]
        return adaptive.join(real[0].event, chosen, delta=self.budget.delta)

    def require_unit(self, unit: str) -> None:
        """Epsilons for images and for persons do not compose: an account counts one of them, set by its first run."""
        if self.unit != unit:
            raise PrivacyError(
                f"the account of this data set counts {self.unit}s since its first run, and this run would count "
                f"{unit}s: what is revealed about one {self.unit} and about one {unit} does not add up to one figure. "
                f"Nothing was charged. Fix: --unit {self.unit}."
            )

    def require_within_budget(self, after: Event, event: Event) -> None:
        """Refuse `event` where `after`, the total with it of what was charged and is planned, exceeds the budget."""
        budget, before = self.budget, self.total
        if after == before:
            return
        spent, epsilon = self.spent(), accountant.epsilon(after, budget.delta)
        reserve = adaptive.reserve(budget.delta)
        if isinstance(after, Adaptive) and after.later[-1].sigma <= events.MIN_SIGMA:
            epsilon = math.inf  # no Gaussian that is counted here dominates it
        fix = (
            "for this run a smaller --delta, of which a tuning gives up half; a training run, which gives up none; or "
        )
        owner = "if the owner of the data agrees, `dpvision ledger DATA --set-budget EPSILON"
        if isinstance(after, Adaptive) and after.reserve > reserve:
            allowed = f"runs that are chosen after a first result may give up {reserve / 2:g} for good in all"
            why = f". Of delta, {allowed}, and with this run it would be more"
            fix += "plan it before the first run"
        elif uses_up_delta(after, budget.delta):
            why = (
                f". What was charged gives up {given_up(before):g} of delta for good and this {given_up(event):g}: "
                "together they use it up, and no epsilon would be proved at all"
            )
            fix += f"{owner} --delta DELTA` with a larger delta"
        elif epsilon > budget.epsilon:
            left = math.floor(100 * (budget.epsilon - spent) + 1e-9) / 100 if math.isfinite(spent) else 0.0
            why = f", {rounded_up(spent)} of it is spent, and this would make it {rounded_up(epsilon)}"
            fix = f"a smaller --epsilon (about {left:.2f} is left), or {owner}`" if left > 0 else f"{owner}`"
        else:
            return
        stated = f"the data set's budget is epsilon {budget.epsilon:g} at delta {budget.delta:g}"
        raise BudgetSpent(f"{stated}{why}. Nothing was charged. Fix: {fix}.")


def read_line(account: Account, line: dict[str, Any]) -> Account:
    """The account after one more line of its ledger."""
    match line["kind"]:
        case "open" | "budget":
            budget = Budget(line["epsilon"], line["delta"])
            return replace(account, budget=budget, budgets=(*account.budgets, (line["time"], budget)))
        case "plan":
            return replace(account, plan=(*account.plan, (line["n"], from_json(line["event"]))))
        case "unplan":
            return replace(account, plan=())
        case "charge":
            event, reason = from_json(line["event"]), line.get("new_account")
            charge = Charge(line["id"], line["run"], event, line["time"], line["private"], reason)
            later = (line["sigma"], line["leak"]) if "sigma" in line else None
            return account.with_charge(charge, line.get("plan"), later)
        case _:
            return account


def uses_up_delta(total: Event, delta: float) -> bool:
    """Whether epsilon is infinite for want of delta, not of noise. (Deltas compose to a hair below their sum.)"""
    return math.isinf(accountant.epsilon(total, delta)) and given_up(total) > 0.999 * delta


def rounded_up(epsilon: float) -> str:
    """An upper bound to 4 decimals, for messages."""
    return f"{math.ceil(epsilon * 1e4 - 1e-9) / 1e4:.4f}" if math.isfinite(epsilon) else "infinite"
