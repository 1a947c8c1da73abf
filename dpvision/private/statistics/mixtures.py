"""Noisy mixtures of features and labels (NeuroMixGDP, Algorithm 1), a block of rows at a time.

    z_i = ( a x_i, b y_i )          |x_i| <= 1, y_i its class as 0 and 1; a = lambda / sqrt(1 + lambda^2), a^2 + b^2 = 1
    row = sum of v_i z_i over those drawn + N(0, sigma^2)
    x~  = c row's features / a,  y~ = c row's labels / b

    Avg-Mix (default)               v_i = 1          c = 1 / m
    RandomWeights (RW-Mix)          v_i = w_i / C_w  c = C_w        weights.py

which is the paper's noise, sigma_x = sigma / a and sigma_y = sigma / b. Where a schedule gives each row one class, that
class is public: it is the label, without noise, and a = 1.

Formal guarantee: |z_i| <= 1 (and 3e-8 for rounding, which noise.ARITHMETIC_SLACK covers) and 0 <= v_i <= 1, so one
record more moves a row by at most that, and only rows for which its own coin showed heads (sampling.py). Rows come out
only for a charge, which exists only once it is on the disk, of the event that this sampler is, and under the name that
`name` gives: records, sampler, weights, settings and software all shape it. So other records, or other settings, can
not come out under the same noise, and the same ones come out the same. m is a public number; a row in which nobody is,
is noise. The unit is one image: the charge must say so.

Blocks are made side by side on as many threads as torch has. Each has its own coins, weights and noise, and sums are
exact: how many threads there are changes no bit, so it is not in the name.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.core.account import Charge
from dpvision.core.events import ClassScheduled, Event, PoissonGaussian, to_json
from dpvision.core.gate import Gate, secret_name
from dpvision.core.keys import Key, Stream
from dpvision.core.rows import BoundedSum, Rows
from dpvision.core.sampling import MixtureSampler, Scheduled
from dpvision.errors import ConfigError
from dpvision.private.statistics.mechanism import CLASS_NUMBERS, Described, Made
from dpvision.private.statistics.mixture_weights import RandomWeights
from dpvision.private.statistics.sums import Grid, on_grid, summed
from dpvision.settings.release import Release
from dpvision.storage.software import computing

# Of lambda, and one over it: beyond, the features or the labels are nothing but noise.
LEAST_BALANCE = 1e-3
# Rows at a time. It decides which coin and which word of noise is whose.
BLOCK = 512

Block = tuple[NDArray[np.float32], NDArray[np.float32] | NDArray[np.int64]]
T = TypeVar("T")


class Mixtures:
    """What one release mixes, and how: private rows, the sampler, m, lambda and the weights (None: all the same)."""

    def __init__(
        self,
        rows: Rows,
        sampler: MixtureSampler,
        *,
        degree: float,
        balance: float = 1.0,
        weights: RandomWeights | None = None,
    ) -> None:
        if not LEAST_BALANCE <= balance <= 1 / LEAST_BALANCE:
            raise ConfigError(
                f"balance (lambda) is {balance!r}: it must be from {LEAST_BALANCE:g} to {1 / LEAST_BALANCE:g}."
            )
        if not 0 < degree < math.inf:
            raise ConfigError(f"the degree is {degree!r}: it must be a finite number above 0.")
        self.sampler, self.degree, self.weights, self._rows = sampler, float(degree), weights, rows
        self.public_labels = isinstance(sampler, Scheduled) and bool((sampler.table.sum(1) == 1).all())
        self.a = 1.0 if self.public_labels else balance / math.hypot(1.0, balance)
        self.b = math.sqrt(1 - self.a**2)

    def noise_of_features(self, sigma: float) -> float:
        """Standard deviation in each released feature."""
        return sigma / (self.a * self.divisor)

    def noise_of_labels(self, sigma: float) -> float:
        """And in each released label."""
        return 0.0 if self.public_labels else sigma / (self.b * self.divisor)

    @property
    def divisor(self) -> float:
        """1 / c."""
        return self.degree if self.weights is None else 1 / self.weights.most

    @property
    def records_in_a_row(self) -> float:
        """One over the expected sum of squared shares: m, and less where weights differ."""
        return self.degree if self.weights is None else self.degree * self.weights.alpha / (1 + self.weights.alpha)

    def event(self, sigma: float) -> PoissonGaussian | ClassScheduled:
        return self.sampler.event(sigma)

    def name(self, key: Key, event: Event) -> str:
        """Of the charge and the noise."""
        rows, settings = self._rows, f"{self.degree!r} {self.a!r} {self.weights!r} {BLOCK} {self.sampler.description}"
        what = f"mixtures {settings} {rows.classes} {to_json(event)} {computing()}"
        return secret_name(key, "name of a release", what, (rows.x, rows.labels))

    def blocks(self, charge: Charge, key: Key) -> Iterator[Block]:
        """(features, labels) of BLOCK rows each, in order."""
        gate = Gate(charge, key, self.sampler, name=self.name(key, charge.event))
        z = self._contributions()

        def block(number: int) -> Block:
            part = range(number * BLOCK, min((number + 1) * BLOCK, self.sampler.rows))
            chosen = self.sampler.choose(self._rows.labels, part, gate.stream("coins", number))
            total = summed(z, chosen, self._shares(len(chosen.members), gate.stream("weights", number)))
            return self._scaled(gate.noisy(BoundedSum(total, sensitivity=1.0), number, releases=part), part)

        yield from _in_order(block, range(-(-self.sampler.rows // BLOCK)))

    def make(self, charge: Charge, key: Key, config: Release) -> Made:
        return Made(self.blocks(charge, key))

    def describe(self, config: Release) -> Described:
        assert config.sigma  # complete
        return Described(
            name=f"mixtures, {config.sampling} sampling",
            rows_are="the features of those drawn, added up and divided by their expected number, plus noise; "
            "noise alone where nobody was drawn",
            labels=f"{CLASS_NUMBERS}; public, so it has no noise"
            if self.public_labels
            else "the share of each class in each row, with noise: below 0 and above 1 too",
            hard=self.public_labels,
            noise={
                "noise_x": self.noise_of_features(config.sigma),
                "noise_y": self.noise_of_labels(config.sigma),
                "degree": self.records_in_a_row,
            },
        )

    def _contributions(self) -> Grid:
        """z_i of every record; without the labels, where they are public."""
        x = (self._rows.x, self.a)
        if self.public_labels:
            return on_grid(x, degree=self.degree)
        one_hot = np.eye(self._rows.classes, dtype=np.float32)[self._rows.labels]
        return on_grid(x, (one_hot, self.b), degree=self.degree)

    def _shares(self, count: int, stream: Stream) -> NDArray[np.float64] | None:
        """v_i of each record that was drawn."""
        return None if self.weights is None else self.weights.shares(stream, count, degree=self.degree)

    def _scaled(self, noisy: NDArray[np.float64], part: range) -> Block:
        """x~ and y~ of these rows; for y~ the class, where it is public."""
        features = noisy[:, : self._rows.width] / (self.a * self.divisor)
        if self.public_labels:
            assert isinstance(self.sampler, Scheduled)
            return features.astype(np.float32), self.sampler.table[part.start : part.stop].argmax(axis=1)
        labels = noisy[:, self._rows.width :] / (self.b * self.divisor)
        return features.astype(np.float32), labels.astype(np.float32)


def of_settings(rows: Rows, config: Release) -> Mixtures:
    assert config.degree  # complete
    sampler = config.sampler(rows.classes)
    return Mixtures(rows, sampler, degree=config.degree, balance=config.balance, weights=weights_of(config))


def weights_of(config: Release) -> RandomWeights | None:
    """Of the records in a mixture; None where all count alike."""
    if config.alpha is None:
        return None
    assert config.degree
    return RandomWeights(config.alpha, min(1.0, config.most_weight / config.degree))


def _in_order(work: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """work(number) for each, in order, on torch's number of threads; a few ahead of who asks for them, never all."""
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
