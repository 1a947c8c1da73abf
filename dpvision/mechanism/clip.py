"""The clipped sum: every unit's gradient, averaged over its views, is scaled to norm at most C; only the sum leaves.

Formal guarantee: `ClippedSum` returns sum_u clip_C(mean over views k of u of grad l(w; x_k, y_k)) in float64.
Adding or removing one unit moves it by at most `sensitivity` = C in Euclidean norm, whatever the unit's images and
labels are: the gradient of a unit depends on no other unit (vmap computes each alone; modules that mix the examples of
a batch are refused), the norm and the scaling are in float64, and a gradient that is not finite counts as zero.

    edge case                      behaviour
    empty batch                    zeros
    NaN or Inf in a unit           that unit contributes zero, and nobody is told
    zero gradient                  contributes zero (no division by its norm)
    a person with many images      averaged first, in pieces of at most `physical` images; clipped once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from dpvision.errors import ConfigError, UnsafeLayer

Loss = Callable[[Tensor, Tensor], Tensor]
# Called with (losses of the images, norms of the units' gradients, bound); for the operator's eyes.
Watch = Callable[[Tensor, Tensor, float], None]

# Modules that let one example of a batch change what another gives. Checked by class here and by trial in `probe`.
MIXES_EXAMPLES = (nn.modules.batchnorm._BatchNorm,)


class Seen:
    """Tallies for the operator's own log: they depend on private data, are not noised, and must never be released."""

    def __init__(self) -> None:
        self.images = 0  # since the start
        self._losses, self._images, self._units, self._clipped = 0.0, 0, 0, 0

    def __call__(self, losses: Tensor, norms: Tensor, bound: float) -> None:
        self.images += len(losses)
        self._losses += float(losses.nansum())
        self._images += len(losses)
        self._units += len(norms)
        self._clipped += int((norms > bound).sum())

    def flush(self) -> dict[str, float]:
        images, units = self._images, self._units
        tally = {
            "units": units,
            "images": images,
            "mean_loss": self._losses / images if images else 0.0,
            "clipped_share": self._clipped / units if units else 0.0,
        }
        self._losses, self._images, self._units, self._clipped = 0.0, 0, 0, 0
        return tally


class ClippedSum:
    """sum over units of clip_C(mean over views of the gradient), for the trainable parameters of `model`."""

    def __init__(
        self, model: nn.Module, loss: Loss, *, clip: float, physical: int = 256, watch: Watch | None = None
    ) -> None:
        if not clip > 0:
            raise ConfigError(f"clip is {clip}: the bound on a unit's gradient must be above 0.")
        refuse_unsafe(model)
        self.sensitivity = float(clip)
        self.size = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self._model = model
        self._physical = self.part = max(1, physical)  # images worked on, and units to fetch, at a time
        self._watch = watch

        def one_loss(weights: dict[str, Tensor], frozen: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
            output = functional_call(model, (weights, frozen), (image.unsqueeze(0),))
            return loss(output, target.unsqueeze(0))

        self._gradients = vmap(grad_and_value(one_loss), in_dims=(None, None, 0, 0), randomness="error")

    def sum(self, batches: Iterable[tuple[Tensor, Tensor, list[int]]]) -> Tensor:
        """The clipped sum over all batches, of which one at a time is in memory."""
        total = torch.zeros(self.size, dtype=torch.float64)
        for images, targets, views in batches:
            total += self(images, targets, views).cpu()
        return total

    def __call__(self, images: Tensor, targets: Tensor, views: Sequence[int]) -> Tensor:
        """`views[u]` consecutive images belong to unit u; the result is one flat float64 vector."""
        weights = {k: p.detach() for k, p in self._model.named_parameters() if p.requires_grad}
        frozen = {k: p.detach() for k, p in self._model.named_parameters() if not p.requires_grad}
        frozen |= dict(self._model.named_buffers())
        total = torch.zeros(self.size, dtype=torch.float64, device=images.device)
        for units, start, stop in _groups(views, self._physical):
            count = torch.tensor(units, device=images.device)
            owner = torch.repeat_interleave(count)  # the unit of each image
            mean = torch.zeros(len(units), self.size, device=images.device)
            losses: list[Tensor] = []
            for first in range(start, stop, self._physical):
                piece = slice(first, min(first + self._physical, stop))
                parts, loss = self._gradients(weights, frozen, images[piece], targets[piece])
                losses.append(loss)
                flat = torch.cat([g.flatten(1) for g in parts.values()], dim=1)
                own = owner[first - start : first - start + len(flat)]
                mean.index_add_(0, own, flat / count[own].unsqueeze(1))
            total += clipped(mean, self.sensitivity)
            if self._watch:
                self._watch(torch.cat(losses), mean.norm(dim=1), self.sensitivity)
        return total


def clipped(gradients: Tensor, bound: float) -> Tensor:
    """sum_i g_i * min(1, bound / |g_i|) in float64; rows that are not finite count as zero."""
    wide = gradients.double()
    norms = wide.norm(dim=1)
    finite = torch.isfinite(norms)
    factors = torch.where(finite, bound / norms.clamp(min=bound), torch.zeros_like(norms))
    return factors @ torch.where(finite.unsqueeze(1), wide, torch.zeros_like(wide))


def refuse_unsafe(model: nn.Module) -> None:
    """Refuse, by name, the modules that couple examples or keep statistics of the data."""
    for name, module in model.named_modules():
        if isinstance(module, MIXES_EXAMPLES) or getattr(module, "track_running_stats", False):
            raise UnsafeLayer(
                f"{name or 'the model'} ({type(module).__name__}) mixes the examples of a batch or keeps statistics of "
                "them, so clipping one example does not bound its influence. Fix: use GroupNorm instead."
            )


def probe(model: nn.Module, image: Tensor, classes: int) -> None:
    """By trial: change example 1 of a batch of two; if the output of example 0 moves, refuse."""
    generator = torch.Generator().manual_seed(0)
    pair = torch.rand(2, *image.shape, generator=generator).to(image)
    other = pair.clone()
    other[1] = torch.rand(image.shape, generator=generator).to(image) * 3 - 1
    with torch.no_grad():
        first, second = model(pair), model(other)
    if first.shape != (2, classes):
        raise ConfigError(
            f"the model gives outputs of shape {tuple(first.shape)} for 2 images; with {classes} classes it must be "
            f"(2, {classes})."
        )
    if not torch.allclose(first[0], second[0], rtol=1e-4, atol=1e-5):
        raise UnsafeLayer(
            f"the model ({type(model).__name__}) mixes the examples of a batch: changing one image changed the output "
            "for another. Fix: find the layer that looks across the first axis and make it work on each image alone."
        )


def _groups(views: Sequence[int], most: int) -> list[tuple[list[int], int, int]]:
    """Cut the units into groups of at most `most` images (a larger unit stands alone): (views, start, stop)."""
    groups: list[tuple[list[int], int, int]] = []
    ends = np.concatenate([[0], np.cumsum(views, dtype=np.int64)])
    first = 0
    while first < len(views):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + most, side="right")) - 1)
        groups.append(([int(v) for v in views[first:last]], int(ends[first]), int(ends[last])))
        first = last
    return groups
