"""Public gradients that assist private steps: what enters the clipped sum, and the step taken with its noisy mean.

    method       what is clipped, for unit i            the step, with g~ the noisy sum divided by B
    none         g_i                                    g~
    weights      mean_k grad l(w + v_k; view_ik)        g~                                      weight multiplicity
    dope         g_i - g_pub                            g_pub + g~                              DOPE-SGD
    mirror       g_i                                    alpha_t g~ + (1 - alpha_t) g_pub        mirror descent
    adadps       g_i / sqrt(v + floor)                  g~                                      AdaDPS

Formal guarantee: everything here is a function of public images and of weights derived from noisy sums, so it is itself
public. It shapes a unit's contribution before the engine clips it, or is applied after the noise. So the sensitivity
is C and the event is that of DP-SGD, whatever the method. Nothing here can clip, sample or add noise.

Papers: weight multiplicity is equation 6 and Algorithm 1 of "Improving private training via in-distribution public data
synthesis and generalization". Its equation 3 for DOPE-SGD has a wrong sign and clips a mean, so DOPE-SGD here follows
Nasr et al. 2023. Mirror descent, in its first-order form, is from Amid et al. 2022, and AdaDPS from Li et al. 2022.
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

GAMMA = 1e-12  # avoids division by zero
ETA = 0.01  # of the adaptive radius (Kwon et al. 2021)


@dataclass(frozen=True)
class Assisted:
    """The public vectors of one step's clipped sum, and the map from its noisy mean to the step."""

    public: Public | None
    finish: Callable[[Tensor], Tensor]
    second: Tensor | None = None  # second moment, reused by the following steps


def unchanged(noisy: Tensor) -> Tensor:
    return noisy


ALONE = Assisted(None, unchanged)


def weight_multiplicity(gradients: Tensor, weights: Tensor, *, radius: float, adaptive: bool = False) -> Assisted:
    """Differentiate view k at w + v_k, where v_k increases the public loss of a separate public batch for each k."""
    perturb = adaptive_ascent if adaptive else ascent
    return Assisted(Public(perturbations=[perturb(g, weights, radius=radius) for g in gradients]), unchanged)


def ascent(gradient: Tensor, weights: Tensor, *, radius: float) -> Tensor:
    """Return the ascent step v = rho g / (|g| + gamma)."""
    return radius * gradient / (gradient.norm() + GAMMA)


def adaptive_ascent(gradient: Tensor, weights: Tensor, *, radius: float) -> Tensor:
    """Return v = rho T^2 g / (|T g| + gamma) with T = |w| + eta, which moves large weights further (ASAM)."""
    size = weights.abs() + ETA
    return radius * size**2 * gradient / ((size * gradient).norm() + GAMMA)


def dope(gradient: Tensor) -> Assisted:
    """Step by g_pub + (sum_i clip(g_i - g_pub) + noise) / B, which clips differences from the public gradient."""
    return Assisted(Public(shift=gradient), lambda noisy: gradient.to(noisy) + noisy)


def mirror(gradient: Tensor, *, share: float) -> Assisted:
    """Step by alpha g~ + (1 - alpha) g_pub, a mean of the noisy and the public gradient."""
    return Assisted(None, lambda noisy: share * noisy + (1 - share) * gradient.to(noisy))


def share_of_private(step: int, *, horizon: float) -> float:
    """Return alpha_t = cos(pi t / (2 K)), from 1 (only the noisy gradient) to 0 at t = K (only the public one)."""
    return math.cos(math.pi / 2 * min(1.0, step / horizon))


def adadps(second: Tensor, *, floor: float) -> Assisted:
    """Divide each g_i by sqrt(v + floor) before it is clipped.

    The scale is normalised to a root mean square of 1, so that about the same C is suitable with and without it; a
    factor common to all weights can be absorbed by the learning rate.
    """
    scale = (second + floor * second.mean() + GAMMA).rsqrt()
    return Assisted(Public(scale=scale / scale.square().mean().sqrt()), unchanged)


def second_moment(gradients: Tensor) -> Tensor:
    """Return v, the mean over public batches of their squared mean gradients."""
    return gradients.square().mean(0)


def mean_gradient(
    model: torch.nn.Module, loss: Callable[[Tensor, Tensor], Tensor], images: Tensor, targets: Tensor
) -> Tensor:
    """Return the mean gradient of a public batch over all trainable parameters in order, as one vector."""
    trained = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss(model(images), targets).mean(), trained)
    return torch.cat([g.reshape(-1) for g in gradients])


@dataclass(frozen=True)
class Moment:
    """Inputs of a method before a step: weights from noisy sums, public gradients at these weights, public numbers."""

    weights: Tensor
    step: int
    settings: Any  # settings.training.Config
    gradients: Callable[[int], Tensor]  # mean gradients of this number of public batches
    second: Tensor | None = None


# Number of public batches for a second moment, which is recomputed after each expected pass over the private data.
SECOND_MOMENT_BATCHES = 16


def assist(method: str, moment: Moment) -> Assisted:
    """Apply the method with this name (settings/training.py) to a step."""
    if method not in FORMULAS:
        raise ConfigError(f"there is no assist method named {method!r}. There are: {', '.join(FORMULAS)}.")
    return FORMULAS[method](moment)


def _weights(moment: Moment) -> Assisted:
    settings = moment.settings
    gradients = moment.gradients(settings.views)
    return weight_multiplicity(gradients, moment.weights, radius=settings.radius, adaptive=settings.adaptive)


def _mirror(moment: Moment) -> Assisted:
    share = share_of_private(moment.step, horizon=moment.settings.horizon * moment.settings.steps)
    return mirror(moment.gradients(1)[0], share=share)


def _adadps(moment: Moment) -> Assisted:
    second = moment.second
    if second is None or moment.step % max(1, round(moment.settings.n / moment.settings.batch)) == 0:
        second = second_moment(moment.gradients(SECOND_MOMENT_BATCHES))
    return replace(adadps(second, floor=moment.settings.floor), second=second)


FORMULAS: dict[str, Callable[[Moment], Assisted]] = {
    "none": lambda _: ALONE,
    "weights": _weights,
    "dope": lambda moment: dope(moment.gradients(1)[0]),
    "mirror": _mirror,
    "adadps": _adadps,
}
