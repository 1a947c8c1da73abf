"""The only exit for private records: takes bounded sums and returns noisy sums, each of them once.

Formal guarantee: over its lifetime a `Gate` releases exactly what `charge.event` describes, and nothing else.

  1. It requires a charge that is on disk: the ledger is read again and must contain this very charge.
  2. The charge's event must be the one that the sampler itself states for the charge's noise multiplier.
  3. The key must be secret if the charge states so. (A run that began with a fixed key stays marked as not private.)
  4. Noise is scaled to the sensitivity that comes with each sum, from the code that bounds the summands. Each release
     in `first` .. `sampler.releases` - 1 happens once, and no noise is used twice: the same noise on two sums would
     reveal their difference.
  5. Random streams are named by the charge's id, which identifies everything that shapes the result
     (state.branch_name, `secret_name`): other data, settings or software never get the same noise.

    edge case                      behaviour
    no record is drawn             the sum is zero; noise only
    nothing was charged            the gate has no releases
    a sum that is not finite       refused by noise.add_noise, and its release number is used up
    several threads                each release still happens once
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core import noise
from dpvision.core.account import Charge
from dpvision.core.keys import Key, Stream
from dpvision.core.rows import BoundedSum, Floats
from dpvision.core.sampling import PoissonSampler, Sampler
from dpvision.errors import PrivacyError


class Gate:
    """Returns the noisy sums that were charged, each of them once."""

    def __init__(self, charge: Charge, key: Key, sampler: Sampler, *, name: str, first: int = 0) -> None:
        """Check the charge. `name`, computed by the caller from its records, settings and software, must be its id;
        `first` is the number of the first release that it pays for."""
        sigma = getattr(charge.event, "sigma", 1.0)
        runs = sampler.event(sigma, first=first)
        if charge.event != runs:
            raise PrivacyError(f"the ledger was charged for {charge.event}, but this would run {runs}.")
        if charge.private and not key.private:
            raise PrivacyError("the charge states that its noise is secret, but the key is a fixed one.")
        if name != charge.id:
            raise PrivacyError("the charge is for other records, settings or software, whose noise must not be reused.")
        self._left, self._drawn = set(range(first, sampler.releases)), set[int]()
        if self._left and not charge.on_disk():
            raise PrivacyError(f"the charge {charge.id} is not in a ledger on disk, so nothing is released.")
        self.sampler, self.sigma, self._key, self._branch, self._lock = sampler, float(sigma), key, charge.id, Lock()
        self._early: tuple[tuple[int, int, float], Future[Floats]] | None = None

    @property
    def left(self) -> int:
        """The number of charged releases that remain."""
        return len(self._left)

    def stream(self, purpose: str, step: int, *, rank: int = 0) -> Stream:
        """Return the charge's random stream for one use other than noise, which never leaves the gate."""
        if purpose == "noise":
            raise PrivacyError("only the gate may draw noise.")
        return self._key.stream(purpose, step=step, rank=rank, branch=self._branch)

    def draw(self, step: int, units: int, *, rank: int = 0, ranks: int = 1) -> NDArray[np.int64]:
        """Draw which of this rank's units take part in a step; each unit belongs to one rank."""
        assert isinstance(self.sampler, PoissonSampler)
        rng = self.stream("sampling", step, rank=rank)
        return rank + ranks * self.sampler.draw(len(range(rank, units, ranks)), rng)

    def draw_ahead(self, number: int, size: int, sensitivity: float) -> None:
        """Draw the noise of release `number` in a thread, while its sum of `size` numbers is computed.

        It stays in the gate, for that release alone. If the sum turns out to have another size or sensitivity, this
        draw is discarded, and `noisy` draws fitting noise from the same stream.
        """
        stream, thread = self._noise_stream(number), ThreadPoolExecutor(1)
        drawn = thread.submit(noise.draw, size, stream, sensitivity=sensitivity, sigma=self.sigma)
        thread.shutdown(wait=False)  # it ends when the noise is drawn
        with self._lock:
            self._early = (number, size, sensitivity), drawn

    def _noise_stream(self, number: int) -> Stream:
        return self._key.stream("noise", step=number, branch=self._branch)

    def next(self, bounded: BoundedSum) -> Floats:
        """Return the noisy sum of the next release."""
        if not self._left:
            raise PrivacyError(f"all {self.sampler.releases} releases that were charged are done.")
        return self.noisy(bounded, min(self._left))

    def noisy(self, bounded: BoundedSum, number: int, *, releases: range | None = None) -> Floats:
        """Return the sum with noise of standard deviation sigma times its sensitivity in each coordinate.

        `number` names the noise. The array is that release, or its rows are the releases numbered in `releases`.
        """
        wanted = set(releases or (number,))
        with self._lock:
            if not wanted <= self._left:
                raise PrivacyError(
                    f"release {min(wanted - self._left)} is done or was not charged; {self.left} remain."
                )
            if number in self._drawn:
                raise PrivacyError(f"noise {number} was used already: using it twice would reveal a difference.")
            self._left -= wanted
            self._drawn.add(number)
            early, self._early = self._early, None
        use = (number, bounded.total.size, bounded.sensitivity)
        ahead = {"drawn": early[1].result()} if early is not None and early[0] == use else {}
        stream = self._noise_stream(number)
        return noise.add_noise(bounded.total, stream, sensitivity=bounded.sensitivity, sigma=self.sigma, **ahead)


def secret_name(key: Key, purpose: str, what: str, arrays: Iterable[NDArray[Any]]) -> str:
    """Return the name of the noise and of the charge for applying `what`, a description of settings, to the arrays.

    It is a keyed digest of everything that shapes the result. With a fresh key it is always new; with a fixed key, the
    same inputs get the same noise and are charged once, and all other inputs are charged separately.
    """
    digest = hashlib.blake2b(what.encode(), digest_size=32)
    for array in arrays:
        digest.update(str(array.shape).encode())
        digest.update(array.data)
    return key.stream(purpose, step=0, branch=digest.hexdigest()).words(2).tobytes().hex()
