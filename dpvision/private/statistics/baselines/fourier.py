"""DP-MERF (Harder et al. 2021, arXiv 2002.11603): mean embeddings by random Fourier features, and a generator.

    phi(x) = sqrt(2 / D) ( cos w_1^T x, ..., cos w_{D/2}^T x, sin w_1^T x, ..., sin w_{D/2}^T x ),   w_j ~ N(0, I / l^2)

for which <phi(x), phi(x')> is close to exp(-|x - x'|^2 / (2 l^2)). Its length is 1 for every x, for cos^2 + sin^2 = 1.
What is released, and why its sensitivity is 1: embedding.py. The published code takes l from the median distance of
private rows, at no charge; here it is a public setting, beside rows of length at most 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvision.core.rows import Rows
from dpvision.private.statistics.baselines.embedding import by_class, counts_weight, embedded_sum
from dpvision.private.statistics.baselines.generator import Fitting, generate, require_positive, require_whole
from dpvision.private.statistics.logistic import Noisy


class FourierFeatures:
    """phi, from a public seed."""

    def __init__(self, width: int, *, size: int, length: float, seed: int) -> None:
        drawn = np.random.default_rng([seed, 1]).standard_normal((width, size // 2)) / length
        self._w = {dtype: torch.from_numpy(drawn).to(dtype) for dtype in (torch.float32, torch.float64)}
        self._scale = math.sqrt(2.0 / (2 * (size // 2)))

    def __call__(self, x: Tensor) -> Tensor:
        turned = x @ self._w[x.dtype]
        return self._scale * torch.cat([turned.cos(), turned.sin()], dim=1)


@dataclass(frozen=True)
class Merf:
    """`size` is D, `length` is l; `counts_share` is c^2, which `balanced` spares. The rest: generator.Fitting."""

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
        require_whole(steps=self.steps, batch=self.batch, code=self.code, hidden=self.hidden)
        require_positive(length=self.length, rate=self.rate)
        counts_weight(balanced=self.balanced, counts_share=self.counts_share)

    @property
    def releases(self) -> int:
        return 1

    def check(self, *, width: int) -> None:
        """Any width will do."""

    def make(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, count: int, seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        phi = FourierFeatures(rows.width, size=self.size, length=self.length, seed=seed)
        c = counts_weight(balanced=self.balanced, counts_share=self.counts_share)
        mu, shares = by_class(noisy(embedded_sum(rows, phi, c=c)), classes=rows.classes, c=c, n=n)
        fitting = Fitting(self.steps, self.batch, self.rate, self.code, self.hidden, self.nonnegative)
        return generate(phi, mu, shares, fitting, width=rows.width, count=count, seed=seed)
