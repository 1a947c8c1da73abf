"""Choose a method and its settings on public labelled features, with noise like that of the private fit.

This costs no privacy as long as all arguments are public: rows, labels, the budget and n. (Nothing here can check
that.) Every candidate is fitted to one half of the public rows with simulated noise and scored on the other half. The
sums of the m public rows are scaled by n/m before the noise is added, so that the noise has the same weight as with n
private rows.

The noise here is not secret and protects nobody. This module imports neither the ledger nor the gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpvision.core.events import Budget
from dpvision.core.rows import BoundedSum, Floats, Rows, as_classes, as_matrix
from dpvision.errors import ConfigError
from dpvision.models.head_on_features import linear_scores
from dpvision.private.statistics.setup import HeadSetup
from dpvision.settings import calibrate


@dataclass(frozen=True, eq=False)
class Choice:
    """The best candidate, as keyword arguments of `fit_head`, and the accuracies of all candidates in order."""

    settings: Mapping[str, Any]
    accuracy: float
    accuracies: tuple[float, ...]


def choose(
    public_features: Any,
    public_labels: Any,
    candidates: Sequence[Mapping[str, Any]],
    budget: Budget,
    *,
    classes: int,
    n: int,
    public: Any = None,
    repeats: int = 3,
    seed: int = 0,
) -> Choice:
    """Choose the candidate with the best mean accuracy over `repeats` random halves; ties go to the first.

    Each candidate is a dictionary of arguments for `fit_head`, including "method". `n` is the public number of private
    images that the head will be fitted to.
    """
    if not candidates:
        raise ConfigError("candidates is empty. Fix: give at least one dictionary of settings.")
    if min(n, repeats) < 1:
        raise ConfigError(f"n and repeats must be above 0; they are {n} and {repeats}.")
    x = as_matrix(public_features, "public_features")
    y = as_classes(public_labels, "public_labels", classes=classes)
    if len(x) != len(y) or len(x) < 2:
        raise ConfigError(f"there are {len(x)} public rows and {len(y)} labels: both must be equal and at least 2.")

    def accuracy(candidate: Mapping[str, Any], seed: int) -> float:
        setup = HeadSetup.of(candidate.get("method", "gd"), {k: v for k, v in candidate.items() if k != "method"})
        order = np.random.default_rng(seed).permutation(len(x))
        train, test = np.sort(order[: len(x) // 2]), np.sort(order[len(x) // 2 :])
        rows = Rows.of(x[train], y[train], setup.preparation, classes=classes)
        sigma = calibrate.sigma(budget, rate=1.0, steps=setup.releases)
        rng = np.random.default_rng(seed)

        def add_noise(bounded: BoundedSum) -> Floats:
            noise = rng.standard_normal(bounded.total.shape) * sigma * bounded.sensitivity
            return bounded.total * (n / len(train)) + noise

        public_rows = setup.public_rows(public, width=rows.width)
        weight, bias, centre = setup.fit(rows, n=n, sigma=sigma, add_noise=add_noise, public=public_rows)
        held_out, _ = setup.preparation.apply(x[test], name="public_features")
        scores = linear_scores(held_out, weight, bias=bias, centre=centre)
        return float((scores.argmax(axis=1) == y[test]).mean())

    accuracies = [float(np.mean([accuracy(c, seed + i) for i in range(repeats)])) for c in candidates]
    best = int(np.argmax(accuracies))
    return Choice(candidates[best], accuracies[best], tuple(accuracies))
