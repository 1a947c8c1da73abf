"""The Inception score (Salimans et al. 2016): sure of each image's class, and all classes alike.

    IS = exp( mean over images of KL( p(y|x) || p(y) ) ),    p(y) the mean of p(y|x) over the images of a part

It is 1 where every image is judged alike, and at most the number of classes. It never looks at real images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError

PARTS = 10


def inception_score(probabilities: Tensor, *, parts: int = PARTS) -> tuple[float, float]:
    """Mean and deviation over `parts` equal parts of (N, classes) probabilities, as is the custom.

    Parts are taken as the images lie, so images that are sorted by class must be mixed first.
    """
    p = probabilities.double()
    if p.dim() != 2 or not bool((p >= 0).all()) or not torch.allclose(p.sum(1), p.new_ones(len(p)), atol=1e-4):
        raise ConfigError("the Inception score needs rows of probabilities, each with a sum of 1.")
    if not 1 <= parts <= len(p):
        raise DataError(f"{len(p)} images can not be cut into {parts} parts. Fix: more images.")
    scores = torch.stack([_score(part) for part in p.tensor_split(parts)])
    return float(scores.mean()), float(scores.std(correction=0))


def _score(p: Tensor) -> Tensor:
    """sum_y p log p is 0 where p is 0."""
    return (torch.xlogy(p, p) - torch.xlogy(p, p.mean(0))).sum(1).mean().exp()
