"""The charge for a fit in which every row is in every noisy sum: heads and baselines.

Formal guarantee: the event, Gaussian(sigma, releases), is in the ledger, on disk, before the gate that adds the noise
exists. The gate returns each noisy sum once. The noise has a name that depends on the records, the method, the settings
and the public numbers, so other records or settings cannot be released under the same noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpvision.core import accountant
from dpvision.core.events import Budget, Gaussian, to_json
from dpvision.core.gate import Gate, secret_name
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Preparation, Rows
from dpvision.core.sampling import EveryRecord
from dpvision.errors import ConfigError
from dpvision.private.accounts.accounts import charge_one
from dpvision.private.accounts.overlap import Sketch
from dpvision.private.statistics.setup import Setup
from dpvision.settings import calibrate


@dataclass(frozen=True, eq=False, kw_only=True)
class Charged:
    """The charge for a result, and how the result was computed. `epsilon` is that of `event` at `delta`.

    `private` is False if the noise came from a fixed key and therefore hides nothing. `read_off` names the settings
    that were read from the private data instead of being passed as public numbers.
    """

    event: Gaussian
    epsilon: float
    delta: float
    method: str
    settings: Mapping[str, Any]
    preparation: Preparation
    n: int  # of units
    unit: str  # "image", which is one row, or "person"
    charge: str  # the id of the charge in the ledger
    private: bool
    read_off: tuple[str, ...] = ()


def charge_fit(
    setup: Setup,
    budget: Budget,
    *,
    purpose: str,
    numbers: str,
    rows: Rows,
    public: Rows | None = None,
    ledger: Ledger,
    run: str,
    sketch: Sketch,
    test_key: str | None,
) -> tuple[Gate, dict[str, Any]]:
    """Charge the ledger; return the gate for the noisy sums, and the fields of `Charged` except n and read_off.

    `numbers` are the public numbers that affect the result. The unit of the charge is a person if `rows` name persons.
    """
    event = Gaussian(calibrate.sigma(budget, rate=1.0, steps=setup.releases), setup.releases)
    key = Key.for_tests(test_key) if test_key else Key.fresh()
    id = name_fit(setup, key, event, purpose=purpose, numbers=numbers, rows=rows, public=public)
    unit = "image" if rows.persons is None else "person"
    charge = charge_one(ledger, budget, event, key, id=id, run=run, unit=unit, sketch=sketch)
    return Gate(charge, key, EveryRecord(event.count), name=id), {
        "event": event,
        "epsilon": accountant.epsilon(event, budget.delta),
        "delta": budget.delta,
        "unit": unit,
        "method": setup.name,
        "settings": setup.settings,
        "preparation": setup.preparation,
        "charge": charge.id,
        "private": charge.private,
    }


def name_fit(
    setup: Setup, key: Key, event: Gaussian, *, purpose: str, numbers: str, rows: Rows, public: Rows | None = None
) -> str:
    """Name the charge and the noise of a fit, from the method, its settings, the public numbers and all rows."""
    what = f"{setup.name} {setup.method!r} {setup.preparation!r} {numbers} {to_json(event)}"
    return secret_name(key, purpose, what, (*rows.arrays, *(() if public is None else (public.x,))))


def public_count(n: int | None, rows: Rows) -> tuple[int, tuple[str, ...]]:
    """Return the public number of units, and the names of facts read from the data: n, if it was not given."""
    count = rows.units if n is None else n
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"n is {count!r}: the public number of units must be a whole number above 0.")
    return count, ("n",) if n is None else ()
