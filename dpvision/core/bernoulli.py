"""Many coins of small probability, exactly: one random byte each, and a word more for the few that a byte leaves open.

A coin of probability p shows heads when its 72 random bits, read as a number below 1, are below p:

    byte < floor(256 p)                              heads
    byte = floor(256 p) and word < frac(256 p) 2^64  heads
    else                                             tails

Formal guarantee: coins are independent, and each shows heads with a probability of at most p, and at least p - 2^-72.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpvision.core.keys import Stream
from dpvision.errors import ConfigError


def heads(stream: Stream, count: int, *, rate: float) -> NDArray[np.int64]:
    """Which of `count` coins of probability `rate` show heads, ascending."""
    if not 0 <= rate <= 1:
        raise ConfigError(f"the rate is {rate!r}: it must be from 0 to 1.")
    if rate == 1:
        return np.arange(count)
    scaled = Fraction(rate) * 256
    whole = int(scaled)
    threshold = np.uint64(int((scaled - whole) * (1 << 64)))
    bytes_ = stream.words(-(-count // 8)).view(np.uint8)[:count]
    near = np.flatnonzero(bytes_ <= whole)  # almost all coins end here
    open_ = bytes_[near] == whole
    sure = ~open_
    sure[open_] = stream.words(int(open_.sum())) < threshold
    return near[sure]
