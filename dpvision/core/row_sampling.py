"""Who is mixed into which released row: by public numbers and coins alone; the sampler makes the event that is charged.

    Poisson          each record is in each row by its own coin of probability degree / n
    Scheduled        a public table says which classes each row is about; each record of those classes is in the row by
                     its own coin of probability rates[k], its class's own

Formal guarantee: coins of distinct rows and records are independent of each other and of the data, and each record's
probability is at most what `event` says. Nothing here depends on how many records there are: a record more adds its
own coins, and moves nobody else's choice in distribution. (With a secret key, the bits that fall to the others do move;
they are as random as before.) Rows in which nobody is are rows all the same: they are noise, and never dropped.

Hierarchical sampling (Li et al. 2023, Procedure 2) is `hierarchical`: its class coins are tossed in public and make a
schedule. The paper accounts a record at rate degree / n in every row, as if nobody could see which classes were drawn;
labels and features show it, so here a record of class k is accounted at its rate inside the class, degree / (n p_k), in
the rows of its class: docs/hierarchical-sampling.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpvision.core.bernoulli import heads
from dpvision.core.events import ClassScheduled, PoissonGaussian
from dpvision.core.keys import Stream
from dpvision.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Chosen:
    """Of some rows: the records of row r are members[starts[r] : starts[r + 1]]."""

    members: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Poisson:
    """`rows` rows of expected degree `degree` over n records."""

    degree: float
    n: int
    rows: int

    def __post_init__(self) -> None:
        if not 0 < self.degree <= self.n:
            raise ConfigError(f"the degree is {self.degree:g} and n is {self.n:,}: it must be 0 < degree <= n.")
        _require_rows(self.rows)

    @property
    def rate(self) -> float:
        return self.degree / self.n

    @property
    def described(self) -> str:
        """All that there is to it, to name what is drawn by it."""
        return repr(self)

    def event(self, sigma: float) -> PoissonGaussian:
        return PoissonGaussian(self.rate, sigma, self.rows)

    def choose(self, labels: NDArray[np.int64], rows: range, stream: Stream) -> Chosen:
        """For the records with these classes (-1: in no row)."""
        there = np.flatnonzero(labels >= 0)
        found = heads(stream, len(there) * len(rows), rate=self.rate)
        row, record = np.divmod(found, max(len(there), 1))
        return Chosen(there[record], np.searchsorted(row, np.arange(len(rows) + 1)))


@dataclass(frozen=True, eq=False)
class Scheduled:
    """table[r, k]: whether row r is about class k; a record of class k is in such a row with probability rates[k]."""

    table: NDArray[np.bool_]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or self.table.dtype != np.bool_ or self.table.shape[1] != len(self.rates):
            raise ConfigError(f"a schedule needs one column of yes or no for each of the {len(self.rates)} rates.")
        _require_rows(len(self.table))
        own = self.table.copy()
        own.setflags(write=False)  # what runs is what is charged
        object.__setattr__(self, "table", own)

    @property
    def described(self) -> str:
        return f"{self.table.shape} {np.packbits(self.table).tobytes().hex()} {self.rates!r}"

    @property
    def rows(self) -> int:
        return len(self.table)

    def event(self, sigma: float) -> ClassScheduled:
        return ClassScheduled(sigma, self.rates, tuple(int(count) for count in self.table.sum(0)))

    def choose(self, labels: NDArray[np.int64], rows: range, stream: Stream) -> Chosen:
        members, places = [], []
        for k, rate in enumerate(self.rates):
            there = np.flatnonzero(labels == k)
            about = np.flatnonzero(self.table[rows.start : rows.stop, k])
            found = heads(stream, len(there) * len(about), rate=rate)
            row, record = np.divmod(found, max(len(there), 1))
            members.append(there[record])
            places.append(about[row])
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        return Chosen(np.concatenate(members)[order], np.searchsorted(place[order], np.arange(len(rows) + 1)))


Sampler = Poisson | Scheduled


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


def _require_rows(rows: int) -> None:
    if rows < 1:
        raise ConfigError(f"{rows} rows were asked for: there must be one at least.")
