"""Fit a private linear classifier on frozen features. It reads top to bottom as things happen.

Formal guarantee: for two data sets of which one has one image (one row and its label) more, and any features that are a
public function of each image alone, the head and all that was computed on the way to it satisfy the guarantee of
`head.event`, which is charged to the ledger, on the disk, before the first noise is drawn. The private rows are read
only by the sums that the gate gets, which does what the charge says and no more.

Public, and thus not to be taken from the data by the caller: classes, n, the settings, the public features. Where n is
left out it is the number of rows, which the head then says was read off; as the number is told then, neighbours have
the same number of rows, one of which is zero in one of them (zero-out). Sums are divided by n, never by a count.
An error about wrong inputs is for the operator, not for release.
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
from dpvision.private.accounts.accounts import charge_one
from dpvision.private.accounts.overlap import NOTHING, Sketch
from dpvision.private.statistics.head import Head, split_intercept
from dpvision.private.statistics.setup import number_of_units, setup
from dpvision.settings import calibrate


def fit_head(
    features: Any,
    labels: Any,
    budget: Budget,
    *,
    classes: int,
    ledger: Ledger,
    n: int | None = None,
    method: str = "gd",
    public: Any = None,
    sketch: Sketch = NOTHING,
    run: str = "head",
    test_key: str | None = None,
    **settings: Any,
) -> Head:
    """The head that `method` fits to (N, d) features and N labels within the budget.

    features   each row a public function of one private image; how rows are made short: rows.Preparation
    budget     what this head may tell; it is also the ledger's, if that is new
    ledger     that of the images, `ledger_of(identify(split)[0])`: then it adds up with trainings on them
    sketch     `overlap.sketch(identify(split)[2], images=split.images)`: then other data sets with some of the same
               images find this account
    public     features of public images, for methods that learn directions from them
    test_key   a word that fixes the noise. For tests: the head and its charge are marked as not private
    settings   of the rows (bound, unit, whitening, intercept) and of the method (its dataclass)
    """
    plan = setup(method, settings)
    rows = Rows.of(features, labels, plan.preparation, classes=classes)
    public_rows = plan.public_rows(public, width=rows.width)
    read_off = ("n",) if n is None else ()
    n = number_of_units(len(rows.x) if n is None else n)

    event = Gaussian(calibrate.sigma(budget, rate=1.0, steps=plan.releases), plan.releases)
    key = Key.for_tests(test_key) if test_key else Key.fresh()
    what = f"{plan.name} {plan.method!r} {plan.preparation!r} {n} {classes} {to_json(event)}"
    everything = (rows.x, rows.labels, *((public_rows.x,) if public_rows else ()))
    id = secret_name(key, "name of a head", what, everything)
    charge = charge_one(ledger, budget, event, key, id=id, run=run, sketch=sketch)
    gate = Gate(charge, key, EveryRecord(event.count), name=id)

    weight, bias, centre = plan.fit(rows, n=n, sigma=event.sigma, noisy=gate.next, public=public_rows)
    weight, bias = split_intercept(weight, bias, plan.preparation)
    return Head(
        weight=weight,
        bias=bias,
        centre=centre,
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
