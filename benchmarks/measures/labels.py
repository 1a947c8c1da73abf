"""Values of mixed labels, and how they stand out from the noise (NeuroMixGDP, Fig. 2).

In a row, the label of class k before noise is 1/m times how many records of class k were drawn. With Poisson sampling
all classes come near their share 1/K as m grows (the labels collapse); with hierarchical sampling a class is near 0 or
near its share among those drawn. Noise is N(0, (sigma_y / m)^2), sigma_y = sigma sqrt(1 + lambda^2).

Records of one class are alike here, so their number is drawn at once, from Binomial(records of the class, rate): the
law is that of tossing every coin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpvision.core.sampling import Poisson, Sampler
from dpvision.errors import ConfigError

Floats = NDArray[np.float64]


def mixed_labels(sampler: Sampler, counts: Sequence[int], *, degree: float, rng: np.random.Generator) -> Floats:
    """(rows, K) labels before noise, of `counts` records of each class."""
    records = np.asarray(counts)
    if isinstance(sampler, Poisson):
        return rng.binomial(records, sampler.rate, size=(sampler.rows, len(records))) / degree
    if len(records) != len(sampler.rates):
        raise ConfigError(f"there are counts for {len(records)} classes, and rates for {len(sampler.rates)}.")
    drawn = rng.binomial(records, sampler.rates, size=(sampler.rows, len(records)))
    return np.where(sampler.table, drawn, 0) / degree


def label_noise(sigma: float, *, degree: float, balance: float = 1.0) -> float:
    """The standard deviation of what is added to a released label."""
    return sigma * math.hypot(1.0, balance) / degree


def histogram(values: Floats, edges: Floats) -> Floats:
    """Shares of all values between neighbouring edges; those beyond the ends are in the outermost."""
    inside = np.clip(values.ravel(), edges[0], edges[-1])
    return np.histogram(inside, edges)[0] / inside.size


def signal_to_noise(labels: Floats, noise: float) -> float:
    """The standard deviation of labels before noise, over that of the noise."""
    return float(labels.std() / noise)
