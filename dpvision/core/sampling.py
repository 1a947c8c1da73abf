"""Samplers: which records take part, by independent Bernoulli draws at public rates; each sampler states its event.

Formal guarantee: draws of distinct steps, rows and records are independent of each other and of the data, and each
succeeds with at most the probability that `event` states. Rates depend only on public numbers: the true number of
records affects neither a rate, nor the number of steps or rows, nor the divisor of a sum. One more record adds its own
draws and does not change the distribution of any others. (With a secret key, the bits used for the others do change;
they are equally random.) `event` alone describes what a sampler does.

    edge case                      behaviour
    no record is drawn             an empty array; the step or row happens, with noise only, and is never skipped
    all records are drawn          all take part; batches are never truncated
    fewer or more records than n   the rate is unchanged
    batch or degree above n        refused
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpvision.core.events import ClassScheduled, Event, Gaussian, PoissonGaussian
from dpvision.core.keys import Stream
from dpvision.errors import ConfigError


class Sampler(Protocol):
    """The gate's interface to a sampler: the number of releases, and the event that describes them."""

    @property
    def releases(self) -> int: ...

    def event(self, sigma: float, *, first: int = 0) -> Event: ...


@dataclass(frozen=True)
class EveryRecord:
    """`releases` sums, each over every record."""

    releases: int

    def event(self, sigma: float, *, first: int = 0) -> Gaussian:
        return Gaussian(sigma, self.releases - first)


@dataclass(frozen=True)
class PoissonSampler:
    """For training: in each of `steps` steps, every unit takes part independently with probability batch / n."""

    batch: int
    n: int
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.batch <= self.n:
            raise ConfigError(
                f"the expected batch size is {self.batch} and the number of units {self.n}: it must be 0 < batch <= n."
            )
        if self.steps < 0:
            raise ConfigError(f"steps is {self.steps}: it must be 0 or more.")

    @property
    def rate(self) -> float:
        return self.batch / self.n

    @property
    def releases(self) -> int:
        return self.steps

    def event(self, sigma: float, *, first: int = 0) -> PoissonGaussian:
        return PoissonGaussian(self.rate, sigma, self.steps - first)

    def draw(self, units: int, stream: Stream) -> NDArray[np.int64]:
        """Return the ascending indices of the units that take part in one step, out of `units`."""
        if self.batch == self.n:
            return np.arange(units)
        threshold = np.uint64(int(Fraction(self.rate) * (1 << 64)))
        return np.flatnonzero(stream.words(units) < threshold)


@dataclass(frozen=True, eq=False)
class RowMembers:
    """The records in each row: those of row r are members[starts[r] : starts[r + 1]]."""

    members: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Poisson:
    """For mixtures: every record is in each of `rows` rows independently with probability degree / n."""

    degree: float
    n: int
    rows: int

    def __post_init__(self) -> None:
        if not 0 < self.degree <= self.n:
            raise ConfigError(f"the degree is {self.degree:g} and n is {self.n:,}: it must be 0 < degree <= n.")
        if self.rows < 1:
            raise ConfigError(f"rows is {self.rows}: at least one is needed.")

    @property
    def rate(self) -> float:
        return self.degree / self.n

    @property
    def description(self) -> str:
        """All of its parameters, as part of the name of its random streams."""
        return repr(self)

    @property
    def releases(self) -> int:
        return self.rows

    def event(self, sigma: float, *, first: int = 0) -> PoissonGaussian:
        return PoissonGaussian(self.rate, sigma, self.rows - first)

    def choose(self, labels: NDArray[np.int64], rows: range, stream: Stream) -> RowMembers:
        """Draw which records, given by their classes, are in each of `rows`; class -1 is in no row."""
        present = np.flatnonzero(labels >= 0)
        drawn = bernoulli(stream, len(present) * len(rows), rate=self.rate)
        row, record = np.divmod(drawn, max(len(present), 1))
        return RowMembers(present[record], np.searchsorted(row, np.arange(len(rows) + 1)))


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A public table: if table[r, k], row r is about class k, whose records are in it with probability rates[k]."""

    table: NDArray[np.bool_]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or self.table.dtype != np.bool_ or self.table.shape[1] != len(self.rates):
            raise ConfigError(f"a schedule needs one column of booleans for each of the {len(self.rates)} rates.")
        if not self.rows:
            raise ConfigError("the schedule has no rows: at least one is needed.")
        table = self.table.copy()
        table.setflags(write=False)  # so that what runs is what was charged
        object.__setattr__(self, "table", table)

    @property
    def description(self) -> str:
        return f"{self.table.shape} {np.packbits(self.table).tobytes().hex()} {self.rates!r}"

    @property
    def rows(self) -> int:
        return len(self.table)

    @property
    def releases(self) -> int:
        return len(self.table)

    def event(self, sigma: float, *, first: int = 0) -> ClassScheduled:
        return ClassScheduled(sigma, self.rates, tuple(int(count) for count in self.table[first:].sum(0)))

    def choose(self, labels: NDArray[np.int64], rows: range, stream: Stream) -> RowMembers:
        members, places = [], []
        for k, rate in enumerate(self.rates):
            present = np.flatnonzero(labels == k)
            about = np.flatnonzero(self.table[rows.start : rows.stop, k])
            drawn = bernoulli(stream, len(present) * len(about), rate=rate)
            row, record = np.divmod(drawn, max(len(present), 1))
            members.append(present[record])
            places.append(about[row])
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        return RowMembers(np.concatenate(members)[order], np.searchsorted(place[order], np.arange(len(rows) + 1)))


MixtureSampler = Poisson | Scheduled


def bernoulli(stream: Stream, count: int, *, rate: float) -> NDArray[np.int64]:
    """Return the ascending indices of the successes among `count` independent draws of probability p = `rate`.

    A draw succeeds if its 72 random bits, read as a number below 1, are below p. Its first byte decides unless it
    equals floor(256 p); then one more word must be below frac(256 p) 2^64. So the probability of success is at most p,
    and at least p - 2^-72.
    """
    if not 0 <= rate <= 1:
        raise ConfigError(f"the rate is {rate!r}: it must be from 0 to 1.")
    if rate == 1:
        return np.arange(count)
    scaled = Fraction(rate) * 256
    whole = int(scaled)
    threshold = np.uint64(int((scaled - whole) * (1 << 64)))
    bytes_ = stream.words(-(-count // 8)).view(np.uint8)[:count]
    candidates = np.flatnonzero(bytes_ <= whole)
    undecided = bytes_[candidates] == whole
    success = ~undecided
    success[undecided] = stream.words(int(undecided.sum())) < threshold
    return candidates[success]
