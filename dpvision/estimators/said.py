"""What an estimator says of its guarantee: the figures, the account, and what epsilon does not cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpvision.core import accountant
from dpvision.core.events import Event, to_json
from dpvision.core.ledger import Account
from dpvision.released.report.overlaps import list_overlaps

TUNING = (
    "every fit on the account is in its total; settings chosen by scores on private images, or tried on them "
    "elsewhere, are not covered"
)


def card(
    event: Event,
    delta: float,
    account: Account,
    *,
    read_off: Sequence[str],
    private: bool,
    accounts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """As plain JSON values. `dpvision report RUN` writes the whole card of a run."""
    return {
        "status": "private" if private else "NOT PRIVATE: made with a fixed key, for tests only",
        "unit": "image",
        "guarantee": {"epsilon": accountant.epsilon(event, delta), "delta": delta, "accountant": accountant.NAME},
        "events": [to_json(event)],
        "data_set": {
            "account": account.id,
            "epsilon_spent": account.spent(),
            "epsilon_budget": account.budget.epsilon,
            "delta": account.budget.delta,
            "charges": len(account.charges),
            "composition": account.composition,
        },
        "overlapping_accounts": list_overlaps({"accounts": accounts or {}}),
        "read_off": list(read_off),
        "tuning": TUNING,
        "not_covered": [
            *(f"Read off the data and treated as public, so epsilon does not cover it: {fact}." for fact in read_off),
            "The unit is one image. Someone with several images in the data is protected less.",
            "Scores on held-out private images, such as those of a cross-validation, have no noise, and what is chosen "
            "by them is not covered.",
        ],
    }
