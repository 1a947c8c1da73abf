"""The one place where sampling, clipping and noise meet: a step of the mechanism that was charged, and no other.

Formal guarantee: over the steps first..steps-1, `step` releases exactly what `charge.event` describes. It can not be
built without a charge whose event is the sampler's own, and the charge exists only once it is on the disk
(ledger.spend). The result is divided by the public expected batch size, never by how many units were drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvision.errors import PrivacyError
from dpvision.mechanism import noise
from dpvision.mechanism.clip import ClippedSum
from dpvision.mechanism.sampling import PoissonSampler
from dpvision.mechanism.streams import Key
from dpvision.privacy.ledger import Charge

# (indices of the units drawn) -> their images, targets, and how many consecutive images each unit has.
Fetch = Callable[[NDArray[np.int64]], tuple[Tensor, Tensor, list[int]]]


class PrivateSum:
    """Steps of DP-SGD: Poisson-sample units, sum their clipped gradients, add noise, divide by the expected batch."""

    def __init__(
        self, sampler: PoissonSampler, clipped_sum: ClippedSum, key: Key, *, sigma: float, charge: Charge, first: int
    ) -> None:
        if charge.event != sampler.event(sigma, first=first):
            raise PrivacyError(
                f"the ledger was charged for {charge.event}, but this would do {sampler.event(sigma, first=first)}."
            )
        self._sampler, self._clipped_sum, self._key = sampler, clipped_sum, key
        self._sigma, self._branch, self._first = sigma, charge.id, first

    def step(self, number: int, units: int, fetch: Fetch) -> Tensor:
        """The noisy mean gradient of one step, as a flat float64 vector on the CPU."""
        if not self._first <= number < self._sampler.steps:
            raise PrivacyError(f"step {number} is outside of what was charged: {self._first} to {self._sampler.steps}.")
        drawn = self._sampler.draw(units, self._key.stream("sampling", step=number, branch=self._branch))
        total = self._clipped_sum(*fetch(drawn))
        noisy = noise.release(
            total.cpu().numpy(),
            self._key.stream("noise", step=number, branch=self._branch),
            sensitivity=self._clipped_sum.sensitivity,
            sigma=self._sigma,
        )
        return torch.from_numpy(noisy) / self._sampler.batch
