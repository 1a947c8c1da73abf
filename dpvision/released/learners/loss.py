"""The generalised Kullback-Leibler divergence, for labels that do not add up to 1 (NeuroMixGDP, Li et al. 2023).

    D(y || p) = sum_k  y_k log(y_k / p_k) - y_k + p_k

p is a softmax, so sum_k p_k = 1, and the gradient in the scores is (sum_k y_k) p - y. Where y_k <= 0, which noise can
make, y_k log y_k is taken to be 0: it does not depend on p.
"""

from __future__ import annotations

import torch
from torch import Tensor


def generalised_kl(scores: Tensor, y: Tensor) -> Tensor:
    """The mean over rows of D(y || softmax(scores))."""
    log_p = torch.log_softmax(scores, dim=1)
    own = torch.xlogy(y.clamp(min=0), y.clamp(min=0))
    return (own - y * log_p - y + log_p.exp()).sum(dim=1).mean()
