"""The ledger's accounts on a card: the data set's own, with its charges, and others that share some of its images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpvision.core.account import Account
from dpvision.core.events import Tuned, to_json
from dpvision.errors import DataError
from dpvision.released.report.guarantee import composition, proven
from dpvision.storage.home import CHARGED_SHARE

READ_OFF = (
    "Which other accounts of the ledger have some of the same images, and about how many, was read off the data. "
    "Epsilon does not cover it."
)
APART = (
    "These images were counted apart from other accounts that have some of them. What is revealed about those images "
    "is bounded by all of these accounts together, not by this one."
)


def total(account: Account | None) -> dict[str, Any] | None:
    """Return the total of all runs on the data, as shown on a card; None if no ledger was read."""
    if account is None:
        return None
    return {
        "account": account.id,
        "epsilon_spent": proven(account.total, account.budget.delta),
        "epsilon_budget": account.budget.epsilon,
        "delta": account.budget.delta,
        "charges": len(account.charges),
        "composition": composition(account.total),
        "budget_changes": budget_changes(account),
    }


def budget_changes(account: Account) -> list[dict[str, Any]]:
    """Return the budgets that replaced the first one, each with its time."""
    return [{"time": t, "epsilon": b.epsilon, "delta": b.delta} for t, b in account.budgets[1:]]


def ledger_lines(account: Account) -> list[dict[str, Any]]:
    """Return one line per charge, for ledger.jsonl, which anyone may read.

    `epsilon` is cumulative up to this charge, at the budget's delta. It measures how much of the budget is used; the
    guarantee for all charges together is the budget itself. The data's fingerprint and the charge's id, which is
    derived from it, are left out. If a tuning run was charged, only dates are given: its duration would reveal the
    number of trials.
    """
    tuned = any(isinstance(charge.event, Tuned) for charge in account.charges)
    return [
        {
            "time": charge.time[:10] if tuned else charge.time,
            "run": charge.run,
            "event": to_json(charge.event),
            "private": charge.private,
            **({} if charge.new_account is None else {"new_account": charge.new_account}),
            "epsilon": proven(account.total_after(count), account.budget.delta),
        }
        for count, charge in enumerate(account.charges, 1)
    ]


def overlaps(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card lists about other accounts, as plain JSON values."""
    return {"overlapping_accounts": _overlaps(facts), "new_account": _reason(facts)}


def not_covered(facts: Mapping[str, Any], account: Account | None) -> list[str]:
    """Return what epsilon does not cover because of other charges and accounts, in sentences."""
    entries = _overlaps(facts)
    apart = any(not entry["charged"] for entry in entries)
    return [*_fixed_keys(facts["run"], account), *([READ_OFF] if entries else []), *([APART] if apart else [])]


def _fixed_keys(run: str, account: Account | None) -> list[str]:
    """List fixed-key runs on the same data: they invalidate the data set's total, not this run's guarantee."""
    others = sorted({c.run for c in account.charges if not c.private and c.run != run}) if account else []
    if not others:
        return []
    names = ", ".join(others[:5])
    return [f"The total of the data set does not hold if a run with a fixed key is released as well: {names}."]


def _overlaps(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the overlaps that a card lists: accounts that were charged, or that the owner keeps separate.

    They are computed from the data without noise, so shares are rounded, and only the operator sees smaller overlaps.
    """
    recorded = _recorded(facts)
    entries = recorded.get("overlaps", [])
    types = {"account": (str,), "share": (int, float), "share_of_account": (int, float), "charged": (bool,)}
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and all(type(entry.get(key)) in kinds for key, kinds in types.items())
        for entry in entries
    ):
        raise DataError("operator/run.json: accounts is not what a run writes.")
    decided = recorded.get("new_account") is not None or recorded.get("named") is True
    return [
        {
            "account": entry["account"],
            "share": _round_share(entry["share"]),
            "share_of_account": _round_share(entry["share_of_account"]),
            "charged": entry["charged"],
        }
        for entry in entries
        if entry["charged"] or (decided and max(entry["share"], entry["share_of_account"]) >= CHARGED_SHARE)
    ]


def _round_share(share: float) -> str:
    for limit, words in ((0.02, "below 2%"), (0.1, "2% to 10%"), (0.5, "10% to 50%"), (0.9, "50% to 90%")):
        if share < limit:
            return words
    return "more than 90%"


def _reason(facts: Mapping[str, Any]) -> str | None:
    """Return why these images are accounted for separately from other accounts, in the owner's words."""
    reason = _recorded(facts).get("new_account")
    if reason is not None and not isinstance(reason, str):
        raise DataError("operator/run.json: new_account is not what a run writes.")
    return reason


def _recorded(facts: Mapping[str, Any]) -> dict[str, Any]:
    entry = facts.get("accounts")
    return entry if isinstance(entry, dict) else {}
