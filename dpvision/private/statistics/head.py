"""Fit a private linear classifier on frozen features.

Formal guarantee: for two data sets that differ by one additional image (one row and its label) or, if `persons` are
given, by one additional person with all of their rows, and any features that are a public function of each image alone,
the head and all intermediate results satisfy the guarantee of `head.event`, which is in the ledger, on disk, before the
first noise is drawn. The private rows are read only by the sums passed to the gate, which does what the charge states
and no more.

The caller must not derive public inputs from the data: classes, n, the settings and the public features. If n is not
passed, it is the number of units, and the head lists it in `read_off`. That number is then revealed, so neighbouring
data sets have the same number of units, one of which is zero in one of them (zero-out). Sums are divided by n, never by
a count. Errors about wrong inputs are for the operator, not for release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.core.events import Budget
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Floats, Rows
from dpvision.errors import ConfigError
from dpvision.models.head_on_features import linear_scores
from dpvision.models.tasks import Task
from dpvision.private.accounts.overlap import NOTHING, Sketch
from dpvision.private.statistics.charge import Charged, charge_fit, public_count
from dpvision.private.statistics.setup import HeadSetup


@dataclass(frozen=True, eq=False, kw_only=True)
class Head(Charged):
    """A linear classifier that may be released; the scores of prepared features are x @ weight + bias."""

    weight: Floats  # (d, classes)
    bias: Floats | None  # (classes,)
    centre: Floats | None  # (d,): subtracted from each row
    task: Task

    def scores(self, features: Any) -> Floats:
        """Return (N, classes) scores. Features are prepared as for fitting; a nonfinite row is scored as a zero row."""
        x, _ = self.preparation.apply(features)
        width = x.shape[1] - (self.preparation.intercept > 0)
        if width != len(self.weight):
            raise ConfigError(f"features have {width} columns, but the head was fitted to {len(self.weight)}.")
        return linear_scores(x, self.weight, bias=self.bias, centre=self.centre)

    def classes_of(self, features: Any) -> NDArray[np.int64]:
        """Return the answers for each row: the class with the highest score, a grade, or 1 and 0 for each label."""
        scores = self.scores(features)
        if self.task.kind == "classes":
            return scores.argmax(axis=1)
        return np.asarray(self.task.answers(self.task.chances(torch.from_numpy(scores))))


def fit_head(
    features: Any,
    labels: Any,
    budget: Budget,
    *,
    classes: int,
    ledger: Ledger,
    persons: Any = None,
    n: int | None = None,
    method: str = "gd",
    public: Any = None,
    sketch: Sketch = NOTHING,
    run: str = "head",
    test_key: str | None = None,
    **settings: Any,
) -> Head:
    """Fit a private linear classifier to (N, d) features and N labels within the budget, and charge the ledger.

    features   each row must be a public function of one private image; rows.Preparation bounds the norms of rows
    persons    the person of each row, if the guarantee is for persons with all of their rows: a person adds the mean of
               what their rows would add; n is the number of persons
    budget     the privacy budget of this head; also that of the ledger, if the ledger is new
    ledger     the ledger of the images, `ledger_of(identify(split)[0])`, so that training runs on them add up with this
    sketch     `overlap.sketch_images(split.images, identify(split)[2])`, so that other data sets with some of the same
               images find this account
    public     features of public images, for methods that learn directions from them
    test_key   fixes the noise, for tests: the head and its charge are marked as not private
    settings   settings of the rows (bound, unit, whitening, intercept, centre) and of the method (its dataclass
               fields); with task="labels", labels are (N, classes) of 1, 0, and -1 if unknown
    """
    setup = HeadSetup.of(method, settings)
    task = Task(getattr(setup.method, "task", "classes"), classes)
    rows = Rows.of(features, labels, setup.preparation, classes=classes, persons=persons, several=task.kind == "labels")
    public_rows = setup.public_rows(public, width=rows.width)
    n, read_off = public_count(n, rows)
    gate, charged = charge_fit(
        setup,
        budget,
        purpose="name of a head",
        numbers=f"{n} {classes}",
        rows=rows,
        public=public_rows,
        ledger=ledger,
        run=run,
        sketch=sketch,
        test_key=test_key,
    )
    weight, bias, centre = setup.fit(rows, n=n, sigma=gate.sigma, add_noise=gate.next, public=public_rows)
    if setup.preparation.intercept:  # the weights of the constant feature are the bias
        weight, bias = weight[:-1], weight[-1] * setup.preparation.constant
    return Head(weight=weight, bias=bias, centre=centre, task=task, n=n, read_off=read_off, **charged)
