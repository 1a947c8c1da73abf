"""Canary records in a training run, for an audit of that run (audit/one_run.py).

A canary is an additional unit of the private data that a fair secret draw includes or leaves out. Its contribution to a
step is C times a signed unit vector along the coordinate of one weight. The coordinate and the sign are drawn again in
each step from public numbers, and no two canaries share a coordinate. A canary is sampled at the same rate by the same
sampler as other units, and its contribution is summed and noised with theirs, so the mechanism, its event and its
charge are the same as without canaries. n does not count them.

Each noisy sum adds the log-likelihood ratio of the claimed mechanism (audit/canaries.py) to a canary's score, which is
thus a function of released values and public numbers. The gradients of other units act as noise in the score; because
coordinates and signs change in each step, they do not accumulate.

    edge case                              behaviour
    only canaries are drawn                nothing is fetched; the sum is that of their contributions
    more canaries than weights             an error before anything is charged: directions would not be orthogonal
    another unit in the data               the same canaries are drawn, because they have the first numbers
    resumed run                            scores are in the state, inclusion is in operator/run.json
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
    """Draw from the run's key which canaries are included, as a string of 1 (included) and 0."""
    return "".join("01"[int(word) >> 63] for word in key.stream("canaries", step=0).words(count))


def read_inclusion(facts: dict[str, object], count: int) -> NDArray[np.bool_]:
    """Read from the facts in operator/run.json whether each canary is included."""
    bits = facts.get("canaries")
    if not isinstance(bits, str) or len(bits) != count or set(bits) - {"0", "1"}:
        raise DataError("operator/run.json: canaries is missing or malformed.")
    return np.array([bit == "1" for bit in bits], dtype=np.bool_)


def require_enough_weights(canaries: int, weights: int) -> None:
    """Require at least as many weights as canaries, so that each canary has its own coordinate."""
    if canaries > weights:
        raise ConfigError(
            f"canaries is {canaries:,}, but a step trains only {weights:,} weights, and each canary needs a separate "
            f"weight. Fix: use --canaries {weights} or fewer."
        )


class Canaries:
    """The canaries of a run: `add_to` and `wrap_fetch` insert them into the steps, `scores` reads the noisy sums."""

    def __init__(
        self, included: NDArray[np.bool_], sampler: PoissonSampler, *, sigma: float, seed: int, units: int
    ) -> None:
        self._count, self._included = len(included), np.flatnonzero(included)
        self._sampler, self._sigma, self._seed, self._units = sampler, sigma, seed, units
        self._drawn: list[int] = []
        self._coordinates, self._signs = np.zeros(0, np.int64), np.zeros(0)

    @property
    def units(self) -> int:
        """The number of units in the data plus the number of included canaries."""
        return self._units + len(self._included)

    def start_step(self, step: int, size: int) -> None:
        """Draw the direction of each canary for this step."""
        require_enough_weights(self._count, size)
        public = np.random.default_rng([self._seed, step, 0xCA])
        self._coordinates = public.choice(size, self._count, replace=False)
        self._signs = public.choice((-1.0, 1.0), self._count)
        self._drawn.clear()

    def wrap_fetch(self, fetch: Fetch) -> Fetch:
        """Return a function that fetches the drawn units of the data and records which canaries are drawn."""

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
        """Return the sum of the drawn canaries' contributions, each of norm C along its coordinate."""
        total = np.zeros(size)
        drawn = self._included[self._drawn]
        total[self._coordinates[drawn]] = norm * self._signs[drawn]
        return torch.from_numpy(total)

    def scores(self, noisy: Tensor, *, norm: float) -> Tensor:
        """Compute each canary's score in one step from the noisy mean."""
        z = noisy.double().numpy()[self._coordinates] * self._signs * self._sampler.batch / norm
        return torch.from_numpy(log_ratio(z, rate=self._sampler.rate, sigma=self._sigma))


NO_UNITS: tuple[Tensor, Tensor, list[int]] = (torch.zeros(0), torch.zeros(0), [])


class SumWithCanaries:
    """A clipped sum plus the contributions of canaries; one unit still changes it by at most C."""

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
