"""The specification of a clipped sum, which an engine is compared with, and the ways to bound a unit's gradient.

    sum_u clip_C( scale * mean_k grad l(w + v_k; view_uk, target_uk) - shift )

`clipped_sum` computes exactly that, view by view with ordinary autograd: slow, simple, and short enough to read. The
training engine is tested against it (certify.py). Each style has its own sensitivity:

    flat         g * min(1, C / |g|)                                    sensitivity C
    automatic    g * C / (|g| + stability)                              sensitivity C (Bu et al. 2023)
    per-layer    each layer l separately, to C_l = C / sqrt(layers)     sensitivity sqrt(sum_l C_l^2) = C

The factors depend only on the norms of the unit itself. A unit whose norm is not finite contributes zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpvision.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> one number per image


@dataclass(frozen=True)
class Public:
    """Public vectors that shape a contribution, each flat with one number per trainable weight."""

    scale: Tensor | None = None  # a diagonal preconditioner, applied first
    shift: Tensor | None = None  # subtracted from each unit's gradient before clipping
    perturbations: Sequence[Tensor] = ()  # one per view: view k is differentiated at w + v_k


@dataclass(frozen=True)
class Flat:
    """Flat clipping: scale a gradient whose norm exceeds C down to norm C."""

    bound: float

    def __post_init__(self) -> None:
        _require_bound(self.bound)

    @property
    def sensitivity(self) -> float:
        return self.bound

    def bounds(self, names: Sequence[str]) -> dict[str, float]:
        """Return the largest possible norm of each parameter's part of a contribution."""
        return dict.fromkeys(names, self.bound)

    def factors(self, squares: Tensor, names: Sequence[str]) -> Tensor:
        """Return factors for squared norms of shape (units, parameters), in the same shape."""
        norms = squares.sum(1, keepdim=True).sqrt()
        return (self.bound / norms.clamp(min=self.bound)).expand_as(squares)


@dataclass(frozen=True)
class Automatic(Flat):
    """Automatic clipping: every gradient is scaled to almost norm C, so C and the learning rate become one setting."""

    stability: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not MIN_BOUND <= self.stability < math.inf:
            raise ConfigError(
                f"stability is {self.stability}: it must be at least {MIN_BOUND}, below which norms lose precision."
            )

    def factors(self, squares: Tensor, names: Sequence[str]) -> Tensor:
        norms = squares.sum(1, keepdim=True).sqrt()
        return (self.bound / (norms + self.stability)).expand_as(squares)


class PerLayer:
    """Per-layer clipping: one C divided evenly among all layers, or a bound for each layer by name."""

    def __init__(self, bound: float | Mapping[str, float]) -> None:
        for value in bound.values() if isinstance(bound, Mapping) else [bound]:
            _require_bound(value)
        self._bound = bound if isinstance(bound, int | float) else dict(bound)

    @property
    def sensitivity(self) -> float:
        if isinstance(self._bound, dict):
            return math.sqrt(sum(c * c for c in self._bound.values()))
        return float(self._bound)

    def bounds(self, names: Sequence[str]) -> dict[str, float]:
        layers = list(dict.fromkeys(layer_of(n) for n in names))
        if isinstance(self._bound, dict):
            if set(layers) != set(self._bound):
                wrong = sorted(set(layers) ^ set(self._bound))
                raise ConfigError(
                    f"per-layer bounds must name exactly the trainable layers. Fix: add or remove {wrong[0]!r}."
                )
            return {n: self._bound[layer_of(n)] for n in names}
        return dict.fromkeys(names, self._bound / math.sqrt(len(layers)))

    def factors(self, squares: Tensor, names: Sequence[str]) -> Tensor:
        bounds = self.bounds(names)
        factors: dict[str, Tensor] = {}
        layers = [layer_of(n) for n in names]
        for layer in dict.fromkeys(layers):
            columns = [i for i, other in enumerate(layers) if other == layer]
            bound = bounds[names[columns[0]]]
            norms = torch.stack([squares[:, i] for i in columns], dim=1).sum(1).sqrt()
            factors[layer] = bound / norms.clamp(min=bound)
        return torch.stack([factors[layer] for layer in layers], dim=1)


MIN_BOUND = 1e-12  # below it, squares of float32 numbers lose precision
Style = Flat | Automatic | PerLayer
STYLES: dict[str, Callable[[float], Style]] = {"flat": Flat, "automatic": Automatic, "per-layer": PerLayer}


def layer_of(name: str) -> str:
    """Return the name of the module that owns a parameter."""
    return name.rpartition(".")[0]


def _require_bound(bound: float) -> None:
    if not MIN_BOUND <= bound <= 1 / MIN_BOUND:
        raise ConfigError(f"clip is {bound}: the clipping norm must be between {MIN_BOUND} and 1e12.")


def clipped_sum(
    model: nn.Module, loss: Loss, style: Style, units: Iterable[tuple[Tensor, Tensor]], public: Public | None = None
) -> Tensor:
    """Compute the specified sum over units, given as (images, targets), as one flat float64 vector."""
    public = public or Public()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(sizes), dtype=torch.float64)
    for images, targets in units:
        gradient = mean_gradient(model, loss, images, targets, public.perturbations).double().cpu()
        if public.scale is not None:
            gradient = public.scale.double().cpu() * gradient
        if public.shift is not None:
            gradient = gradient - public.shift.double().cpu()
        parts = gradient.split(sizes)
        squares = torch.stack([part.square().sum() for part in parts])
        if bool(torch.isfinite(squares.sum())):  # otherwise the unit contributes zero
            factors = style.factors(squares.unsqueeze(0), names)[0]
            total += torch.cat([factor * part for factor, part in zip(factors, parts, strict=True)])
    return total


def mean_gradient(
    model: nn.Module, loss: Loss, images: Tensor, targets: Tensor, perturbations: Sequence[Tensor] = ()
) -> Tensor:
    """Return the mean gradient of a unit's views as a flat vector, computed view by view, at w or at w + v_k."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sizes = [p.numel() for p in weights.values()]
    total = torch.zeros(sum(sizes), dtype=images.dtype, device=images.device)
    for view in range(len(images)):
        point: dict[str, Tensor] = dict(weights)
        if len(perturbations):
            moves = perturbations[view].to(total).split(sizes)
            point = {name: p + move.view(p.shape) for (name, p), move in zip(weights.items(), moves, strict=True)}
        with torch.enable_grad():
            outputs = functional_call(model, point, (images[view : view + 1],))
            value = loss(outputs, targets[view : view + 1]).sum()
            gradients = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(weights.values(), gradients, strict=True)]
        total += torch.cat([g.flatten() for g in filled]).to(total) / len(images)
    return total.detach()
