"""One step of training: draw units, sum their clipped gradients over all ranks, and let the gate add the noise.

Formal guarantee: over the steps that were charged, `step` releases exactly what the gate's charge describes: the gate
draws, and gives each noisy sum once (core/gate.py). The result is divided by the public expected batch size, never by
how many units were drawn.

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

from dpvision.core.clipping import Public
from dpvision.core.gate import Gate
from dpvision.core.rows import BoundedSum
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import PrivacyError
from dpvision.private.engine.clipped_sum import Batch
from dpvision.private.training.ranks import ALONE, Team

# (indices of the units drawn, seed of their views) -> images, targets, and how many consecutive images each unit has.
Fetch = Callable[[NDArray[np.int64], int], tuple[Tensor, Tensor, list[int]]]


class Sum(Protocol):
    """A sum that one unit moves by at most `sensitivity`: ClippedSum, or it with canaries added."""

    @property
    def sensitivity(self) -> float: ...

    @property
    def units_at_a_time(self) -> int: ...

    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor: ...


class PrivateSum:
    """Steps of DP-SGD: Poisson-sample units, sum their clipped gradients, add noise, divide by the expected batch."""

    def __init__(self, gate: Gate, clipped_sum: Sum, *, team: Team = ALONE, views: int = 1) -> None:
        if not isinstance(gate.sampler, PoissonSampler):
            raise PrivacyError(f"steps of training draw units by a PoissonSampler, not by {gate.sampler}.")
        self._gate, self._batch, self._team, self._views = gate, gate.sampler.batch, team, views
        self._next = 0
        self.sum_with(clipped_sum)

    def sum_with(self, clipped_sum: Sum) -> None:
        """From now on other weights' gradients: the same event, as each step's noise is scaled to what is summed."""
        self._clipped_sum = clipped_sum
        self._units_at_a_time = max(1, clipped_sum.units_at_a_time // self._views)

    def step(self, number: int, units: int, fetch: Fetch, public: Public | None = None) -> Tensor:
        """The noisy mean gradient of one step, as a flat float64 vector on the CPU; the same bits on every rank.

        `public` shapes contributions before they are clipped, and must be public: the sensitivity stays what it is.
        """
        if number < self._next:
            raise PrivacyError(f"step {number} is done: {self._next} is the next one.")
        self._next = number + 1
        drawn = self._gate.draw(number, units, rank=self._team.rank, ranks=self._team.ranks)
        share = self._clipped_sum.sum(self._in_parts(number, drawn, fetch), public).cpu()
        total = self._team.total(share)
        noisy = torch.empty_like(share) if total is None else self._noisy(total, number)
        return self._team.from_first(noisy) / self._batch

    def _in_parts(
        self, number: int, drawn: NDArray[np.int64], fetch: Fetch
    ) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """A few units at a time, so that memory does not grow with the batch."""
        words = self._gate.stream("views", number).words(2)
        seed = int(words[0]) << 64 | int(words[1])
        for start in range(0, len(drawn), self._units_at_a_time):
            yield fetch(drawn[start : start + self._units_at_a_time], seed)

    def _noisy(self, total: Tensor, number: int) -> Tensor:
        """On rank 0 only, so once in a step."""
        return torch.from_numpy(self._gate.noisy(BoundedSum(total.numpy(), self._clipped_sum.sensitivity), number))
