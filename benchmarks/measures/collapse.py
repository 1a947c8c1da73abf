"""The metric of neural collapse (Papyan et al. 2020): how far features spread in their classes, against between them.

    S_W = mean over records of (x - mean of its class)(..)^T,    S_B = mean over classes of (class mean - mean)(..)^T
    metric = Tr(S_W S_B^+) / K

0 is a class in one point. No matrix of the features' width is made: with D the centred class means over sqrt(K), one a
row, and D = U s V^T, S_B^+ is V s^-2 V^T, and the trace is the mean of |s^-1 V^T (x - mean of its class)|^2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpvision.errors import ConfigError

# Directions along which class means spread less than this, against the most, are rounding.
LEAST = 1e-8
AT_A_TIME = 4096


def collapse(features: Any, labels: Any) -> float:
    """Tr(S_W S_B^+) / K of (N, d) features and their N classes; classes without a record do not count."""
    x, (_, y) = np.asarray(features), np.unique(np.asarray(labels), return_inverse=True)
    if x.ndim != 2 or y.shape != (len(x),) or y.max(initial=0) < 1:
        raise ConfigError(f"features {x.shape}, labels {y.shape}: there must be a label a row, and 2 classes at least.")
    counts = np.bincount(y)
    sums = np.zeros((len(counts), x.shape[1]))
    for part in _parts(len(x)):
        np.add.at(sums, y[part], x[part])
    means = sums / counts[:, None]
    between = (means - sums.sum(0) / len(x)) / np.sqrt(len(counts))
    _, s, v = np.linalg.svd(between, full_matrices=False)
    seen = s > LEAST * s[0]
    if not seen.any():
        raise ConfigError("all classes have the same mean: their collapse has no measure.")
    onto = v[seen].T / s[seen]
    total = sum(float(np.square((x[part] - means[y[part]]) @ onto).sum()) for part in _parts(len(x)))
    return total / len(x) / len(counts)


def _parts(count: int) -> list[slice]:
    return [slice(start, start + AT_A_TIME) for start in range(0, count, AT_A_TIME)]
