"""Precision and recall of synthetic images (Kynkäänniemi et al. 2019), by manifolds of k-nearest-neighbour balls.

A set is taken as the union of balls around its rows, each as large as the distance to the k-th nearest other row:

    precision   the share of synthetic rows inside the real manifold     are they like real ones?
    recall      the share of real rows inside the synthetic manifold     are all kinds of real ones among them?
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality.distances import Progress, nearest, squared

NEIGHBOURS = 3


@dataclass(frozen=True)
class PrecisionRecall:
    precision: float
    recall: float
    neighbours: int


def precision_recall(
    synthetic: Tensor, real: Tensor, *, neighbours: int = NEIGHBOURS, progress: Progress = lambda *_: None
) -> PrecisionRecall:
    """Of two sets of rows; both shares come from one pass over the distances between the sets."""
    if neighbours < 1:
        raise ConfigError(f"{neighbours} neighbours make no ball: at least 1.")
    if min(len(synthetic), len(real)) <= neighbours:
        raise DataError(
            f"precision and recall need more than {neighbours} images of each kind, and there are {len(synthetic)} "
            f"synthetic and {len(real)} real ones. Fix: more images."
        )
    total = 2 * len(synthetic) + len(real)
    of_real = nearest(real, count=neighbours, progress=lambda done, _: progress(done, total))[0][:, -1]
    of_synthetic = nearest(synthetic, count=neighbours, progress=lambda done, _: progress(len(real) + done, total))[0][
        :, -1
    ]
    inside, covered = 0, torch.zeros(len(real), dtype=torch.bool, device=real.device)
    for rows, block in squared(synthetic, real):
        inside += int((block <= of_real).any(1).sum())
        covered |= (block <= of_synthetic[rows, None]).any(0)
        progress(len(real) + len(synthetic) + rows.stop, total)
    return PrecisionRecall(inside / len(synthetic), float(covered.double().mean()), neighbours)
