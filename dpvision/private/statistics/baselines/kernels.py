"""Mean embeddings by two published methods, and a generator for each: DP-MERF and DP-HP.

DP-MERF (Harder et al. 2021, arXiv 2002.11603): mean embeddings by random Fourier features, and a generator.

    phi(x) = sqrt(2 / D) ( cos w_1^T x, ..., cos w_{D/2}^T x, sin w_1^T x, ..., sin w_{D/2}^T x ),   w_j ~ N(0, I / l^2)

for which <phi(x), phi(x')> is close to exp(-|x - x'|^2 / (2 l^2)). Its norm is 1 for every x, since cos^2 + sin^2 = 1.
embedding.py describes what is released and why its sensitivity is 1. The published code computes l from the median
distance of private rows, without a charge; here it is a public setting, for rows of norm at most 1.

DP-HP (Vinaroz et al. 2022, arXiv 2106.05042): mean embeddings by Hermite polynomials, and a generator.

Mehler's formula writes a Gaussian kernel of two numbers as a series in which only a few terms matter:

    exp( -rho / (1 - rho^2) (t - t')^2 ) = sum_c phi_c(t) phi_c(t')
    phi_c(t)^2 = sqrt(1 - rho^2) rho^c H_c(t)^2 / (2^c c!) exp( -2 rho t^2 / (1 + rho) )

They are computed by the recursion of the polynomials H_c, so that nothing overflows:

    phi_{c+1} = sqrt(2 rho / (c + 1)) t phi_c - rho sqrt(c / (c + 1)) phi_{c-1}

At t = t' the series sums to 1, so its first terms form a vector of norm at most 1: |phi(t)| <= 1. For a row x, with
t = s x, there are two kernels:

    sum kernel       ( phi(t_1), ..., phi(t_d) ) / sqrt(d)             the distribution of each feature
    product kernel   phi(t_a) (x) phi(t_b) (x) ... of random features a, b, ...; P of them, each over sqrt(P)

Both embeddings have norm at most 1. Weighted by sqrt(1 - share) and sqrt(share), they form one vector of norm at most
1, which is released as in embedding.py. The published code draws new products in every epoch and releases each of them;
here all products are drawn from the public seed beforehand and are part of a single release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.private.statistics.baselines.embedding import MeanEmbedding
from dpvision.private.statistics.ranges import fraction, positive, whole


class FourierFeatures:
    """The random Fourier features phi, drawn from a public seed."""

    def __init__(self, width: int, *, size: int, length: float, seed: int) -> None:
        w = np.random.default_rng([seed, 1]).standard_normal((width, size // 2)) / length
        self._w = {dtype: torch.from_numpy(w).to(dtype) for dtype in (torch.float32, torch.float64)}
        self._scale = math.sqrt(2.0 / (2 * (size // 2)))

    def __call__(self, x: Tensor) -> Tensor:
        angles = x @ self._w[x.dtype]
        return self._scale * torch.cat([angles.cos(), angles.sin()], dim=1)


@dataclass(frozen=True)
class Merf(MeanEmbedding):
    """DP-MERF. `size` is D and `length` is l; the other settings are those of embedding.MeanEmbedding."""

    title: ClassVar[str] = "DP-MERF"
    rows_are: ClassVar[str] = (
        "made by a network that was fitted to one noisy mean embedding of each class, by random Fourier features"
    )
    size: int = whole(1000, least=2)
    length: float = positive(0.5)
    balanced: bool = False
    counts_share: float = fraction(0.05)
    steps: int = whole(500)
    batch: int = whole(200)
    rate: float = positive(3e-3)
    code: int = whole(10)
    hidden: int = whole(200)
    nonnegative: bool = False

    def phi(self, *, width: int, seed: int) -> FourierFeatures:
        return FourierFeatures(width, size=self.size, length=self.length, seed=seed)


def hermite(t: Tensor, *, order: int, rho: float) -> Tensor:
    """Map a tensor t of shape (...,) to phi_0(t), ..., phi_order(t), of shape (..., order + 1)."""
    terms = [(1 - rho**2) ** 0.25 * torch.exp(-rho / (1 + rho) * t.square())]
    for c in range(order):
        previous = terms[c - 1] if c else torch.zeros_like(t)
        terms.append(math.sqrt(2 * rho / (c + 1)) * t * terms[c] - rho * math.sqrt(c / (c + 1)) * previous)
    return torch.stack(terms, dim=-1)


class HermiteFeatures:
    """The sum kernel, and the product kernel of features chosen at random by a public seed."""

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
    """DP-HP. `order` and `rho` are as above; s is `scale` times sqrt(d), which makes a feature of a unit row about 1.

    There are `products` products of `together` features each, with `share` of the squared norm; products=0 means none.
    The other settings are those of embedding.MeanEmbedding.
    """

    title: ClassVar[str] = "DP-HP"
    rows_are: ClassVar[str] = (
        "made by a network that was fitted to one noisy mean embedding of each class, by Hermite polynomials"
    )
    order: int = whole(8)
    rho: float = fraction(0.5)
    scale: float = positive(1.0)
    products: int = whole(100, least=0)
    together: int = whole(2)
    share: float = fraction(0.2)
    balanced: bool = False
    counts_share: float = fraction(0.05)
    steps: int = whole(500)
    batch: int = whole(200)
    rate: float = positive(3e-3)
    code: int = whole(10)
    hidden: int = whole(200)
    nonnegative: bool = False

    def check(self, *, width: int) -> None:
        if self.products and self.together > width:
            raise ConfigError(f"together is {self.together}, but a row has only {width} features. Fix: a smaller number.")

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
