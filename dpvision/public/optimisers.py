"""Optimisers for a public loss l: SGD, sharpness-aware minimisation (SAM, ASAM), adversarial images (PGD), and Adam.

    SGD     g = grad l(w)
    SAM     g = grad l(w + e),  e = rho h / |h|            h = grad l(w)    Foret et al. 2021; Park et al. 2024, eq. (4)
    ASAM    g = grad l(w + e),  e = rho T^2 h / |T h|      T = |w| + eta for weights, 1 for the rest    Kwon et al. 2021

In all of them, with decay lambda and momentum mu,

    m <- mu m + g + lambda w,   w <- w - rate m

|h| is the joint norm over all weights. If h is zero, so is e, because the point is stationary.

    PGD     x <- clip(x + a sign(grad l(x)))     a = 2.5 r / steps                              Madry et al. 2018

where clip keeps every pixel within r of its original value and in the valid range. Adversarial training, which uses
such images instead of the originals, smooths decision boundaries in image space (Park et al. 2024, appendix E.4, with
r = 8/255 and 2/255).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

LOW, HIGH = -1.0, 1.0  # range of pixel values
ETA = 0.01  # of ASAM
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam

# Returns the loss at the current weights and its gradient.
Evaluate = Callable[[], tuple[Tensor, list[Tensor]]]
Weights = Mapping[str, Tensor]


def sgd(weights: Weights, momenta: list[Tensor], evaluate: Evaluate, *, rate: float, mu: float, decay: float) -> Tensor:
    """Take an SGD step with the gradient at w; return the loss at w."""
    loss, g = evaluate()
    _update(weights, momenta, g, rate=rate, mu=mu, decay=decay)
    return loss


def sam(
    weights: Weights,
    momenta: list[Tensor],
    evaluate: Evaluate,
    *,
    rate: float,
    mu: float,
    decay: float,
    rho: float,
    eta: float | None = None,
) -> Tensor:
    """Take a SAM step with the gradient at w + e; return the loss at w.

    With `eta`, the step is that of ASAM, which is invariant to the scales of layers.
    """
    loss, h = evaluate()
    if eta is None:
        scale = rho / _norm(h)
        e = [scale * tensor for tensor in h]
    else:
        t = [w.detach().abs() + eta if name.endswith("weight") else torch.ones_like(w) for name, w in weights.items()]
        th = [a * b for a, b in zip(t, h, strict=True)]
        scale = rho / _norm(th)
        e = [scale * a * b for a, b in zip(t, th, strict=True)]
    _update(weights, momenta, _gradient_at(weights, e, evaluate), rate=rate, mu=mu, decay=decay)
    return loss


def adversarial_images(
    loss: Callable[[Tensor], Tensor], images: Tensor, *, radius: float, steps: int, start: Tensor | None = None
) -> Tensor:
    """Find images with a large (scalar) `loss` whose pixels differ from the given ones by at most `radius` (PGD).

    The radius is a fraction of the range from black to white, such as 8/255. `start` is the starting point in the cube
    around each image, in coordinates from -1 to 1; the default is the image itself.
    """
    r = radius * (HIGH - LOW)
    low, high = (images - r).clamp(min=LOW), (images + r).clamp(max=HIGH)
    x = images if start is None else torch.clamp(images + r * start, low, high)
    for _ in range(steps):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x), x)
        x = torch.clamp(x.detach() + 2.5 * r / steps * gradient.sign(), low, high)
    return x.detach()


class Adam:
    """Adam (Kingma and Ba 2015), with its entire state accessible, so that a stopped fit resumes exactly.

    m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2, w <- w - rate m^ / (sqrt(v^) + eps) (algorithm 1).
    """

    def __init__(self, network: nn.Module) -> None:
        self.names = [name for name, _ in network.named_parameters()]
        self.weights = list(network.parameters())
        self.first = [torch.zeros_like(w) for w in self.weights]
        self.second = [torch.zeros_like(w) for w in self.weights]

    def gradients(self, loss: Tensor) -> Sequence[Tensor]:
        """Return the gradients of the loss: zero for weights it does not depend on, as of unused augmentations."""
        return torch.autograd.grad(loss, self.weights, materialize_grads=True)

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], *, step: int, rate: float) -> None:
        """Update weights and moments; `step` counts from 1."""
        correct_1, correct_2 = 1 - BETA_1**step, 1 - BETA_2**step
        for w, g, m, v in zip(self.weights, gradients, self.first, self.second, strict=True):
            m.lerp_(g, 1 - BETA_1)
            v.mul_(BETA_2).addcmul_(g, g, value=1 - BETA_2)
            w.addcdiv_(m, (v / correct_2).sqrt_().add_(EPSILON), value=-rate / correct_1)

    def tensors(self) -> dict[str, Tensor]:
        """Return weights and moments by name. They are saved, and a saved state is copied into them."""
        parts: dict[str, list[Tensor]] = {"first": self.first, "second": self.second}
        parts["network"] = list(self.weights)
        return {f"{part}.{name}": t for part, list_ in parts.items() for name, t in zip(self.names, list_, strict=True)}


def _gradient_at(weights: Weights, e: list[Tensor], evaluate: Evaluate) -> list[Tensor]:
    """Return grad l(w + e). The weights are restored from a copy: in floating point, (w + e) - e need not be w."""
    before = [w.detach().clone() for w in weights.values()]
    with torch.no_grad():
        for w, step in zip(weights.values(), e, strict=True):
            w.add_(step)
    _, g = evaluate()
    with torch.no_grad():
        for w, old in zip(weights.values(), before, strict=True):
            w.copy_(old)
    return g


@torch.no_grad()
def _update(weights: Weights, momenta: list[Tensor], g: list[Tensor], *, rate: float, mu: float, decay: float) -> None:
    for w, m, gradient in zip(weights.values(), momenta, g, strict=True):
        m.mul_(mu).add_(gradient).add_(w, alpha=decay)
        w.sub_(m, alpha=rate)


def _norm(h: list[Tensor]) -> Tensor:
    """Return the joint norm of all tensors, or a tiny number in place of zero."""
    return torch.stack([tensor.norm() for tensor in h]).norm().clamp(min=torch.finfo(h[0].dtype).tiny)
