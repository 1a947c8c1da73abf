"""The one place where sampling, clipping and noise meet: a step of the mechanism that was charged, and no other.

Formal guarantee: over the steps first..steps-1, `step` releases exactly what `charge.event` describes. It can not be
built without a charge whose event is the sampler's own, and the charge exists only once it is on the disk
(ledger.spend). The result is divided by the public expected batch size, never by how many units were drawn.

With several ranks, unit i belongs to rank i % ranks and has its coin there, from a stream of that rank alone: still one
coin per unit and step at the same rate, so the event is the same. The clipped sums of all ranks meet on rank 0, which
adds the noise once; every rank gets the same noisy sum.

What is random in a unit's views comes from the key as well, from a seed that is fresh for each step and used with the
unit's own number: secret, independent of the coins and the noise, and for one unit whatever the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvision.core import noise
from dpvision.core.keys import Key
from dpvision.core.ledger import Charge
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import PrivacyError
from dpvision.private.engine import Public
from dpvision.private.engine.clipped_sum import Batch
from dpvision.private.training.ranks import ALONE, Team

# (indices of the units drawn, seed of their views) -> images, targets, and how many consecutive images each unit has.
Fetch = Callable[[NDArray[np.int64], int], tuple[Tensor, Tensor, list[int]]]


class Sum(Protocol):
    """A sum that one unit moves by at most `sensitivity`: ClippedSum, or it with canaries beside."""

    @property
    def sensitivity(self) -> float: ...

    @property
    def part(self) -> int: ...

    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor: ...


class PrivateSum:
    """Steps of DP-SGD: Poisson-sample units, sum their clipped gradients, add noise, divide by the expected batch."""

    def __init__(
        self,
        sampler: PoissonSampler,
        clipped_sum: Sum,
        key: Key,
        *,
        sigma: float,
        charge: Charge,
        first: int,
        team: Team = ALONE,
        views: int = 1,
    ) -> None:
        if charge.event != sampler.event(sigma, first=first):
            raise PrivacyError(
                f"the ledger was charged for {charge.event}, but this would do {sampler.event(sigma, first=first)}."
            )
        self._sampler, self._key = sampler, key
        self._sigma, self._branch, self._next = sigma, charge.id, first
        self._team, self._views = team, views
        self.sum_with(clipped_sum)

    def sum_with(self, clipped_sum: Sum) -> None:
        """From now on other weights' gradients: the same event, as each step's noise is scaled to what is summed."""
        self._clipped_sum = clipped_sum
        self._units_at_a_time = max(1, clipped_sum.part // self._views)

    def step(self, number: int, units: int, fetch: Fetch, public: Public | None = None) -> Tensor:
        """The noisy mean gradient of one step, as a flat float64 vector on the CPU; the same bits on every rank.

        `public` shapes contributions before they are clipped, and must be public: the sensitivity stays what it is.
        """
        if not self._next <= number < self._sampler.steps:
            raise PrivacyError(
                f"step {number} is done or outside of what was charged: {self._next} to {self._sampler.steps} are left."
            )
        self._next = number + 1  # each step once: the same noise on two sums would show their difference
        share = self._clipped_sum.sum(self._in_parts(number, self._drawn(number, units), fetch), public).cpu()
        total = self._team.total(share)
        noisy = torch.empty_like(share) if total is None else self._noisy(total, number)
        return self._team.from_first(noisy) / self._sampler.batch

    def _drawn(self, number: int, units: int) -> NDArray[np.int64]:
        """Which of this rank's units take part: ranks share out all units and never the same one."""
        rank, ranks = self._team.rank, self._team.ranks
        coins = self._key.stream("sampling", step=number, rank=rank, branch=self._branch)
        return rank + ranks * self._sampler.draw(len(range(rank, units, ranks)), coins)

    def _in_parts(
        self, number: int, drawn: NDArray[np.int64], fetch: Fetch
    ) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """A few units at a time, so that memory does not grow with the batch."""
        words = self._key.stream("views", step=number, branch=self._branch).words(2)
        seed = int(words[0]) << 64 | int(words[1])
        for start in range(0, len(drawn), self._units_at_a_time):
            yield fetch(drawn[start : start + self._units_at_a_time], seed)

    def _noisy(self, total: Tensor, number: int) -> Tensor:
        """On rank 0 only, so once in a step."""
        stream = self._key.stream("noise", step=number, branch=self._branch)
        sensitivity, sigma = self._clipped_sum.sensitivity, self._sigma
        return torch.from_numpy(noise.release(total.numpy(), stream, sensitivity=sensitivity, sigma=sigma))
