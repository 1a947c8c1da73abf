"""Schedules of releases by class: which classes each row is about, by public numbers and a public seed.

Hierarchical sampling (Li et al. 2023, Procedure 2) is `hierarchical`: its class coins are tossed in public and make a
schedule. The paper accounts a record at rate degree / n in every row, as if nobody could see which classes were drawn;
labels and features show it, so here a record of class k is accounted at its rate inside the class, degree / (n p_k), in
the rows of its class: docs/hierarchical-sampling.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpvision.core.sampling import Scheduled
from dpvision.errors import ConfigError


def in_turn(rows: int, *, rates: Sequence[float]) -> Scheduled:
    """A schedule of one class a row, each as often as the next."""
    table = np.zeros((rows, len(rates)), dtype=np.bool_)
    table[np.arange(rows), np.arange(rows) % len(rates)] = True
    return Scheduled(table, tuple(float(rate) for rate in rates))


def hierarchical(rows: int, *, degree: float, n: int, classes: int, drawn: float, seed: int) -> Scheduled:
    """Class coins p = drawn / classes for each row, tossed in public from a seed; inside a class q = degree / (n p)."""
    if not 0 < drawn <= classes:
        raise ConfigError(f"{drawn:g} classes a row were asked for: it must be above 0 and at most {classes}.")
    p = drawn / classes
    rate = degree / (n * p)
    if rate > 1:
        raise ConfigError(
            f"degree {degree:g}, {drawn:g} of {classes} classes a row: that is more records than there are."
        )
    return Scheduled(np.random.default_rng(seed).random((rows, classes)) < p, (rate,) * classes)
