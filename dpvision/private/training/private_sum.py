"""One step of training: draw units, fetch their views, sum their clipped gradients over all ranks, add noise.

The path of one private image: `Inputs` turns it into a tensor, `fetcher` makes the views of this tensor for its unit,
the clipped sum (private/engine) bounds the contribution of the unit, and the gate (core/gate.py) adds the noise.

Formal guarantee: over the charged steps, `step` returns exactly what the gate's charge describes: the gate draws the
units and returns each noisy sum once. The result is divided by the public expected batch size, never by the number of
drawn units. The views of a unit depend only on that unit and on random numbers of its own.

With several ranks, unit i belongs to rank i % ranks and is drawn there, from a stream of that rank. This is still one
independent draw per unit and step at the same rate, so the event is the same. Rank 0 adds up the clipped sums of all
ranks and adds the noise once; every rank gets the same noisy sum.

The random numbers of a unit's views also come from the key, through a seed that is fresh for each step and combined
with the number of the unit: they are secret, independent of the sampling and the noise, and independent of other units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvision.core.clipping import Public
from dpvision.core.gate import Gate
from dpvision.core.rows import BoundedSum
from dpvision.core.sampling import PoissonSampler
from dpvision.data import Split
from dpvision.errors import ConfigError, PrivacyError
from dpvision.models.device import CPU, send
from dpvision.models.inputs import Inputs
from dpvision.private.engine.clipped_sum import Batch
from dpvision.private.training.ranks import ALONE, Team
from dpvision.views import UnitRandom, Views

# (numbers of the units drawn, seed of their views) -> images, targets, and the number of consecutive images per unit.
Fetch = Callable[[NDArray[np.int64], int], tuple[Tensor, Tensor, list[int]]]


def count_units(split: Split, unit: str) -> int:
    """Return the number of units, from which the sampler draws; it is `n` if that was not declared."""
    if unit == "image":
        return len(split.labels)
    if split.persons is None:
        raise ConfigError("--unit person needs the person on each image. Fix: add a CSV column 'person'.")
    return len(np.unique(split.persons))


def fetcher(split: Split, unit: str, inputs: Inputs, views: Views | None, device: torch.device = CPU) -> Fetch:
    """Return a function that makes the views and targets of units; the views of an image or a person are consecutive.

    Each image is sent to the device once, and its views are made there; random numbers are drawn on the CPU.
    """
    images_of: Callable[[int], NDArray[np.int64]] | None = None
    if unit == "person":
        assert split.persons is not None
        images_of = group_by_person(split.persons)

    def fetch(drawn: NDArray[np.int64], seed: int) -> tuple[Tensor, Tensor, list[int]]:
        rows, counts = drawn, [1] * len(drawn)
        if images_of is not None and len(drawn):
            parts = [images_of(int(i)) for i in drawn]
            rows, counts = np.concatenate(parts), [len(p) for p in parts]
        images = inputs(rows, device=device)
        labels = send(torch.from_numpy(np.asarray(split.labels[rows], dtype=np.int64)), device)
        if views is None:
            return images, labels, counts
        images, targets = views(images, labels, UnitRandom.grouped(seed, drawn, counts))
        return images, targets, [count * views.count for count in counts]

    return fetch


def group_by_person(persons: NDArray[np.int64]) -> Callable[[int], NDArray[np.int64]]:
    """Return a function from the number of a person to the numbers of their images, the views of this unit."""
    order = np.argsort(persons, kind="stable")
    _, starts = np.unique(persons[order], return_index=True)  # ids need not be consecutive; each person has images
    images = np.split(order, starts[1:])
    return lambda person: images[person]


def fetch_ahead(parts: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same parts, each read and sent by a thread while the device processes the previous one."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, parts, None)
        while (part := following.result()) is not None:
            following = thread.submit(next, parts, None)
            yield part


class Sum(Protocol):
    """A sum that one unit changes by at most `sensitivity`: ClippedSum, or SumWithCanaries."""

    @property
    def sensitivity(self) -> float: ...

    @property
    def size(self) -> int: ...

    @property
    def units_at_a_time(self) -> int: ...

    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor: ...


class PrivateSum:
    """Steps of DP-SGD: Poisson-sample units, sum their clipped gradients, add noise, divide by the expected batch."""

    def __init__(
        self, gate: Gate, clipped_sum: Sum, *, team: Team = ALONE, views: int = 1, device: torch.device = CPU
    ) -> None:
        """`device` computes the contributions; with an accelerator, the CPU prepares the next inputs meanwhile."""
        if not isinstance(gate.sampler, PoissonSampler):
            raise PrivacyError(f"training steps need a PoissonSampler, not {gate.sampler}.")
        self._gate, self._batch, self._team, self._views = gate, gate.sampler.batch, team, views
        self._next, self._ahead = 0, device.type != "cpu"
        self.sum_with(clipped_sum)

    def sum_with(self, clipped_sum: Sum) -> None:
        """Switch to another sum, of other weights; the event is the same, since the noise is scaled to each sum."""
        self._clipped_sum = clipped_sum
        self._units_at_a_time = max(1, clipped_sum.units_at_a_time // self._views)

    def step(self, number: int, units: int, fetch: Fetch, public: Public | None = None) -> Tensor:
        """Return the noisy mean gradient of one step, a flat float64 vector on the CPU, identical on every rank.

        `public` shapes contributions before they are clipped, so the sensitivity is unchanged; it must be public.
        """
        if number < self._next:
            raise PrivacyError(f"step {number} is already done; the next step is {self._next}.")
        self._next = number + 1
        drawn = self._gate.draw(number, units, rank=self._team.rank, ranks=self._team.ranks)
        parts = self._in_parts(number, drawn, fetch)
        if self._ahead and self._team.first:
            self._gate.draw_ahead(number, self._clipped_sum.size, self._clipped_sum.sensitivity)
        share = self._clipped_sum.sum(fetch_ahead(parts) if self._ahead else parts, public).cpu()
        total = self._team.total(share)
        noisy = torch.empty_like(share) if total is None else self._add_noise(total, number)
        return self._team.from_first(noisy) / self._batch

    def _in_parts(self, number: int, drawn: NDArray[np.int64], fetch: Fetch) -> Iterator[Batch]:
        """Yield a few units at a time, so that memory does not grow with the batch."""
        words = self._gate.stream("views", number).words(2)
        seed = int(words[0]) << 64 | int(words[1])
        for start in range(0, len(drawn), self._units_at_a_time):
            yield fetch(drawn[start : start + self._units_at_a_time], seed)

    def _add_noise(self, total: Tensor, number: int) -> Tensor:
        """Add the noise of a step, on rank 0 only and therefore once."""
        return torch.from_numpy(self._gate.noisy(BoundedSum(total.numpy(), self._clipped_sum.sensitivity), number))
