"""Other accounts with some of the same images on a card: which, roughly how many, and what was charged to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpvision.accounts import list_overlaps, read_accounts
from dpvision.report.figures import plain

Row = tuple[str, ...]
READ_OFF = (
    "Which other accounts of the ledger have some of the same images, and about how many, was read off the data. "
    "Epsilon does not cover it."
)
APART = (
    "These images were counted apart from other accounts that have some of them. What is revealed about those images "
    "is bounded by all of these accounts together, not by this one."
)


def on_card(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a card lists of them, as plain JSON values."""
    return {"overlapping_accounts": list_overlaps(facts), "new_account": read_accounts(facts).new_account}


def rows(card: dict[str, Any]) -> list[Row]:
    """Lines of the table of figures. Cards of earlier versions list nothing."""
    reason = card.get("new_account")
    return [
        *([] if reason is None else [("counted apart from other accounts because", plain(reason))]),
        *((f"account {plain(each['account'])}", _describe(each)) for each in card.get("overlapping_accounts", [])),
    ]


def not_covered(facts: Mapping[str, Any]) -> list[str]:
    """Sentences for the list of what epsilon says nothing about."""
    overlaps = list_overlaps(facts)
    apart = any(not each["charged"] for each in overlaps)
    return [*([READ_OFF] if overlaps else []), *([APART] if apart else [])]


def _describe(each: dict[str, Any]) -> str:
    charged = "charged with all of this run" if each["charged"] else "not charged"
    return f"has {each['share']} of these images, which are {each['share_of_account']} of a data set on it; {charged}"
