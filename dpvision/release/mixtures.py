"""Noisy mixtures of features and labels (NeuroMixGDP, Algorithm 1), a block of rows at a time.

    z_i = ( a x_i, b y_i )          |x_i| <= 1, y_i its class as 0 and 1; a = lambda / sqrt(1 + lambda^2), a^2 + b^2 = 1
    row = sum of z_i over those drawn + N(0, sigma^2)
    x~  = row's features / (a m),  y~ = row's labels / (b m)

which is the paper's noise, sigma_x = sigma / a and sigma_y = sigma / b. Where a schedule gives each row one class, that
class is public: labels need no noise, and a = 1.

Formal guarantee: |z_i| <= 1, so one record more moves a row by at most 1, and only rows for which its own coin showed
heads (sampling.py). `Mixtures` is made from a charge, which exists only once it is on the disk, and refuses a sampler
whose event is not the one charged. m is a public number; a row in which nobody is, is noise.
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
from dpvision.release.sampling import Sampler, Scheduled
from dpvision.release.sums import on_grid, summed

# Rows at a time. It decides which coin and which word of noise is whose: the same key and block give the same bits.
BLOCK = 512


class Mixtures:
    """The rows of one release, once: `blocks` can be gone through a single time."""

    def __init__(self, sampler: Sampler, charge: Charge, key: Key, *, degree: float, balance: float = 1.0) -> None:
        event = charge.event
        if not isinstance(event, PoissonGaussian | ClassScheduled) or event != sampler.event(event.sigma):
            raise PrivacyError(f"{event} was charged, which is not what this sampler does.")
        if key.private != charge.private:
            raise PrivacyError("the charge says whether its noise is secret, and the key says otherwise.")
        if not 0 < balance < math.inf:
            raise ConfigError(f"lambda is {balance!r}: it must be a finite number above 0, such as 1.")
        self.sampler, self._sigma, self._branch, self._key = sampler, event.sigma, charge.id, key
        self.degree = degree
        self.public_labels = isinstance(sampler, Scheduled) and bool((sampler.table.sum(1) == 1).all())
        self.a = 1.0 if self.public_labels else balance / math.hypot(1.0, balance)
        self._begun = False

    def blocks(self, rows: Rows) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """(features, labels) of BLOCK rows each, in order."""
        if self._begun:
            raise PrivacyError("these rows were released already: the same noise twice would show what lies under it.")
        self._begun = True
        b = math.sqrt(1 - self.a**2)
        x = on_grid(rows.x, degree=self.degree, scale=self.a)
        y = on_grid(np.eye(rows.classes, dtype=np.float32)[rows.labels], degree=self.degree, scale=b)
        for number, start in enumerate(range(0, self.sampler.rows, BLOCK)):
            part = range(start, min(start + BLOCK, self.sampler.rows))
            chosen = self.sampler.choose(rows.labels, part, self._key.stream("coins", step=number, branch=self._branch))
            sums = [summed(x, chosen).numpy()]
            if not self.public_labels:
                sums.append(summed(y, chosen).numpy())
            stream = self._key.stream("noise", step=number, branch=self._branch)
            noisy = noise.release(np.hstack(sums, dtype=np.float64), stream, sensitivity=1.0, sigma=self._sigma)
            features = noisy[:, : rows.width] / (self.a * self.degree)
            if isinstance(self.sampler, Scheduled) and self.public_labels:
                labels: NDArray[np.float64] = self.sampler.table[part.start : part.stop].astype(np.float64)
            else:
                labels = noisy[:, rows.width :] / (b * self.degree)
            yield features.astype(np.float32), labels.astype(np.float32)
