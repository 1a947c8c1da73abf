"""Whether a sampler makes an independent draw for every unit and step, at the rate that was charged.

`suspicious` takes who took part in which step, and returns what is not as expected: a unit's rate, the rate of all, the
spread of batch sizes, units that come together (over all, and inside a group), steps that follow each other. It rejects
shuffled epochs, batches of a fixed size, rates of one over the number of batches, classes drawn first, and empty
batches that are drawn again. A sound sampler is suspected with a probability of about 1e-5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

# In standard deviations, and as a probability.
LIMIT, LEAST = 5.2, 1e-6
LAGS = range(1, 9)


def suspicious(took_part: NDArray[Any], rate: float, *, groups: NDArray[np.int64] | None = None) -> list[str]:
    """What is wrong with (steps, units) of who took part, each by a draw of probability `rate`."""
    rows = np.asarray(took_part, dtype=np.float64)
    steps, n = rows.shape
    results = []
    per_unit = (rows.sum(0) - steps * rate) / np.sqrt(steps * rate * (1 - rate))
    if np.abs(per_unit).max() > LIMIT:
        results.append("a unit's rate")
    if abs((rows.mean() - rate) / np.sqrt(rate * (1 - rate) / rows.size)) > LIMIT:
        results.append("the rate")
    # Batch sizes are binomial, not fixed and not clumped.
    spread = ((rows.sum(1) - n * rate) ** 2).sum() / (n * rate * (1 - rate))
    if not LEAST < stats.chi2.sf(spread, steps) < 1 - LEAST:
        results.append("the spread of batch sizes")
    # Units come together no more often than by chance, over all and inside a group; no unit follows itself.
    centred = (rows - rate) / np.sqrt(rate * (1 - rate))
    together = (centred.T @ centred) / np.sqrt(steps)
    upper = np.triu_indices(n, 1)
    if abs(together[upper].sum() / np.sqrt(len(upper[0]))) > LIMIT:
        results.append("pairs")
    if groups is not None:
        same = (groups[:, None] == groups[None, :])[upper]
        if same.any() and abs(together[upper][same].sum() / np.sqrt(same.sum())) > LIMIT:
            results.append("pairs inside a group")
    for lag in LAGS:
        if abs((centred[:-lag] * centred[lag:]).sum() / np.sqrt(centred[lag:].size)) > LIMIT:
            results.append(f"steps {lag} apart")
    return results
