"""How near mixtures of two records come to records of other classes (minimum Euclidean distance).

Mixing two records teaches a model nothing false where the mixture is far from records of a third class (Chidambaram et
al. 2021: no approximate collinearity). For rows of length at most 1, draw pairs of distinct records and take

    d_t = min over records z of another class than x and x' of | (x + x') / 2 - z |.

The mean of d_t is one number for a set of features; the least of them is the radius within which all is well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError

AT_A_TIME = 512


def distances_to_others(rows: Any, labels: Any, *, pairs: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """d_t of `pairs` pairs; infinite where there is no third class. float32 rows: right to about 3e-4 near 0."""
    x, y = np.asarray(rows), np.asarray(labels)
    if x.ndim != 2 or y.shape != (len(x),) or len(x) < 2 or pairs < 1:
        raise ConfigError(f"rows {x.shape}, labels {y.shape}, {pairs} pairs: 2 rows with labels and a pair are needed.")
    first = rng.integers(len(x), size=pairs)
    second = (first + rng.integers(1, len(x), size=pairs)) % len(x)
    squares = np.einsum("nd,nd->n", x, x)
    results = []
    for start in range(0, pairs, AT_A_TIME):
        i, j = first[start : start + AT_A_TIME], second[start : start + AT_A_TIME]
        mixed = (x[i] + x[j]) / 2
        distance = squares - 2 * (mixed @ x.T) + np.einsum("nd,nd->n", mixed, mixed)[:, None]
        own = (y[i][:, None] == y) | (y[j][:, None] == y)
        results.append(np.sqrt(np.maximum(np.where(own, np.inf, distance).min(1), 0)))
    return np.concatenate(results).astype(np.float64)
