"""Choose a method and its settings on public labelled features, with noise like that of the private fit.

It costs no privacy as long as what is handed over is public: rows and labels, the budget, and the public n. (Nothing
can tell whether they are.) Every candidate is fitted to one half of the public rows with simulated noise and judged on
the other half. The sums of the m public rows are scaled by n/m before the noise is added, so the noise weighs as much
beside them as it would beside n private rows.

The noise here is not secret and protects nobody. This file can import neither the ledger nor the mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpvision.core.events import Budget
from dpvision.core.rows import BoundedSum, Floats, Rows, as_classes, as_matrix
from dpvision.errors import ConfigError
from dpvision.private.statistics.centre import less
from dpvision.private.statistics.setup import setup
from dpvision.settings import calibrate


@dataclass(frozen=True, eq=False)
class Choice:
    """The best candidate, to be given to `fit_head(..., **choice.settings)`, and what all of them reached."""

    settings: Mapping[str, Any]
    accuracy: float
    accuracies: tuple[float, ...]  # in the order of the candidates


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
    """The candidate, a dict such as {"method": "gd", "steps": 50}, with the best mean accuracy; of equals the first."""
    if not candidates:
        raise ConfigError("candidates is empty: there is nothing to choose from.")
    if min(n, repeats) < 1:
        raise ConfigError(f"n and repeats must be above 0; they are {n} and {repeats}.")
    x = as_matrix(public_features, "public_features")
    y = as_classes(public_labels, "public_labels", classes=classes)
    if len(x) != len(y) or len(x) < 2:
        raise ConfigError(f"there are {len(x)} public rows and {len(y)} labels: they must be as many, and at least 2.")
    halves = [_halves(len(x), seed + i) for i in range(repeats)]
    accuracies = []
    for candidate in candidates:
        found = [
            _accuracy(candidate, x, y, fit, judge, budget, classes=classes, n=n, public=public, seed=seed + i)
            for i, (fit, judge) in enumerate(halves)
        ]
        accuracies.append(float(np.mean(found)))
    best = int(np.argmax(accuracies))
    return Choice(candidates[best], accuracies[best], tuple(accuracies))


def _accuracy(
    candidate: Mapping[str, Any],
    x: Any,
    y: Any,
    fit: Any,
    judge: Any,
    budget: Budget,
    *,
    classes: int,
    n: int,
    public: Any,
    seed: int,
) -> float:
    plan = setup(candidate.get("method", "gd"), {k: v for k, v in candidate.items() if k != "method"})
    rows = Rows.of(x[fit], y[fit], plan.preparation, classes=classes)
    sigma = calibrate.sigma(budget, rate=1.0, steps=plan.releases)
    rng = np.random.default_rng(seed)

    def noisy(bounded: BoundedSum) -> Floats:
        noise = rng.standard_normal(bounded.total.shape) * sigma * bounded.sensitivity
        return bounded.total * (n / len(fit)) + noise

    public_rows = plan.public_rows(public, width=rows.width)
    weight, bias, centre = plan.fit(rows, n=n, sigma=sigma, noisy=noisy, public=public_rows)
    held_out, _ = plan.preparation.apply(x[judge], name="public_features")
    held_out = held_out if centre is None else less(held_out, centre)
    scores = held_out.astype(np.float64) @ weight + (0.0 if bias is None else bias)
    return float((scores.argmax(axis=1) == y[judge]).mean())


def _halves(count: int, seed: int) -> tuple[Any, Any]:
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])
