"""Noisy mixtures of features and labels (NeuroMixGDP, Algorithm 1), a block of rows at a time.

    z_i = ( a x_i, b y_i )          |x_i| <= 1, y_i its one-hot class; a = lambda / sqrt(1 + lambda^2), a^2 + b^2 = 1
    row = sum of v_i z_i over the drawn records + N(0, sigma^2)
    x~  = c (features of the row) / a,  y~ = c (labels of the row) / b

    Avg-Mix (default)               v_i = 1          c = 1 / m
    RandomWeights (RW-Mix)          v_i = w_i / C_w  c = C_w

which is the paper's noise, sigma_x = sigma / a and sigma_y = sigma / b. If a schedule gives each row one class, that
class is public: it is the label, without noise, and a = 1.

If units are persons, a record is a person: z_i is the mean of the person's ( a x, b y ), over all their rows or, with a
schedule, over those of the class that most of their rows have, so that a person is drawn for rows of one class only.

Formal guarantee: |z_i| <= 1 (up to 3e-8 for rounding, which noise.ARITHMETIC_SLACK covers) and 0 <= v_i <= 1, so one
additional record changes a row by at most 1, and only rows for which its own Bernoulli draw succeeded (sampling.py).
Rows are released only for a charge that is on disk, for the event of this sampler, under the name that `name` returns,
which depends on records, sampler, weights, settings and software. So other records or settings cannot be released under
the same noise, and the same inputs give the same rows. m is a public number; a row for which no record was drawn is
noise alone. A record is an image or, if the rows name persons, a person; the charge must name that unit.

Sums are exact. Values are truncated towards 0 to a multiple of 2^-bits, which does not increase the norm of any row.
Up to 2^(24 - bits) values of magnitude at most 1 (`Grid.max_terms`, at most PIECE) add up exactly in float32; larger
sums are split into pieces of that size, which are added in float64. Weights are multiples of 2^-WEIGHT_BITS, so that
products and their sums are exact in float64. So one additional record changes a sum by exactly that record's row times
its weight, to the last bit, for any order and number of drawn records (up to 2^29 times `max_terms`; with weights, up
to 2^9 times `max_terms`, which is 131,072 for a degree of 64 or more).

Blocks are computed in parallel on torch's number of threads. Each block has its own draws, weights and noise, and sums
are exact, so the number of threads changes no bit and is not in the name.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, gammaincinv

from dpvision.core.account import Charge
from dpvision.core.events import ClassScheduled, Event, PoissonGaussian
from dpvision.core.gate import Gate
from dpvision.core.keys import Key, Stream
from dpvision.core.rows import SHORTER, BoundedSum, Rows
from dpvision.core.sampling import MixtureSampler, RowMembers, Scheduled
from dpvision.errors import ConfigError
from dpvision.private.statistics.mechanism import CLASS_NUMBERS, Description, Output, release_name
from dpvision.released.folder import Block
from dpvision.settings.release import Release

# The range of lambda; outside it, the features or the labels are nothing but noise.
MIN_BALANCE = 1e-3
# Rows in a block. It determines which draw and which word of noise belong to which row.
BLOCK = 512
# Records that are summed at a time, so that the working set stays in the cache.
PIECE = 256
# Steps of a weight in [0, 1], as a power of two.
WEIGHT_BITS = 20
# Outside this range the inverse of the Gamma distribution is not reliable; 0.05 to 0.5 is usual.
MIN_ALPHA, MAX_ALPHA = 0.01, 10_000.0

T = TypeVar("T")


@dataclass(frozen=True)
class RandomWeights:
    """Random weights of the records in a row (NeuroMixGDP's RW-Mix, Definition 2.2); `most` is C_w.

        paper       w = Dirichlet(alpha) over the drawn records, clipped at C_w
        here        w_i = min( G_i / (alpha m), C_w ),  G_i ~ Gamma(alpha, 1)

    A Dirichlet vector is a vector of Gamma variables divided by their sum. One additional record would change that sum
    and with it all weights, so the sum is replaced by its expectation alpha m, where m is the public degree. The
    weights of a row therefore add up to 1 on average, not always.

        alpha to 0       few records make up a row              alpha to infinity    every w_i is 1 / m: Avg-Mix
        C_w              the most by which one record changes a row; the noise is proportional to it. Values below about
                         1/m clip most weights

    Formal guarantee: w_i depends only on its own word of a secret stream, and 0 <= w_i <= C_w. So one additional record
    changes a row by at most C_w times the norm of that record's row, and changes no other weight. Sampling does not
    depend on the weights, so the accounted rate holds: for fixed weights, every row is a Gaussian release of
    sensitivity at most C_w, and weights drawn independently of the data give a mixture of such releases, to which the
    same curve applies (delta is an average). The utility of the mixtures depends on the Gamma distribution; privacy
    does not.
    """

    alpha: float
    most: float

    def __post_init__(self) -> None:
        if not MIN_ALPHA <= self.alpha <= MAX_ALPHA:
            raise ConfigError(
                f"alpha of the weights is {self.alpha!r}: it must be from {MIN_ALPHA:g} to {MAX_ALPHA:,.0f}, usually "
                "0.05 to 0.5. Fix: leave alpha out, for equal weights."
            )
        if not 0 < self.most <= 1:
            raise ConfigError(
                f"the largest weight is {self.most!r}: it must be above 0 and at most 1, such as 4 / degree."
            )

    @staticmethod
    def of_settings(config: Release) -> RandomWeights | None:
        """Return the random weights that the settings describe; None for equal weights."""
        if config.alpha is None:
            return None
        assert config.degree
        return RandomWeights(config.alpha, min(1.0, config.most_weight / config.degree))

    def shares(self, stream: Stream, count: int, *, degree: float) -> NDArray[np.float64]:
        """Draw `count` values of w / C_w, from 0 to 1, truncated towards 0 to multiples of 2^-WEIGHT_BITS."""
        uniform = (stream.words(count) >> np.uint64(11)) * 2.0**-53
        largest = self._largest_gamma(degree)
        share = np.minimum(gammaincinv(self.alpha, uniform), largest) / largest
        return np.asarray(np.floor(share * 2.0**WEIGHT_BITS) * 2.0**-WEIGHT_BITS)

    def mean(self, *, degree: float) -> float:
        """Return E[w], which clipping at C_w makes smaller than 1 / m, equally for features and labels."""
        largest = self._largest_gamma(degree)
        return float(gammainc(self.alpha + 1, largest) / degree + self.most * gammaincc(self.alpha, largest))

    def _largest_gamma(self, degree: float) -> float:
        """Return C_w alpha m, the value at which G_i is clipped."""
        return self.most * self.alpha * degree


class Mixtures:
    """The mixtures of one release: private rows, the sampler, m, lambda and the weights (None: all equal)."""

    def __init__(
        self,
        rows: Rows,
        sampler: MixtureSampler,
        *,
        degree: float,
        balance: float = 1.0,
        weights: RandomWeights | None = None,
    ) -> None:
        if not MIN_BALANCE <= balance <= 1 / MIN_BALANCE:
            raise ConfigError(
                f"balance (lambda) is {balance!r}: it must be from {MIN_BALANCE:g} to {1 / MIN_BALANCE:g}."
            )
        if not 0 < degree < math.inf:
            raise ConfigError(f"the degree is {degree!r}: it must be a finite number above 0.")
        self.sampler, self.degree, self.weights, self._rows = sampler, float(degree), weights, rows
        self._records = Records.of(rows, one_class=isinstance(sampler, Scheduled))
        self.public_labels = isinstance(sampler, Scheduled) and bool((sampler.table.sum(1) == 1).all())
        self.a = 1.0 if self.public_labels else balance / math.hypot(1.0, balance)
        self.b = math.sqrt(1 - self.a**2)

    @staticmethod
    def of_settings(rows: Rows, config: Release) -> Mixtures:
        assert config.degree  # complete
        weights = RandomWeights.of_settings(config)
        sampler = config.sampler(rows.classes)
        return Mixtures(rows, sampler, degree=config.degree, balance=config.balance, weights=weights)

    def noise_of_features(self, sigma: float) -> float:
        """The standard deviation of the noise in each released feature."""
        return sigma / (self.a * self.divisor)

    def noise_of_labels(self, sigma: float) -> float:
        """The standard deviation of the noise in each released label."""
        return 0.0 if self.public_labels else sigma / (self.b * self.divisor)

    @property
    def divisor(self) -> float:
        """The divisor 1 / c of a noisy sum."""
        return self.degree if self.weights is None else 1 / self.weights.most

    @property
    def records_in_a_row(self) -> float:
        """The effective number of records in a row, 1 / E[sum of squared shares]: m, or less with random weights."""
        return self.degree if self.weights is None else self.degree * self.weights.alpha / (1 + self.weights.alpha)

    def event(self, sigma: float) -> PoissonGaussian | ClassScheduled:
        return self.sampler.event(sigma)

    def name(self, key: Key, event: Event) -> str:
        settings = f"{self.degree!r} {self.a!r} {self.weights!r} {BLOCK} {self.sampler.description}"
        return release_name("mixtures", settings, self._rows, key, event)

    def blocks(self, charge: Charge, key: Key) -> Iterator[Block]:
        """Yield (features, labels) of BLOCK rows each, in order."""
        gate = Gate(charge, key, self.sampler, name=self.name(key, charge.event))
        z = self._contributions()

        def block(number: int) -> Block:
            part = range(number * BLOCK, min((number + 1) * BLOCK, self.sampler.rows))
            chosen = self.sampler.choose(self._records.labels, part, gate.stream("coins", number))
            total = sum_chosen(z, chosen, self._shares(len(chosen.members), gate.stream("weights", number)))
            return self._scale(gate.noisy(BoundedSum(total, sensitivity=1.0), number, releases=part), part)

        yield from _map_in_order(block, range(-(-self.sampler.rows // BLOCK)))

    def make(self, charge: Charge, key: Key, config: Release) -> Output:
        return Output(self.blocks(charge, key))

    def describe(self, config: Release) -> Description:
        assert config.sigma  # complete
        return Description(
            name=f"mixtures, {config.sampling} sampling",
            rows_are="the sum of the features of the drawn records, divided by their expected number, plus noise; "
            "noise alone if no record was drawn",
            labels=f"{CLASS_NUMBERS}; public, so without noise"
            if self.public_labels
            else "the share of each class in each row, with noise, so that it can be below 0 or above 1",
            hard=self.public_labels,
            noise={
                "noise_x": self.noise_of_features(config.sigma),
                "noise_y": self.noise_of_labels(config.sigma),
                "degree": self.records_in_a_row,
            },
        )

    def _contributions(self) -> Grid:
        """Return z_i of every record, without the labels if they are public."""
        x, y = (self._records.x, self.a), (self._records.y, self.b)
        return round_to_grid(*((x,) if self.public_labels else (x, y)), degree=self.degree)

    def _shares(self, count: int, stream: Stream) -> NDArray[np.float64] | None:
        """Return the weight v_i of each record that was drawn."""
        return None if self.weights is None else self.weights.shares(stream, count, degree=self.degree)

    def _scale(self, noisy: NDArray[np.float64], part: range) -> Block:
        """Return x~ and y~ of these rows; a public class replaces y~."""
        features = noisy[:, : self._rows.width] / (self.a * self.divisor)
        if self.public_labels:
            assert isinstance(self.sampler, Scheduled)
            return features.astype(np.float32), self.sampler.table[part.start : part.stop].argmax(axis=1)
        labels = noisy[:, self._rows.width :] / (self.b * self.divisor)
        return features.astype(np.float32), labels.astype(np.float32)


class Records(NamedTuple):
    """What the sampler draws: images or persons, with features, shares of classes, and one class (-1: in no row)."""

    x: NDArray[np.float32]  # (records, d)
    y: NDArray[np.float32]  # (records, classes)
    labels: NDArray[np.int64]

    @staticmethod
    def of(rows: Rows, *, one_class: bool) -> Records:
        """Average the rows of each person; with `one_class`, only those of the class that most of them have."""
        one_hot = np.eye(rows.classes, dtype=np.float32)[rows.labels]
        persons = rows.persons
        if persons is None:
            return Records(rows.x, one_hot, rows.labels)
        counts = np.zeros((rows.units, rows.classes))
        np.add.at(counts, (persons[rows.counted], rows.labels[rows.counted]), 1.0)
        labels = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)
        if one_class:
            rows = replace(rows, labels=np.where(rows.labels == labels[persons], rows.labels, -1))
        x, y, shares = np.zeros((rows.units, rows.width)), np.zeros((rows.units, rows.classes)), rows.shares[:, None]
        np.add.at(x, persons, rows.x * shares)
        np.add.at(y, persons, one_hot * shares)
        return Records((x * SHORTER).astype(np.float32), (y * SHORTER).astype(np.float32), labels)


class Grid(NamedTuple):
    """(N, d) values on a grid; sums of up to `max_terms` of them are exact in float32."""

    x: NDArray[np.float32]
    max_terms: int


def round_to_grid(*parts: tuple[NDArray[np.float32], float], degree: float) -> Grid:
    """Round values of magnitude at most 1 to a grid: each part times its scale, at most 1, as columns of one array.

    `degree` is the typical number of rows in a sum.
    """
    bits = 24 - math.ceil(math.log2(min(4 * max(degree, 1.0), PIECE)))
    out = np.empty((len(parts[0][0]), sum(x.shape[1] for x, _ in parts)), dtype=np.float32)
    left = 0
    for x, scale in parts:
        np.multiply(x, np.float32(scale * 2.0**bits), out=out[:, left : left + x.shape[1]])
        left += x.shape[1]
    np.trunc(out, out=out)
    out *= np.float32(2.0**-bits)
    return Grid(out, 2 ** (24 - bits))


def sum_chosen(grid: Grid, chosen: RowMembers, weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Return (rows, d) exact sums of the chosen records, each times its weight (one per `chosen.members`)."""
    out = np.zeros((len(chosen.starts) - 1, grid.x.shape[1]))
    size = grid.max_terms
    buffer = np.empty((size, grid.x.shape[1]), dtype=np.float32)
    for row, total in enumerate(out):
        for start in range(chosen.starts[row], chosen.starts[row + 1], size):
            piece = slice(start, min(start + size, chosen.starts[row + 1]))
            x = buffer[: piece.stop - start]
            np.take(grid.x, chosen.members[piece], axis=0, out=x, mode="clip")  # all are in range; "raise" would copy
            total += x.sum(axis=0) if weights is None else np.einsum("i,id->d", weights[piece], x)
    return out


def _map_in_order(work: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """Yield work(number) in order, computed by torch's number of threads, a few results ahead of the consumer."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield from map(work, numbers)
        return
    ahead: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for number in numbers:
            ahead.append(pool.submit(work, number))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
