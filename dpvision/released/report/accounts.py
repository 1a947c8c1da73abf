"""The accounts of a data set on a card: its own with its charges, and others with some of the same images.

data_set          the account whose total the card states
ledger_lines      its charges as lines that anyone may read, for ledger.jsonl
overlaps_on_card  other accounts that have some of the images: which, roughly how many, and what was charged to them
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpvision.core.account import Account
from dpvision.core.events import Tuned, to_json
from dpvision.errors import DataError
from dpvision.released.report.guarantee import composition, proven
from dpvision.released.report.numbers import plain
from dpvision.storage.home import CHARGED_SHARE

Row = tuple[str, ...]
READ_OFF = (
    "Which other accounts of the ledger have some of the same images, and about how many, was read off the data. "
    "Epsilon does not cover it."
)
APART = (
    "These images were counted apart from other accounts that have some of them. What is revealed about those images "
    "is bounded by all of these accounts together, not by this one."
)


def data_set(account: Account | None) -> dict[str, Any] | None:
    """What all runs on the data add up to; None where no ledger was read."""
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
    """What the budget was changed to after it was first set, and when."""
    return [{"time": t, "epsilon": b.epsilon, "delta": b.delta} for t, b in account.budgets[1:]]


def ledger_lines(account: Account) -> list[dict[str, Any]]:
    """One line per charge. `epsilon` is that of all charges up to this one, at the budget's delta: a meter of what is
    used of the budget, which is what holds for all of them together.

    The fingerprint of the data and the name of the charge, which is made from it, are left out. Where a tuning was
    charged, days are given instead of times: how long it took shows how many trials there were.
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


def overlaps_on_card(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a card lists of other accounts, as plain JSON values."""
    return {"overlapping_accounts": _overlaps(facts), "new_account": _reason(facts)}


def rows(card: dict[str, Any]) -> list[Row]:
    """Of other accounts, lines of the table of figures. Cards of earlier versions list nothing."""
    reason = card.get("new_account")
    return [
        *([] if reason is None else [("counted apart from other accounts because", plain(reason))]),
        *((f"account {plain(each['account'])}", _describe(each)) for each in card.get("overlapping_accounts", [])),
    ]


def not_covered(facts: Mapping[str, Any], account: Account | None) -> list[str]:
    """Sentences on the accounts for the list of what epsilon says nothing about."""
    overlaps = _overlaps(facts)
    apart = any(not each["charged"] for each in overlaps)
    return [*_fixed_keys(facts["run"], account), *([READ_OFF] if overlaps else []), *([APART] if apart else [])]


def _fixed_keys(run: str, account: Account | None) -> list[str]:
    """Runs on the same data whose noise hides nothing void the data set's total, not this run's guarantee."""
    others = sorted({c.run for c in account.charges if not c.private and c.run != run}) if account else []
    if not others:
        return []
    names = ", ".join(others[:5])
    return [f"The total of the data set does not hold if a run with a fixed key is released as well: {names}."]


def _describe(each: dict[str, Any]) -> str:
    charged = "charged with all of this run" if each["charged"] else "not charged"
    return f"has {each['share']} of these images, which are {each['share_of_account']} of a data set on it; {charged}"


def _overlaps(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The overlaps of a run as its card lists them: accounts that were charged, or that the owner set apart.

    Shares are rounded, and smaller overlaps are for the operator alone: they come from the data, without noise.
    """
    entry = facts.get("accounts")
    overlaps = entry.get("overlaps", []) if isinstance(entry, dict) else []
    kinds = {"account": (str,), "share": (int, float), "share_of_account": (int, float), "charged": (bool,)}
    if not isinstance(overlaps, list) or not all(
        isinstance(each, dict) and all(type(each.get(key)) in kind for key, kind in kinds.items()) for each in overlaps
    ):
        raise DataError("operator/run.json: accounts is not what a run writes.")
    decided = isinstance(entry, dict) and (entry.get("new_account") is not None or entry.get("named") is True)
    overlaps = [
        each
        for each in overlaps
        if each["charged"] or (decided and max(each["share"], each["share_of_account"]) >= CHARGED_SHARE)
    ]
    return [
        {
            "account": each["account"],
            "share": _round_share(each["share"]),
            "share_of_account": _round_share(each["share_of_account"]),
            "charged": each["charged"],
        }
        for each in overlaps
    ]


def _round_share(share: float) -> str:
    for limit, words in ((0.02, "below 2%"), (0.1, "2% to 10%"), (0.5, "10% to 50%"), (0.9, "50% to 90%")):
        if share < limit:
            return words
    return "more than 90%"


def _reason(facts: Mapping[str, Any]) -> str | None:
    """Why these images are counted apart from other accounts, in the owner's words."""
    entry = facts.get("accounts")
    reason = entry.get("new_account") if isinstance(entry, dict) else None
    if reason is not None and not isinstance(reason, str):
        raise DataError("operator/run.json: new_account is not what a run writes.")
    return reason
