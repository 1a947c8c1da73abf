"""The one place where sums over private rows meet noise: the releases that were charged, and no more.

Formal guarantee: a `Releases` is made from a charge, which exists only once it is on the disk (ledger.spend), and takes
the noise multiplier and the number of releases from the event in it: there is no other sigma and no other number. Each
release draws its own noise, scaled by the sensitivity that comes with the sum; after `count` of them it refuses.
"""

from __future__ import annotations

from dpvision.core import noise
from dpvision.core.arrays import Floats
from dpvision.core.events import Gaussian
from dpvision.core.keys import Key
from dpvision.core.ledger import Charge
from dpvision.errors import PrivacyError
from dpvision.private.statistics.rows import BoundedSum


class Releases:
    """Noisy sums, one after another, as many as were charged."""

    def __init__(self, charge: Charge, key: Key) -> None:
        if not isinstance(charge.event, Gaussian):
            raise PrivacyError(f"a head is made by releases of every record, but {charge.event} was charged.")
        if key.private != charge.private:
            raise PrivacyError("the charge says whether its noise is secret, and the key says otherwise.")
        self._event, self._branch, self._key = charge.event, charge.id, key
        self._done = 0

    @property
    def left(self) -> int:
        return self._event.count - self._done

    def noisy(self, bounded: BoundedSum) -> Floats:
        """The sum with noise of standard deviation sigma times its sensitivity, in each coordinate."""
        if not self.left:
            raise PrivacyError(f"all of the {self._event.count} releases that were charged are done.")
        stream = self._key.stream("noise", step=self._done, branch=self._branch)
        self._done += 1  # each noise once: the same on two sums would show their difference
        return noise.release(bounded.total, stream, sensitivity=bounded.sensitivity, sigma=self._event.sigma)
