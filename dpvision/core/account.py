"""The account in a ledger: a privacy budget, the charges against it, their total, and what remains.

A *charge* is an event that is about to happen. Charges form *groups*: all events of a group were in the ledger before
the first of them had a result, so they compose by their privacy loss distributions. A later group was chosen after
seeing results; it counts as the Gaussian and the leak that dominate it (core/adaptive.py), which its line states. All
events that are *planned* when the next run is charged join its group, and can then be run at no further cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpvision.core import accountant, adaptive, events
from dpvision.core.events import Adaptive, Budget, Composed, Event, Later, Tuned, exposures, fixed_delta, from_json
from dpvision.errors import BudgetSpent, LedgerMismatch, PrivacyError

if TYPE_CHECKING:
    from dpvision.core.ledger import Ledger

Planned = tuple[int, Event]  # the number of a line of the ledger, and the event planned there


@dataclass(frozen=True)
class Charge:
    """One event in the ledger. `id` names the branch of a run that it pays for, once, even if the run is resumed."""

    id: str
    run: str
    event: Event
    time: str
    private: bool = True  # False if its noise came from a fixed key, which hides nothing
    new_account: str | None = None  # the reason why it is not on other accounts that share images
    ledger: Ledger | None = field(default=None, compare=False, repr=False)  # where it was read
    paid_by: Charge | None = field(default=None, compare=False, repr=False)  # the charge of the tuning, for a trial

    def on_disk(self) -> bool:
        """Whether its ledger, read again now, has this charge, or for a trial the charge of its tuning."""
        charge = self.paid_by or self
        if self.paid_by and not (isinstance(charge.event, Tuned) and self.event in charge.event.trials):
            return False
        return charge.ledger is not None and charge in charge.ledger.account().charges

    def trial(self, event: Event, *, id: str) -> Charge:
        """Return one of the trials that this charge of a tuning run pays for, as a charge with its own noise."""
        if not isinstance(self.event, Tuned) or event not in self.event.trials or not self.on_disk():
            raise LedgerMismatch("the ledger was not charged for a tuning run with such a trial.")
        return replace(self, id=id, event=event, paid_by=self)


@dataclass(frozen=True)
class Group:
    """Events that were all in the ledger before the first of them had a result: the one charged and planned ones."""

    events: tuple[Event, ...]
    later: Later | None = None  # what dominates them, if they were chosen after seeing results
    planned: tuple[Planned, ...] = ()  # planned events that no run has used yet

    @property
    def event(self) -> Event:
        return self.events[0] if len(self.events) == 1 else Composed(self.events)


@dataclass(frozen=True)
class Account:
    """Everything that a ledger states, after its chain was verified."""

    id: str  # random: reveals nothing about the data
    budget: Budget
    unit: str  # "image" or "person": what every epsilon on this account protects
    charges: tuple[Charge, ...]
    budgets: tuple[tuple[str, Budget], ...] = ()  # the first one and every change, with their times
    groups: tuple[Group, ...] = ()  # in the order in which they were charged
    plan: tuple[Planned, ...] = ()  # planned events, none of which has been run
    grouped: tuple[int, ...] = field(default=(), repr=False)  # for each charge, how many groups there were after it

    @property
    def total(self) -> Event:
        """The composition of everything charged so far."""
        return self._of(self.groups)

    def total_after(self, charges: int) -> Event:
        """Return the composition of the first `charges` charges."""
        return self._of(self.groups[: self.grouped[charges - 1]] if charges else ())

    @property
    def total_planned(self) -> Event:
        """The composition of everything charged or planned."""
        return self._of((*self.groups, self._group(tuple(e for _, e in self.plan)))) if self.plan else self.total

    @property
    def largest_budget(self) -> Budget:
        """The largest budget ever granted: lowering it after seeing results bounds nothing that was decided before."""
        budgets = [budget for _, budget in self.budgets] or [self.budget]
        return Budget(max(b.epsilon for b in budgets), max(b.delta for b in budgets))

    def spent(self) -> float:
        """Return epsilon of everything charged so far, at the budget's delta: how much of the budget is used."""
        return accountant.epsilon(self.total, self.budget.delta)

    def line_of_plan(self, event: Event) -> int | None:
        """Return the line in which this event was planned, if any; lines that are already paid for come first."""
        paid = (planned for group in self.groups for planned in group.planned)
        return next((line for line, planned in (*paid, *self.plan) if planned == event), None)

    def with_charge(self, charge: Charge, line: int | None, later: tuple[float, float] | None = None) -> Account:
        """Return the account after one more charge; `line` is where its event was planned, if anywhere.

        `later` is the sigma and the leak of what dominates the event's group, if the ledger already states them.
        """
        planned, groups, plan = (line, charge.event), self.groups, self.plan
        if line is None or planned in plan:  # a new group of this event and everything planned
            together = tuple(event for _, event in plan) + ((charge.event,) if line is None else ())
            groups, plan = (*groups, self._group(together, tuple(x for x in plan if x != planned), later)), ()
        else:  # an event of a plan that was charged before
            if sum(planned in group.planned for group in groups) != 1:
                raise ValueError(f"it is charged as line {line} of a plan, where no such event remains")
            groups = tuple(replace(g, planned=tuple(x for x in g.planned if x != planned)) for g in groups)
        charges, grouped = (*self.charges, charge), (*self.grouped, len(groups))
        return replace(self, charges=charges, groups=groups, grouped=grouped, plan=plan)

    def with_event(self, event: Event) -> Account:
        """Return the account as if this event were charged next."""
        return self.with_charge(Charge("", "", event, ""), self.line_of_plan(event))

    def _group(
        self, together: tuple[Event, ...], planned: tuple[Planned, ...] = (), later: tuple[float, float] | None = None
    ) -> Group:
        group = Group(together, planned=planned)
        if later is not None:
            return replace(group, later=Later(group.event, *later))
        if number := sum(any(exposures(other.event)) for other in self.groups):  # chosen after seeing results
            group = replace(group, later=adaptive.dominate_later(group.event, delta=self.budget.delta, number=number))
        return group

    def _of(self, groups: tuple[Group, ...]) -> Event:
        real = [group for group in groups if any(exposures(group.event))]
        if not real:
            return Composed(())
        chosen = [group.later for group in real[1:] if group.later is not None]
        return adaptive.join(real[0].event, chosen, delta=self.budget.delta)

    def require_unit(self, unit: str) -> None:
        """Require the account's unit, which its first run set: epsilons for images and for persons do not compose."""
        if self.unit != unit:
            raise PrivacyError(
                f"the account of this data set protects {self.unit}s, as set by its first run; this run would protect "
                f"{unit}s. The privacy losses of one {self.unit} and of one {unit} do not add up to one figure. "
                f"Nothing was charged. Fix: use --unit {self.unit}."
            )

    def require_within_budget(self, after: Event, event: Event) -> None:
        """Refuse `event` if `after`, the total of everything charged and planned with it, exceeds the budget."""
        budget, before = self.budget, self.total
        if after == before:
            return
        spent, epsilon = self.spent(), accountant.epsilon(after, budget.delta)
        reserve = adaptive.reserve(budget.delta)
        if isinstance(after, Adaptive) and after.later[-1].sigma <= events.MIN_SIGMA:
            epsilon = math.inf  # no Gaussian within the accountant's bounds dominates it
        fix = "use a smaller --delta for this run (a tuning run uses up half of it); a training run (uses up none); or "
        larger = f"{max(budget.epsilon, math.ceil(100 * epsilon) / 100):g}" if math.isfinite(epsilon) else "EPSILON"
        owner = f"if the owner of the data agrees, `dpvision ledger DATA --set-budget {larger}"
        if isinstance(after, Adaptive) and after.reserve > reserve:
            why = f". All runs chosen after a first result may use up {reserve / 2:g} of delta, which this run exceeds"
            fix += "plan it before the first run"
        elif uses_up_delta(after, budget.delta):
            why = (
                f". Earlier charges use up {fixed_delta(before):g} of delta and this one {fixed_delta(event):g}: "
                "nothing of it would remain, so no epsilon could be proven"
            )
            fix += f"{owner} --delta DELTA` with a larger delta"
        elif epsilon > budget.epsilon:
            left = math.floor(100 * (budget.epsilon - spent) + 1e-9) / 100 if math.isfinite(spent) else 0.0
            why = f", of which {rounded_up(spent)} is spent; this would make it {rounded_up(epsilon)}"
            fix = f"use a smaller --epsilon (about {left:.2f} is left), or {owner}`" if left > 0 else f"{owner}`"
        else:
            return
        stated = f"the data set's privacy budget is epsilon {budget.epsilon:g} at delta {budget.delta:g}"
        raise BudgetSpent(f"{stated}{why}. Nothing was charged. Fix: {fix}.")


def read_line(account: Account, line: dict[str, Any]) -> Account:
    """Return the account after one more line of its ledger."""
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
    """Whether epsilon is infinite for lack of delta, not of noise. (Deltas compose to slightly below their sum.)"""
    return math.isinf(accountant.epsilon(total, delta)) and fixed_delta(total) > 0.999 * delta


def rounded_up(epsilon: float) -> str:
    """Format an epsilon for messages, rounded up to 4 decimals."""
    return f"{math.ceil(epsilon * 1e4 - 1e-9) / 1e4:.4f}" if math.isfinite(epsilon) else "infinite"
