"""DP-HP (Vinaroz et al. 2022, arXiv 2106.05042): mean embeddings by Hermite polynomials, and a generator.

Mehler's formula writes a Gaussian kernel of two numbers as a series, of which few terms matter:

    exp( -rho / (1 - rho^2) (t - t')^2 ) = sum_c phi_c(t) phi_c(t')
    phi_c(t)^2 = sqrt(1 - rho^2) rho^c H_c(t)^2 / (2^c c!) exp( -2 rho t^2 / (1 + rho) )

computed by the recursion of the polynomials H_c, so that nothing overflows:

    phi_{c+1} = sqrt(2 rho / (c + 1)) t phi_c - rho sqrt(c / (c + 1)) phi_{c-1}

At t = t' the series is 1, so its first terms have length at most 1: |phi(t)| <= 1. Of a row x, with t = s x:

    sum kernel       ( phi(t_1), ..., phi(t_d) ) / sqrt(d)             the distribution of each feature
    product kernel   phi(t_a) (x) phi(t_b) (x) ... of random features a, b, ...; P of them, each over sqrt(P)

Both have length at most 1; with weights of squares 1 - share and share they make one vector of length at most 1, which
is released as in embedding.py. The published code draws other products in every epoch and releases each of them; here
all products are drawn from the public seed beforehand and are in the one release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.private.statistics.baselines.embedding import (
    MeanEmbedding,
    require_between_0_and_1,
    require_positive,
    require_whole,
)


def hermite(t: Tensor, *, order: int, rho: float) -> Tensor:
    """(...,) -> (..., order + 1): phi_0(t), ..., phi_order(t)."""
    terms = [(1 - rho**2) ** 0.25 * torch.exp(-rho / (1 + rho) * t.square())]
    for c in range(order):
        previous = terms[c - 1] if c else torch.zeros_like(t)
        terms.append(math.sqrt(2 * rho / (c + 1)) * t * terms[c] - rho * math.sqrt(c / (c + 1)) * previous)
    return torch.stack(terms, dim=-1)


class HermiteFeatures:
    """The sum kernel, and products of randomly chosen features, from a public seed."""

    def __init__(
        self, width: int, *, order: int, rho: float, scale: float, products: int, together: int, share: float, seed: int
    ) -> None:
        rng = np.random.default_rng([seed, 2])
        chosen = [rng.choice(width, size=together, replace=False) for _ in range(products)]
        self._chosen = torch.from_numpy(np.array(chosen, dtype=np.int64).reshape(products, together))
        self._order, self._rho, self._scale, self._share = order, rho, scale, share if products else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        terms = hermite(self._scale * x, order=self._order, rho=self._rho)  # (N, d, order + 1)
        parts = [math.sqrt((1 - self._share) / x.shape[1]) * terms.flatten(1)]
        if self._share:
            product = terms[:, self._chosen[:, 0]]
            for column in self._chosen.T[1:]:
                product = (product.unsqueeze(-1) * terms[:, column].unsqueeze(-2)).flatten(2)
            parts.append(math.sqrt(self._share / len(self._chosen)) * product.flatten(1))
        return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class Hermite(MeanEmbedding):
    """`order` and `rho` as above; s is `scale` times sqrt(d), with which a feature of a row of length 1 is about 1.

    There are `products` of `together` features each, with `share` of the squared length; none with products=0.
    The other settings are those of embedding.MeanEmbedding.
    """

    title: ClassVar[str] = "DP-HP"
    rows_are: ClassVar[str] = (
        "made by a network that was fitted to one noisy mean embedding of each class, by Hermite polynomials"
    )
    order: int = 8
    rho: float = 0.5
    scale: float = 1.0
    products: int = 100
    together: int = 2
    share: float = 0.2
    balanced: bool = False
    counts_share: float = 0.05
    steps: int = 500
    batch: int = 200
    rate: float = 3e-3
    code: int = 10
    hidden: int = 200
    nonnegative: bool = False

    def __post_init__(self) -> None:
        require_whole(0, products=self.products)
        require_whole(order=self.order, together=self.together)
        require_positive(scale=self.scale)
        require_between_0_and_1(rho=self.rho, share=self.share)
        super().__post_init__()

    def check(self, *, width: int) -> None:
        if self.products and self.together > width:
            raise ConfigError(f"together is {self.together}, but a row has {width} features.")

    def phi(self, *, width: int, seed: int) -> HermiteFeatures:
        return HermiteFeatures(
            width,
            order=self.order,
            rho=self.rho,
            scale=self.scale * math.sqrt(width),
            products=self.products,
            together=self.together,
            share=self.share,
            seed=seed,
        )
