"""Make synthetic rows from private ones by a published method. It reads top to bottom as things happen.

Formal guarantee: for two data sets of which one has one image (one row and its label) more, and any features that are a
public function of each image alone, the synthetic rows and all that was computed on the way to them satisfy the
guarantee of `synthetic.event`, which is charged to the ledger, on the disk, before the first noise is drawn. The
private rows are read only by the sums that the gate gets, which does what the charge says and no more.
What is drawn from `seed` (random features, latent points) is public.

Public, and thus not to be taken from the data by the caller: classes, n, rows, the settings. Where n is left out it is
the number of rows, which is then said to be read off; as the number is told then, neighbours have the same number of
rows, one of which is zero in one of them (zero-out). An error about wrong inputs is for the operator, not for release.
"""

from __future__ import annotations

from typing import Any

from dpvision.core import accountant
from dpvision.core.events import Budget, Gaussian, to_json
from dpvision.core.gate import Gate, secret_name
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Rows
from dpvision.core.sampling import EveryRecord
from dpvision.errors import ConfigError
from dpvision.private.accounts.accounts import charge_one
from dpvision.private.accounts.overlap import NOTHING, Sketch
from dpvision.private.statistics.baselines.setup import setup
from dpvision.private.statistics.baselines.synthetic import Synthetic
from dpvision.private.statistics.setup import number_of_units
from dpvision.settings import calibrate


def synthesise(
    features: Any,
    labels: Any,
    budget: Budget,
    *,
    method: str = "merf",
    classes: int,
    ledger: Ledger,
    n: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    sketch: Sketch = NOTHING,
    run: str = "synthetic rows",
    test_key: str | None = None,
    **settings: Any,
) -> Synthetic:
    """As many synthetic rows as `rows` says (n, if it does not) by "merf", "hermite" or "p3gm", within the budget.

    features   each row a public function of one private image, its pixels for instance, as one row of floats
    budget     what the rows may tell; it is also the ledger's, if that is new
    ledger     that of the images, `ledger_of(identify(split)[0])`: then it adds up with trainings on them
    sketch     `overlap.sketch(identify(split)[2], images=split.images)`: then other data sets with some of the same
               images find this account
    seed       of what is random in public
    test_key   a word that fixes the noise. For tests: the rows and their charge are marked as not private
    settings   of the private rows (bound, unit, whitening) and of the method (its dataclass)
    """
    plan = setup(method, settings)
    private_rows = Rows.of(features, labels, plan.preparation, classes=classes)
    plan.method.check(width=private_rows.width)
    read_off = ("n",) if n is None else ()
    n = number_of_units(len(private_rows.x) if n is None else n)
    rows = n if rows is None else rows
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ConfigError(f"rows is {rows!r}: how many synthetic rows are wanted must be a whole number above 0.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ConfigError(f"seed is {seed!r}: it must be a whole number from 0 to below 2^32.")

    event = Gaussian(calibrate.sigma(budget, rate=1.0, steps=plan.method.releases), plan.method.releases)
    key = Key.for_tests(test_key) if test_key else Key.fresh()
    what = f"{plan.name} {plan.method!r} {plan.preparation!r} {n} {classes} {rows} {seed} {to_json(event)}"
    id = secret_name(key, "name of synthetic rows", what, (private_rows.x, private_rows.labels))
    charge = charge_one(ledger, budget, event, key, id=id, run=run, sketch=sketch)
    gate = Gate(charge, key, EveryRecord(event.count), name=id)

    x, y = plan.method.make(private_rows, n=n, sigma=event.sigma, noisy=gate.next, count=rows, seed=seed)
    return Synthetic(
        x=x,
        labels=y,
        event=event,
        epsilon=accountant.epsilon(event, budget.delta),
        delta=budget.delta,
        method=plan.name,
        settings=plan.settings,
        preparation=plan.preparation,
        n=n,
        charge=charge.id,
        private=charge.private,
        read_off=read_off,
    )
