"""Random weights of the records in a row (NeuroMixGDP's RW-Mix, Definition 2.2), each record's its own.

    paper       w = Dirichlet(alpha) over those drawn, cut at C_w
    here        w_i = min( G_i / (alpha m), C_w ),  G_i ~ Gamma(alpha, 1)

A Dirichlet is Gammas divided by their total. The total would change all weights when one record more is drawn; so it is
replaced by its expectation alpha m, m the public degree. Weights of a row then add up to 1 on average, not always.

    alpha to 0       few records make up a row              alpha to infinity    every w_i is 1 / m: Avg-Mix
    C_w              one record moves a row by C_w at most; noise is in proportion. Below some 1/m it cuts much

Formal guarantee: w_i depends on nothing but its own word of a secret stream, and 0 <= w_i <= C_w. So a row moves by at
most C_w times the length of the record's row when one record more is drawn, and no other's weight moves. The coins are
as they were, so the rate that is accounted stays: for fixed weights every row is a Gaussian release of sensitivity at
most C_w, and weights that are drawn whatever the data, are a mixture of such, for which the same curve holds (delta is
an average). That the Gammas have their law matters for the mixtures' use, not for privacy.

Cutting at C_w makes the expectation smaller than 1/m, for features and labels alike: `mean` says what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, gammaincinv

from dpvision.core.keys import Stream
from dpvision.errors import ConfigError
from dpvision.private.statistics.sums import WEIGHT_BITS

# Outside of these the inverse of Gamma's distribution is not to be relied upon; 0.05 to 0.5 is usual.
LEAST_ALPHA, MOST_ALPHA = 0.01, 10_000.0


@dataclass(frozen=True)
class RandomWeights:
    """Public numbers: alpha, and C_w as `most`."""

    alpha: float
    most: float

    def __post_init__(self) -> None:
        if not LEAST_ALPHA <= self.alpha <= MOST_ALPHA:
            raise ConfigError(
                f"alpha of the weights is {self.alpha!r}: it must be from {LEAST_ALPHA:g} to {MOST_ALPHA:,.0f}, "
                "usually 0.05 to 0.5. Fix: for equal weights, leave the weights out."
            )
        if not 0 < self.most <= 1:
            raise ConfigError(
                f"the most weight is {self.most!r}: it must be above 0 and at most 1, such as 4 / degree."
            )

    def shares(self, stream: Stream, count: int, *, degree: float) -> NDArray[np.float64]:
        """`count` draws of w / C_w, from 0 to 1, cut towards 0 to multiples of 2^-WEIGHT_BITS."""
        uniform = (stream.words(count) >> np.uint64(11)) * 2.0**-53
        cut = self._cut(degree)
        share = np.minimum(gammaincinv(self.alpha, uniform), cut) / cut
        return np.asarray(np.floor(share * 2.0**WEIGHT_BITS) * 2.0**-WEIGHT_BITS)

    def mean(self, *, degree: float) -> float:
        """E w, which is 1 / m and less for what is cut off."""
        cut = self._cut(degree)
        return float(gammainc(self.alpha + 1, cut) / degree + self.most * gammaincc(self.alpha, cut))

    def _cut(self, degree: float) -> float:
        """Where G_i is cut: C_w alpha m."""
        return self.most * self.alpha * degree
