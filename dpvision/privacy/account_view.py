"""The account of a data set as rows to read and as JSON: each charge with what is spent up to and including it."""

from __future__ import annotations

from typing import Any

from dpvision.privacy import accountant
from dpvision.privacy.events import Composed, describe
from dpvision.privacy.events import to_json as event_json
from dpvision.privacy.ledger import Account


def running_total(account: Account) -> list[float]:
    """Epsilon of the first charge, of the first two, and so on, at the budget's delta."""
    events = account.total.events
    return [accountant.epsilon(Composed(events[: i + 1]), account.budget.delta) for i in range(len(events))]


def show(account: Account) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and a closing sentence."""
    totals = running_total(account)
    rows = [[c.time, c.run, describe(c.event), f"{t:.4f}"] for c, t in zip(account.charges, totals, strict=True)]
    spent, budget = totals[-1] if totals else 0.0, account.budget
    closing = (
        f"account {account.id}: epsilon {spent:.4f} of {budget.epsilon:g} spent at delta {budget.delta:g}, over "
        f"{len(rows)} charge{'' if len(rows) == 1 else 's'}"
    )
    return ["time", "run", "what was done to the data", "epsilon so far"], rows, closing


def to_json(account: Account) -> dict[str, Any]:
    totals = running_total(account)
    return {
        "account": account.id,
        "budget": {"epsilon": account.budget.epsilon, "delta": account.budget.delta},
        "spent": totals[-1] if totals else 0.0,
        "charges": [
            {"time": c.time, "run": c.run, "event": event_json(c.event), "epsilon_so_far": t}
            for c, t in zip(account.charges, totals, strict=True)
        ],
    }
