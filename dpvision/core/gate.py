"""The only way out for private records: a bounded sum goes in, a noisy sum comes out, once.

Formal guarantee: over its life a `Gate` gives out exactly what `charge.event` describes, and nothing else.

  1. It cannot be made without a charge that is on the disk: the ledger is read again, and must have this very charge.
  2. The charge's event must be what the sampler itself states, with the noise multiplier of the charge.
  3. The key must be secret where the charge states so. (A run that began with a fixed key stays marked as not private.)
  4. Noise is scaled to the sensitivity that comes with each sum, from the code that bounds what is summed. Each release
     in `first` .. `sampler.releases` - 1 is given once, and so is each noise: the same on two sums would reveal their
     difference.
  5. Streams are named by the charge's id, which names everything that shapes the result (state.branch_name,
     `secret_name`): other data, settings or software cannot come out under the same noise.

    edge case                      behaviour
    nobody is drawn                the sum is zero; noise only
    nothing was charged            a gate for no releases at all, which returns nothing
    a sum that is not finite       refused by noise.add_noise, and its number is used up
    several threads                each number is still given once
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
        """`name` is what the caller computes from its own records, settings and software: it must be the charge's id.
        `first` is the number of the first release that this charge pays for."""
        sigma = getattr(charge.event, "sigma", 1.0)
        runs = sampler.event(sigma, first=first)
        if charge.event != runs:
            raise PrivacyError(f"the ledger was charged for {charge.event}, but this would do {runs}.")
        if charge.private and not key.private:
            raise PrivacyError("the charge states that its noise is secret, but the key is a fixed one.")
        if name != charge.id:
            raise PrivacyError("the charge is for other records, settings or software, and this would use its noise.")
        self._left, self._drawn = set(range(first, sampler.releases)), set[int]()
        if self._left and not charge.on_disk():
            raise PrivacyError(f"the charge {charge.id} is not in a ledger on the disk, so nothing is released.")
        self.sampler, self.sigma, self._key, self._branch, self._lock = sampler, float(sigma), key, charge.id, Lock()
        self._early: tuple[tuple[int, int, float], Future[Floats]] | None = None

    @property
    def left(self) -> int:
        """The number of releases that were charged and are still to come."""
        return len(self._left)

    def stream(self, purpose: str, step: int, *, rank: int = 0) -> Stream:
        """Random words of one use, of this charge alone: for units, views and weights. Noise never leaves the gate."""
        if purpose == "noise":
            raise PrivacyError("noise is drawn by the gate alone.")
        return self._key.stream(purpose, step=step, rank=rank, branch=self._branch)

    def draw(self, step: int, units: int, *, rank: int = 0, ranks: int = 1) -> NDArray[np.int64]:
        """Which of this rank's units take part in a step: each unit belongs to one rank."""
        assert isinstance(self.sampler, PoissonSampler)
        rng = self.stream("sampling", step, rank=rank)
        return rank + ranks * self.sampler.draw(len(range(rank, units, ranks)), rng)

    def draw_ahead(self, number: int, size: int, sensitivity: float) -> None:
        """Draw the noise of release `number` in a thread, while its sum of `size` numbers is computed.

        It stays in the gate, and `noisy` uses it for that release alone. A sum of another size or sensitivity gets the
        noise that fits it, from the same stream, and what was drawn here is dropped.
        """
        stream, thread = self._noise_stream(number), ThreadPoolExecutor(1)
        drawn = thread.submit(noise.draw, size, stream, sensitivity=sensitivity, sigma=self.sigma)
        thread.shutdown(wait=False)  # it ends when the noise is drawn
        with self._lock:
            self._early = (number, size, sensitivity), drawn

    def _noise_stream(self, number: int) -> Stream:
        return self._key.stream("noise", step=number, branch=self._branch)

    def next(self, bounded: BoundedSum) -> Floats:
        """The next noisy sum, for releases that come one after the other."""
        if not self._left:
            raise PrivacyError(f"all of the {self.sampler.releases} releases that were charged are done.")
        return self.noisy(bounded, min(self._left))

    def noisy(self, bounded: BoundedSum, number: int, *, releases: range | None = None) -> Floats:
        """The sum with noise of standard deviation sigma times its sensitivity, in each coordinate.

        `number` names the noise. The array is that release, or, row by row, those of the numbers in `releases`.
        """
        wanted = set(releases or (number,))
        with self._lock:
            if not wanted <= self._left:
                raise PrivacyError(
                    f"release {min(wanted - self._left)} is done or outside of what was charged; {self.left} are left."
                )
            if number in self._drawn:
                raise PrivacyError(f"the noise of number {number} was used already: twice would reveal a difference.")
            self._left -= wanted
            self._drawn.add(number)
            early, self._early = self._early, None
        use = (number, bounded.total.size, bounded.sensitivity)
        ahead = {"drawn": early[1].result()} if early is not None and early[0] == use else {}
        stream = self._noise_stream(number)
        return noise.add_noise(bounded.total, stream, sensitivity=bounded.sensitivity, sigma=self.sigma, **ahead)


def secret_name(key: Key, purpose: str, what: str, arrays: Iterable[NDArray[Any]]) -> str:
    """A name for the noise and the charge of `what`, settings in words, done to the arrays.

    It is a secret function of everything that shapes the result. With a fresh key it is new each time; with a fixed
    one, the same inputs give the same noise and are charged once, and any other input is charged for itself.
    """
    digest = hashlib.blake2b(what.encode(), digest_size=32)
    for array in arrays:
        digest.update(str(array.shape).encode())
        digest.update(array.data)
    return key.stream(purpose, step=0, branch=digest.hexdigest()).words(2).tobytes().hex()
