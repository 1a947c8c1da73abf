"""The account of the data set as lines that may be read by anyone: who was charged for what, and the total after it."""

from __future__ import annotations

import json
from typing import Any

from dpvision.core.events import Tuned, to_json
from dpvision.core.ledger import Account
from dpvision.released.report import guarantee


def lines(account: Account) -> list[dict[str, Any]]:
    """One line per charge. `epsilon` is that of all charges up to this one, at the budget's delta: a meter of what is
    used of the budget, which is what holds for all of them together.

    The fingerprint of the data and the name of the charge, which is made from it, are left out. Where a tuning was
    charged, days are told instead of times: how long it took tells how many trials there were.
    """
    told, tuned = [], any(isinstance(charge.event, Tuned) for charge in account.charges)
    for count, charge in enumerate(account.charges, 1):
        told.append(
            {
                "time": charge.time[:10] if tuned else charge.time,
                "run": charge.run,
                "event": to_json(charge.event),
                "private": charge.private,
                **({} if charge.new_account is None else {"new_account": charge.new_account}),
                "epsilon": guarantee.proven(account.total_after(count), account.budget.delta),
            }
        )
    return told


def as_text(told: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in told)
