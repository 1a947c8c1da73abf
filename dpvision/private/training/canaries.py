"""Canaries that a training carries, for an audit of that very run (audit/one_run.py).

A canary is a unit more in the private data, put in or left out by a fair secret coin. Its contribution to a step is C
times a unit vector: one weight's coordinate, with a sign, both drawn anew for each step from public numbers, and no two
canaries at the same coordinate. It is drawn by the same sampler at the same rate, and summed and noised with all
others: the mechanism, its event and its charge are what they are without canaries. n does not count them.

What is kept of each noisy sum is the claimed mechanism's log-likelihood ratio for each canary (audit/canaries.py): a
function of what was released and of public numbers. The other units' gradients are noise to it: new coordinates and
signs in each step keep them from adding up.

    edge case                              behaviour
    only canaries are drawn                nothing is fetched; their contributions are the sum
    more canaries than weights             refused before anything is charged: directions would not be orthogonal
    one unit of the data more              every canary keeps its coins: canaries are numbered first
    resumed                                scores are in the state, coins in operator/run.json
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


def toss(key: Key, count: int) -> str:
    """A fair coin for each canary, from the run's key: 1 is in."""
    return "".join("01"[int(word) >> 63] for word in key.stream("canaries", step=0).words(count))


def inside(facts: dict[str, object], count: int) -> NDArray[np.bool_]:
    """The coins as run.json has them."""
    rng = facts.get("canaries")
    if not isinstance(rng, str) or len(rng) != count or set(rng) - {"0", "1"}:
        raise DataError("operator/run.json: canaries is missing or is not what a run writes.")
    return np.array([coin == "1" for coin in rng], dtype=np.bool_)


def require_few(canaries: int, weights: int) -> None:
    """As many directions as canaries must be there in every step."""
    if canaries > weights:
        raise ConfigError(
            f"canaries is {canaries:,}, and a step learns {weights:,} weights: each canary needs one of its own. Fix: "
            f"--canaries {weights} or fewer."
        )


class Carried:
    """The canaries of one run; `sum_of` and `fetch_of` put them into the steps, `scores` reads the releases."""

    def __init__(
        self, inside: NDArray[np.bool_], sampler: PoissonSampler, *, sigma: float, seed: int, units: int
    ) -> None:
        self._count, self._there = len(inside), np.flatnonzero(inside)
        self._sampler, self._sigma, self._seed, self._units = sampler, sigma, seed, units
        self._drawn: list[int] = []
        self._places, self._signs = np.zeros(0, np.int64), np.zeros(0)

    @property
    def units(self) -> int:
        """Those of the data and the canaries that are in."""
        return self._units + len(self._there)

    def begin(self, step: int, size: int) -> None:
        """Each canary's direction in this step."""
        require_few(self._count, size)
        public = np.random.default_rng([self._seed, step, 0xCA])
        self._places = public.choice(size, self._count, replace=False)
        self._signs = public.choice((-1.0, 1.0), self._count)
        self._drawn.clear()

    def fetch_of(self, fetch: Fetch) -> Fetch:
        """Units of the data as before; canaries among those drawn are noted for the sum."""

        def fetched(drawn: NDArray[np.int64], seed: int) -> tuple[Tensor, Tensor, list[int]]:
            canaries = len(self._there)
            own = drawn[drawn >= canaries] - canaries
            self._drawn += drawn[drawn < canaries].tolist()
            return fetch(own, seed) if len(own) else NOBODY

        return fetched

    def sum_of(self, clipped_sum: ClippedSum) -> SumWithCanaries:
        return SumWithCanaries(clipped_sum, self)

    def contributions(self, size: int, norm: float) -> Tensor:
        """The sum of the canaries that were drawn: each has the norm C, in its own coordinate."""
        found = np.zeros(size)
        drawn = self._there[self._drawn]
        found[self._places[drawn]] = norm * self._signs[drawn]
        return torch.from_numpy(found)

    def scores(self, noisy: Tensor, *, norm: float) -> Tensor:
        """Of each canary, from one step's noisy mean."""
        z = noisy.double().numpy()[self._places] * self._signs * self._sampler.batch / norm
        return torch.from_numpy(log_ratio(z, rate=self._sampler.rate, sigma=self._sigma))


NOBODY: tuple[Tensor, Tensor, list[int]] = (torch.zeros(0), torch.zeros(0), [])


class SumWithCanaries:
    """A clipped sum, and the contributions of canaries on top: one unit more still moves it by at most C."""

    def __init__(self, clipped_sum: ClippedSum, carried: Carried) -> None:
        self._inner, self._carried = clipped_sum, carried

    @property
    def sensitivity(self) -> float:
        return self._inner.sensitivity

    @property
    def units_at_a_time(self) -> int:
        return self._inner.units_at_a_time

    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor:
        total = self._inner.sum((batch for batch in batches if len(batch[2])), public)
        return total + self._carried.contributions(self._inner.size, self.sensitivity).to(total)
