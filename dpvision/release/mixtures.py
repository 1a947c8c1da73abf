"""Noisy mixtures of features and labels (NeuroMixGDP, Algorithm 1), a block of rows at a time.

    z_i = ( a x_i, b y_i )          |x_i| <= 1, y_i its class as 0 and 1; a = lambda / sqrt(1 + lambda^2), a^2 + b^2 = 1
    row = sum of z_i over those drawn + N(0, sigma^2)
    x~  = row's features / (a m),  y~ = row's labels / (b m)

which is the paper's noise, sigma_x = sigma / a and sigma_y = sigma / b. Where a schedule gives each row one class, that
class is public: labels need no noise, and a = 1.

Formal guarantee: |z_i| <= 1 (and 3e-8 for rounding, which noise.ARITHMETIC_SLACK covers), so one record more moves a
row by at most that, and only rows for which its own coin showed heads (sampling.py). Rows come out only for a charge,
which exists only once it is on the disk, of the event that this sampler is, and under the name that `name` gives:
records, sampler, settings and software all shape it. So other records, or other settings, can not come out under the
same noise, and the same ones come out the same. m is a public number; a row in which nobody is, is noise. The unit is
one image: the charge must say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError, PrivacyError
from dpvision.heads.rows import Rows
from dpvision.mechanism import noise
from dpvision.mechanism.streams import Key
from dpvision.privacy.events import ClassScheduled, PoissonGaussian
from dpvision.privacy.ledger import Charge
from dpvision.release.naming import name_of
from dpvision.release.sampling import Sampler, Scheduled
from dpvision.release.sums import on_grid, summed

# Rows at a time. It decides which coin and which word of noise is whose.
BLOCK = 512


class Mixtures:
    """What one release mixes, and how: private rows, the sampler, m and lambda."""

    def __init__(self, rows: Rows, sampler: Sampler, *, degree: float, balance: float = 1.0) -> None:
        if not 0 < balance < math.inf:
            raise ConfigError(f"lambda is {balance!r}: it must be a finite number above 0, such as 1.")
        if not 0 < degree < math.inf:
            raise ConfigError(f"the degree is {degree!r}: it must be a finite number above 0.")
        self.sampler, self.degree, self._rows = sampler, float(degree), rows
        self.public_labels = isinstance(sampler, Scheduled) and bool((sampler.table.sum(1) == 1).all())
        self.a = 1.0 if self.public_labels else balance / math.hypot(1.0, balance)

    def name(self, key: Key) -> str:
        """Of the charge and the noise."""
        return name_of(key, self._rows, f"mixtures {self.degree!r} {self.a!r} {BLOCK} {self.sampler.described}")

    def blocks(self, charge: Charge, key: Key) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """(features, labels) of BLOCK rows each, in order."""
        event, rows, b = charge.event, self._rows, math.sqrt(1 - self.a**2)
        if not isinstance(event, PoissonGaussian | ClassScheduled) or event != self.sampler.event(event.sigma):
            raise PrivacyError(f"{event} was charged, which is not what this sampler does.")
        if key.private != charge.private:
            raise PrivacyError("the charge says whether its noise is secret, and the key says otherwise.")
        if charge.id != self.name(key):
            raise PrivacyError("the charge is for other records, settings or software, and this would use its noise.")
        x = on_grid(rows.x, degree=self.degree, scale=self.a)
        y = on_grid(np.eye(rows.classes, dtype=np.float32)[rows.labels], degree=self.degree, scale=b)
        for number, start in enumerate(range(0, self.sampler.rows, BLOCK)):
            part = range(start, min(start + BLOCK, self.sampler.rows))
            chosen = self.sampler.choose(rows.labels, part, key.stream("coins", step=number, branch=charge.id))
            total = summed(x, chosen)
            if not self.public_labels:
                total = np.hstack([total, summed(y, chosen)])
            stream = key.stream("noise", step=number, branch=charge.id)
            noisy = noise.release(total, stream, sensitivity=1.0, sigma=event.sigma)
            features = noisy[:, : rows.width] / (self.a * self.degree)
            if self.public_labels:
                assert isinstance(self.sampler, Scheduled)
                labels: NDArray[np.float64] = self.sampler.table[part.start : part.stop].astype(np.float64)
            else:
                labels = noisy[:, rows.width :] / (b * self.degree)
            yield features.astype(np.float32), labels.astype(np.float32)
