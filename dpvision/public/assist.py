"""Private steps that public gradients assist: what each method gives to the clipped sum, and makes of its noisy mean.

    method       view k of unit i is clip_C of          the step, with g~ the noisy sum over B
    none         g_i                                    g~
    weights      mean_k grad l(w + v_k; view_ik)        g~                                      weight multiplicity
    dope         g_i - g_pub                            g_pub + g~                              DOPE-SGD
    mirror       g_i                                    alpha_t g~ + (1 - alpha_t) g_pub        mirror descent
    adadps       g_i / sqrt(v + floor)                  g~                                      AdaDPS

Formal guarantee: everything here is a function of public images and of weights that noisy sums made, so it is public
itself. It shapes a unit's contribution before the engine clips it, or comes after the noise: the sensitivity is C and
the event that of DP-SGD, whatever the method. Nothing here can clip, sample or add noise.

Papers: weight multiplicity is equation 6 and Algorithm 1 of "Improving private training via in-distribution public data
synthesis and generalization" (its equation 3 for DOPE-SGD has a sign slip and clips a mean; here is Nasr et al. 2023);
mirror descent in its first-order form is Amid et al. 2022; AdaDPS is Li et al. 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpvision.core.clipping import Public
from dpvision.errors import ConfigError

SMALLEST = 1e-12  # gamma: no division by zero
ETA = 0.01  # of the adaptive radius (Kwon et al. 2021)


@dataclass(frozen=True)
class Assisted:
    """What goes into one step's clipped sum, and what is made of its noisy mean."""

    public: Public | None
    finish: Callable[[Tensor], Tensor]
    second: Tensor | None = None  # kept for the steps that follow


def as_it_is(noisy: Tensor) -> Tensor:
    return noisy


ALONE = Assisted(None, as_it_is)


def weight_multiplicity(gradients: Tensor, weights: Tensor, *, radius: float, adaptive: bool = False) -> Assisted:
    """One public gradient for each view; view k is differentiated at w + v_k, uphill for public images."""
    uphill = adaptive_ascent if adaptive else ascent
    return Assisted(Public(perturbations=[uphill(g, weights, radius=radius) for g in gradients]), as_it_is)


def ascent(gradient: Tensor, weights: Tensor, *, radius: float) -> Tensor:
    """v = rho g / (|g| + gamma)."""
    return radius * gradient / (gradient.norm() + SMALLEST)


def adaptive_ascent(gradient: Tensor, weights: Tensor, *, radius: float) -> Tensor:
    """v = rho T^2 g / (|T g| + gamma) with T = |w| + eta: large weights move further (ASAM)."""
    size = weights.abs() + ETA
    return radius * size**2 * gradient / ((size * gradient).norm() + SMALLEST)


def dope(gradient: Tensor) -> Assisted:
    """g_pub + (sum_i clip(g_i - g_pub) + noise) / B."""
    return Assisted(Public(shift=gradient), lambda noisy: gradient.to(noisy) + noisy)


def mirror(gradient: Tensor, *, share: float) -> Assisted:
    """alpha g~ + (1 - alpha) g_pub."""
    return Assisted(None, lambda noisy: share * noisy + (1 - share) * gradient.to(noisy))


def share_of_private(step: int, *, horizon: float) -> float:
    """alpha_t = cos(pi t / (2 K)): the noisy gradient alone at first, the public one alone at t = K."""
    return math.cos(math.pi / 2 * min(1.0, step / horizon))


def adadps(second: Tensor, *, floor: float) -> Assisted:
    """g_i / sqrt(v + floor), clipped.

    The scale has a root mean square of 1, so that C is of the size that it has without it: a factor for all weights
    alike is the learning rate's.
    """
    scale = (second + floor * second.mean() + SMALLEST).rsqrt()
    return Assisted(Public(scale=scale / scale.square().mean().sqrt()), as_it_is)


def second_moment(gradients: Tensor) -> Tensor:
    """v: the mean over public batches of the square of their mean gradient."""
    return gradients.square().mean(0)


def mean_gradient(
    model: torch.nn.Module, loss: Callable[[Tensor, Tensor], Tensor], images: Tensor, targets: Tensor
) -> Tensor:
    """Of a public batch, flat, for the trainable parameters of the model in their order."""
    trained = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        found = torch.autograd.grad(loss(model(images), targets).mean(), trained)
    return torch.cat([g.reshape(-1) for g in found])


@dataclass(frozen=True)
class Moment:
    """What a way may look at before a step: weights that noisy sums made, public gradients there, public numbers."""

    weights: Tensor
    step: int
    settings: Any  # settings.training.Config
    gradients: Callable[[int], Tensor]  # (count, weights): mean gradients of as many public batches
    second: Tensor | None = None


REFRESHED_BY = 16  # public batches that make a second moment, once in an expected pass over the private data


def assist(way: str, at: Moment) -> Assisted:
    """What assists the step, in the way of this name (settings/training.py)."""
    if way not in FORMULAS:
        raise ConfigError(f"there is no formula for assist {way!r}. There are: {', '.join(FORMULAS)}.")
    return FORMULAS[way](at)


def _weights(at: Moment) -> Assisted:
    settings = at.settings
    gradients = at.gradients(settings.views)
    return weight_multiplicity(gradients, at.weights, radius=settings.radius, adaptive=settings.adaptive)


def _mirror(at: Moment) -> Assisted:
    share = share_of_private(at.step, horizon=at.settings.horizon * at.settings.steps)
    return mirror(at.gradients(1)[0], share=share)


def _adadps(at: Moment) -> Assisted:
    second = at.second
    if second is None or at.step % max(1, round(at.settings.n / at.settings.batch)) == 0:
        second = second_moment(at.gradients(REFRESHED_BY))
    return replace(adadps(second, floor=at.settings.floor), second=second)


FORMULAS: dict[str, Callable[[Moment], Assisted]] = {
    "none": lambda _: ALONE,
    "weights": _weights,
    "dope": lambda at: dope(at.gradients(1)[0]),
    "mirror": _mirror,
    "adadps": _adadps,
}
