"""Poisson sampling: in every step each unit takes part by its own coin; the sampler makes the event that is charged.

Formal guarantee: in step t the units that take part are drawn independently of each other, of the data and of all
other steps, each with probability floor(rate * 2^64) / 2^64 <= rate. `rate` is batch / n, both of them public numbers
and never taken from the data: how many units there really are changes neither the rate, nor the number of steps, nor
what the sum is divided by. `event` is the only account of what this sampler does.

    edge case                      behaviour
    nobody is drawn                an empty array; the step happens, with noise only
    everybody is drawn             all of them; batches are never cut to a size
    fewer or more units than n     the rate stays
    batch above n                  refused
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpvision.core.events import PoissonGaussian
from dpvision.core.keys import Stream
from dpvision.errors import ConfigError


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

    def event(self, sigma: float, *, first: int = 0) -> PoissonGaussian:
        """What the steps from `first` on do to each unit."""
        return PoissonGaussian(self.rate, sigma, self.steps - first)

    def draw(self, units: int, stream: Stream) -> NDArray[np.int64]:
        """Indices of the units that take part in one step, ascending. `units` stays inside: only coins depend on it."""
        if self.batch == self.n:
            return np.arange(units)
        threshold = np.uint64(int(Fraction(self.rate) * (1 << 64)))
        return np.flatnonzero(stream.words(units) < threshold)


def by_person(persons: NDArray[np.int64]) -> Callable[[int], NDArray[np.int64]]:
    """The images of each person, so that a person is one unit and their images are its views."""
    order = np.argsort(persons, kind="stable")
    _, starts = np.unique(persons[order], return_index=True)  # ids need not be consecutive; nobody is without images
    images = np.split(order, starts[1:])
    return lambda person: images[person]
