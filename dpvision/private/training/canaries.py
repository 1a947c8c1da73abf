"""Canary records in a training run, for an audit of that run (audit/one_run.py).

A canary is an additional unit of the private data, included or left out by a fair secret draw. Its contribution to a
step is C times a unit vector: one weight's coordinate, with a sign, both drawn again for each step from public numbers,
and no two canaries at the same coordinate. It is drawn by the same sampler at the same rate, and summed and noised with
all others: the mechanism, its event and its charge are what they are without canaries. n does not count them.

Each noisy sum adds to a canary's score the claimed mechanism's log-likelihood ratio (audit/canaries.py): a function of
what was released and of public numbers. The other units' gradients are noise to it: new coordinates and signs in each
step keep them from adding up.

    edge case                              behaviour
    only canaries are drawn                nothing is fetched; their contributions are the sum
    more canaries than weights             refused before anything is charged: directions would not be orthogonal
    another unit in the data               every canary is drawn as before: canaries are numbered first
    resumed                                scores are in the state, inclusion in operator/run.json
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvision.audit.canaries import log_ratio
from dpvision.core.keys import Key
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError, DataError
from dpvision.private.engine import ClippedSum, Public
from dpvision.private.engine.clipped_sum import Batch
from dpvision.private.training.private_sum import Fetch


def draw_inclusion(key: Key, count: int) -> str:
    """Draw from the run's key whether each canary is included: 1 is included, 0 is not."""
    return "".join("01"[int(word) >> 63] for word in key.stream("canaries", step=0).words(count))


def read_inclusion(facts: dict[str, object], count: int) -> NDArray[np.bool_]:
    """Return whether each canary is included, as run.json states it."""
    bits = facts.get("canaries")
    if not isinstance(bits, str) or len(bits) != count or set(bits) - {"0", "1"}:
        raise DataError("operator/run.json: canaries is missing or is not what a run writes.")
    return np.array([bit == "1" for bit in bits], dtype=np.bool_)


def require_enough_weights(canaries: int, weights: int) -> None:
    """Require a coordinate for each canary in every step."""
    if canaries > weights:
        raise ConfigError(
            f"canaries is {canaries:,}, and a step trains {weights:,} weights: each canary needs one of its own. Fix: "
            f"--canaries {weights} or fewer."
        )


class Canaries:
    """The canaries of one run; `add_to` and `wrap_fetch` put them into the steps, `scores` reads the noisy sums."""

    def __init__(
        self, included: NDArray[np.bool_], sampler: PoissonSampler, *, sigma: float, seed: int, units: int
    ) -> None:
        self._count, self._included = len(included), np.flatnonzero(included)
        self._sampler, self._sigma, self._seed, self._units = sampler, sigma, seed, units
        self._drawn: list[int] = []
        self._coordinates, self._signs = np.zeros(0, np.int64), np.zeros(0)

    @property
    def units(self) -> int:
        """The number of units of the data and of included canaries."""
        return self._units + len(self._included)

    def start_step(self, step: int, size: int) -> None:
        """Draw each canary's direction in this step."""
        require_enough_weights(self._count, size)
        public = np.random.default_rng([self._seed, step, 0xCA])
        self._coordinates = public.choice(size, self._count, replace=False)
        self._signs = public.choice((-1.0, 1.0), self._count)
        self._drawn.clear()

    def wrap_fetch(self, fetch: Fetch) -> Fetch:
        """Return a function that fetches units of the data as before, and notes the canaries that are drawn."""

        def fetch_data(drawn: NDArray[np.int64], seed: int) -> tuple[Tensor, Tensor, list[int]]:
            canaries = len(self._included)
            own = drawn[drawn >= canaries] - canaries
            self._drawn += drawn[drawn < canaries].tolist()
            return fetch(own, seed) if len(own) else NO_UNITS

        return fetch_data

    def add_to(self, clipped_sum: ClippedSum) -> SumWithCanaries:
        """Return the clipped sum with the canaries' contributions added."""
        return SumWithCanaries(clipped_sum, self)

    def contributions(self, size: int, norm: float) -> Tensor:
        """Return the sum of the canaries that were drawn: each has the norm C, in its own coordinate."""
        total = np.zeros(size)
        drawn = self._included[self._drawn]
        total[self._coordinates[drawn]] = norm * self._signs[drawn]
        return torch.from_numpy(total)

    def scores(self, noisy: Tensor, *, norm: float) -> Tensor:
        """Return each canary's score, from one step's noisy mean."""
        z = noisy.double().numpy()[self._coordinates] * self._signs * self._sampler.batch / norm
        return torch.from_numpy(log_ratio(z, rate=self._sampler.rate, sigma=self._sigma))


NO_UNITS: tuple[Tensor, Tensor, list[int]] = (torch.zeros(0), torch.zeros(0), [])


class SumWithCanaries:
    """A clipped sum with the contributions of canaries added: another unit still moves it by at most C."""

    def __init__(self, clipped_sum: ClippedSum, canaries: Canaries) -> None:
        self._inner, self._canaries = clipped_sum, canaries

    @property
    def sensitivity(self) -> float:
        return self._inner.sensitivity

    @property
    def size(self) -> int:
        return self._inner.size

    @property
    def units_at_a_time(self) -> int:
        return self._inner.units_at_a_time

    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor:
        total = self._inner.sum((batch for batch in batches if len(batch[2])), public)
        return total + self._canaries.contributions(self._inner.size, self.sensitivity).to(total)
