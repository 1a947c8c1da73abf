"""DP-MERF (Harder et al. 2021, arXiv 2002.11603): mean embeddings by random Fourier features, and a generator.

    phi(x) = sqrt(2 / D) ( cos w_1^T x, ..., cos w_{D/2}^T x, sin w_1^T x, ..., sin w_{D/2}^T x ),   w_j ~ N(0, I / l^2)

for which <phi(x), phi(x')> is close to exp(-|x - x'|^2 / (2 l^2)). Its length is 1 for every x, for cos^2 + sin^2 = 1.
What is released, and why its sensitivity is 1: embedding.py. The published code takes l from the median distance of
private rows, without a charge; here it is a public setting, for rows of length at most 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dpvision.private.statistics.baselines.embedding import MeanEmbedding, require_positive, require_whole


class FourierFeatures:
    """phi, from a public seed."""

    def __init__(self, width: int, *, size: int, length: float, seed: int) -> None:
        w = np.random.default_rng([seed, 1]).standard_normal((width, size // 2)) / length
        self._w = {dtype: torch.from_numpy(w).to(dtype) for dtype in (torch.float32, torch.float64)}
        self._scale = math.sqrt(2.0 / (2 * (size // 2)))

    def __call__(self, x: Tensor) -> Tensor:
        angles = x @ self._w[x.dtype]
        return self._scale * torch.cat([angles.cos(), angles.sin()], dim=1)


@dataclass(frozen=True)
class Merf(MeanEmbedding):
    """`size` is D and `length` is l; the other settings are those of embedding.MeanEmbedding."""

    title: ClassVar[str] = "DP-MERF"
    rows_are: ClassVar[str] = (
        "made by a network that was fitted to one noisy mean embedding of each class, by random Fourier features"
    )
    size: int = 1000
    length: float = 0.5
    balanced: bool = False
    counts_share: float = 0.05
    steps: int = 500
    batch: int = 200
    rate: float = 3e-3
    code: int = 10
    hidden: int = 200
    nonnegative: bool = False

    def __post_init__(self) -> None:
        require_whole(2, size=self.size)
        require_positive(length=self.length)
        super().__post_init__()

    def phi(self, *, width: int, seed: int) -> FourierFeatures:
        return FourierFeatures(width, size=self.size, length=self.length, seed=seed)
