"""Who takes part: by public numbers and a record's own coins alone; each sampler makes the event that is charged.

    EveryRecord       everybody, in each release
    PoissonSampler    training: in every step each unit by its own coin of probability batch / n
    Poisson           mixtures: each record is in each row by its own coin of probability degree / n
    Scheduled         a public table says which classes each row is about; each record of those classes is in the row by
                      its own coin of probability rates[k], its class's own

Formal guarantee: coins of distinct steps, rows and records are independent of each other and of the data, and each
shows heads with at most the probability that `event` states. Rates are made of public numbers and never taken from the
data: how many records there really are changes neither a rate, nor the number of steps or rows, nor what a sum is
divided by. A record more adds its own coins, and moves nobody else's choice in distribution. (With a secret key, the
bits that fall to the others do move; they are as random as before.) `event` is the only account of what a sampler does.

    edge case                      behaviour
    nobody is drawn                an empty array; the step or row happens, with noise only, and is never dropped
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
    """What the gate asks of a sampler: how many releases there are, and what they do to each record."""

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
    """Public numbers only: the expected batch, the declared number of units, the number of steps."""

    batch: int
    n: int
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.batch <= self.n:
            raise ConfigError(
                f"the expected batch is {self.batch} and the number of units n is {self.n}: it must be 0 < batch <= n."
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
        """What the steps from `first` on do to each unit."""
        return PoissonGaussian(self.rate, sigma, self.steps - first)

    def draw(self, units: int, stream: Stream) -> NDArray[np.int64]:
        """Indices of the units that take part in one step, ascending. `units` stays inside: only coins depend on it."""
        if self.batch == self.n:
            return np.arange(units)
        threshold = np.uint64(int(Fraction(self.rate) * (1 << 64)))
        return np.flatnonzero(stream.words(units) < threshold)


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

    @property
    def releases(self) -> int:
        return self.rows

    def event(self, sigma: float, *, first: int = 0) -> PoissonGaussian:
        return PoissonGaussian(self.rate, sigma, self.rows - first)

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

    @property
    def releases(self) -> int:
        return len(self.table)

    def event(self, sigma: float, *, first: int = 0) -> ClassScheduled:
        return ClassScheduled(sigma, self.rates, tuple(int(count) for count in self.table[first:].sum(0)))

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


MixtureSampler = Poisson | Scheduled


def _require_rows(rows: int) -> None:
    if rows < 1:
        raise ConfigError(f"{rows} rows were asked for: there must be one at least.")


def heads(stream: Stream, count: int, *, rate: float) -> NDArray[np.int64]:
    """Which of `count` coins of probability `rate` show heads, ascending.

    A coin shows heads when its 72 random bits, read as a number below 1, are below p: its first byte decides but where
    that equals floor(256 p), and there a word more is below frac(256 p) 2^64. So each shows heads with a probability of
    at most p, and at least p - 2^-72.
    """
    if not 0 <= rate <= 1:
        raise ConfigError(f"the rate is {rate!r}: it must be from 0 to 1.")
    if rate == 1:
        return np.arange(count)
    scaled = Fraction(rate) * 256
    whole = int(scaled)
    threshold = np.uint64(int((scaled - whole) * (1 << 64)))
    bytes_ = stream.words(-(-count // 8)).view(np.uint8)[:count]
    near = np.flatnonzero(bytes_ <= whole)  # almost all coins end here
    open_ = bytes_[near] == whole
    sure = ~open_
    sure[open_] = stream.words(int(open_.sum())) < threshold
    return near[sure]
