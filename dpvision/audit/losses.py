"""Who was in the data, by a model's losses (Yeom et al. 2018): members have smaller ones where a model remembers them.

    AUC = P[ loss of a member < loss of another ] + P[ equal ] / 2

which is 1/2 where losses tell nothing, and 1 where a threshold tells members from others without an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import rankdata

from dpvision.errors import ConfigError

Floats = NDArray[np.float64]


def cross_entropies(scores: Any, labels: Any) -> Floats:
    """-log softmax(scores)[label] of each record: (N, K) scores and N classes."""
    z, y = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    return np.asarray(logsumexp(z, axis=1)) - z[np.arange(len(z)), y]


def membership_auc(members: Any, others: Any) -> float:
    """Exact, by ranks: of all pairs, in how many the member's loss is smaller; a tie is half a pair."""
    inside, outside = _losses("members", members), _losses("others", others)
    ranks = rankdata(np.concatenate([outside, inside]))[: len(outside)]  # ties share their mean rank
    pairs = ranks.sum() - len(outside) * (len(outside) + 1) / 2
    return float(pairs / (len(inside) * len(outside)))


def _losses(name: str, values: Any) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found) or np.isnan(found).any():
        raise ConfigError(f"{name} {found.shape}: there must be a loss for each record, none of them NaN.")
    return found
