"""Other accounts with some of the same images on a card: which, roughly how many, and what was charged to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpvision.core.ledger import SHARE
from dpvision.errors import DataError
from dpvision.released.report.figures import plain

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
    return {"overlapping_accounts": list_overlaps(facts), "new_account": _reason(facts)}


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


def list_overlaps(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
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
        if each["charged"] or (decided and max(each["share"], each["share_of_account"]) >= SHARE)
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
