"""One step of descent on a public loss l: plain (SGD), or by the slope at the worst point near the weights (SAM, ASAM).

    SGD     g = grad l(w)
    SAM     g = grad l(w + e),  e = rho h / |h|            h = grad l(w)    Foret et al. 2021; Park et al. 2024, eq. (4)
    ASAM    g = grad l(w + e),  e = rho T^2 h / |T h|      T = |w| + eta for weights, 1 for the rest    Kwon et al. 2021

and in all of them, with decay lambda and momentum mu,

    m <- mu m + g + lambda w,   w <- w - rate m

|h| is the norm over all weights together. Where h is zero, e is zero: such a point is a minimum or a plateau.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

# The loss at the weights as they are, and its gradient.
Slope = Callable[[], tuple[Tensor, list[Tensor]]]
Weights = Mapping[str, Tensor]


def sgd(weights: Weights, momenta: list[Tensor], slope: Slope, *, rate: float, mu: float, decay: float) -> Tensor:
    """w <- w - rate m, with the slope at w. Returns the loss at w, as all of these do."""
    loss, g = slope()
    _descend(weights, momenta, g, rate=rate, mu=mu, decay=decay)
    return loss


def sam(
    weights: Weights, momenta: list[Tensor], slope: Slope, *, rate: float, mu: float, decay: float, rho: float
) -> Tensor:
    """The slope at w + rho h / |h|."""
    loss, h = slope()
    scale = rho / _norm(h)
    g = _slope_at(weights, [scale * one for one in h], slope)
    _descend(weights, momenta, g, rate=rate, mu=mu, decay=decay)
    return loss


def asam(
    weights: Weights,
    momenta: list[Tensor],
    slope: Slope,
    *,
    rate: float,
    mu: float,
    decay: float,
    rho: float,
    eta: float = 0.01,
) -> Tensor:
    """The slope at w + rho T^2 h / |T h|, so that scaling a layer up and the next one down changes nothing."""
    loss, h = slope()
    t = [w.detach().abs() + eta if name.endswith("weight") else torch.ones_like(w) for name, w in weights.items()]
    th = [a * b for a, b in zip(t, h, strict=True)]
    scale = rho / _norm(th)
    g = _slope_at(weights, [scale * a * b for a, b in zip(t, th, strict=True)], slope)
    _descend(weights, momenta, g, rate=rate, mu=mu, decay=decay)
    return loss


def _slope_at(weights: Weights, e: list[Tensor], slope: Slope) -> list[Tensor]:
    """grad l(w + e). The weights get their very bits back: w + e - e would not always be w."""
    before = [w.detach().clone() for w in weights.values()]
    with torch.no_grad():
        for w, by in zip(weights.values(), e, strict=True):
            w.add_(by)
    _, g = slope()
    with torch.no_grad():
        for w, old in zip(weights.values(), before, strict=True):
            w.copy_(old)
    return g


@torch.no_grad()
def _descend(weights: Weights, momenta: list[Tensor], g: list[Tensor], *, rate: float, mu: float, decay: float) -> None:
    for w, m, one in zip(weights.values(), momenta, g, strict=True):
        m.mul_(mu).add_(one).add_(w, alpha=decay)
        w.sub_(m, alpha=rate)


def _norm(h: list[Tensor]) -> Tensor:
    """|h| over all of them, or something tiny in place of zero."""
    return torch.stack([one.norm() for one in h]).norm().clamp(min=torch.finfo(h[0].dtype).tiny)
