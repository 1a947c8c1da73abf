"""Which records take part, by public numbers and Bernoulli draws of their own; each sampler states its event.

Formal guarantee: draws of distinct steps, rows and records are independent of each other and of the data, and each
succeeds with at most the probability that `event` states. Rates are made of public numbers and never taken from the
data: the true number of records changes neither a rate, nor the number of steps or rows, nor what a sum is divided by.
One more record adds its own draws, and changes nobody else's choice in distribution. (With a secret key, the bits used
for the others do change; they are as random as before.) `event` is the only account of what a sampler does.

    edge case                      behaviour
    nobody is drawn                an empty array; the step or row happens, with noise only, and is never skipped
    everybody is drawn             all of them; batches are never cut to a size
    fewer or more records than n   the rate stays
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
    """What the gate asks of a sampler: the number of releases, and what they do to each record."""

    @property
    def releases(self) -> int: ...

    def event(self, sigma: float, *, first: int = 0) -> Event: ...


@dataclass(frozen=True)
class EveryRecord:
    """`releases` sums that every record is in."""

    releases: int

    def event(self, sigma: float, *, first: int = 0) -> Gaussian:
        return Gaussian(sigma, self.releases - first)


@dataclass(frozen=True)
class PoissonSampler:
    """For training: in every one of `steps` steps, each unit independently with probability batch / n."""

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
        """Indices of the units that take part in one step, ascending. Nothing but the draws depends on `units`."""
        if self.batch == self.n:
            return np.arange(units)
        threshold = np.uint64(int(Fraction(self.rate) * (1 << 64)))
        return np.flatnonzero(stream.words(units) < threshold)


@dataclass(frozen=True, eq=False)
class RowMembers:
    """Which records are in some rows: those of row r are members[starts[r] : starts[r + 1]]."""

    members: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Poisson:
    """For mixtures: each record is in each of `rows` rows independently with probability degree / n."""

    degree: float
    n: int
    rows: int

    def __post_init__(self) -> None:
        if not 0 < self.degree <= self.n:
            raise ConfigError(f"the degree is {self.degree:g} and n is {self.n:,}: it must be 0 < degree <= n.")
        if self.rows < 1:
            raise ConfigError(f"{self.rows} rows were asked for: at least one is needed.")

    @property
    def rate(self) -> float:
        return self.degree / self.n

    @property
    def description(self) -> str:
        """All of its numbers, to name the random numbers that it uses."""
        return repr(self)

    @property
    def releases(self) -> int:
        return self.rows

    def event(self, sigma: float, *, first: int = 0) -> PoissonGaussian:
        return PoissonGaussian(self.rate, sigma, self.rows - first)

    def choose(self, labels: NDArray[np.int64], rows: range, stream: Stream) -> RowMembers:
        """Which of the records with these classes (-1: in no row) are in each of `rows`."""
        present = np.flatnonzero(labels >= 0)
        drawn = bernoulli(stream, len(present) * len(rows), rate=self.rate)
        row, record = np.divmod(drawn, max(len(present), 1))
        return RowMembers(present[record], np.searchsorted(row, np.arange(len(rows) + 1)))


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A public table: whether row r is about class k. A record of class k is in such rows with probability rates[k]."""

    table: NDArray[np.bool_]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.table.ndim != 2 or self.table.dtype != np.bool_ or self.table.shape[1] != len(self.rates):
            raise ConfigError(f"a schedule needs one column of booleans for each of the {len(self.rates)} rates.")
        if not self.rows:
            raise ConfigError("a schedule of no rows was asked for: at least one is needed.")
        own = self.table.copy()
        own.setflags(write=False)  # what runs is what is charged
        object.__setattr__(self, "table", own)

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
    """Which of `count` independent draws of probability p = `rate` succeed, ascending.

    A draw succeeds when its 72 random bits, read as a number below 1, are below p. Its first byte decides unless it
    equals floor(256 p); then one more word must be below frac(256 p) 2^64. So each succeeds with a probability of at
    most p, and at least p - 2^-72.
    """
    if not 0 <= rate <= 1:
        raise ConfigError(f"the rate is {rate!r}: it must be from 0 to 1.")
    if rate == 1:
        return np.arange(count)
    scaled = Fraction(rate) * 256
    whole = int(scaled)
    threshold = np.uint64(int((scaled - whole) * (1 << 64)))
    bytes_ = stream.words(-(-count // 8)).view(np.uint8)[:count]
    near = np.flatnonzero(bytes_ <= whole)  # almost all draws end here
    open_ = bytes_[near] == whole
    sure = ~open_
    sure[open_] = stream.words(int(open_.sum())) < threshold
    return near[sure]
