"""The clipped sum of per-unit gradients, in one forward and one backward pass over all views.

    sum_u clip_C( scale * mean_k grad l(w + v_k; view_uk, target_uk) - shift )

Formal guarantee: `ClippedSum` returns that sum. Adding or removing one unit moves it by at most `sensitivity` in
Euclidean norm (within noise.ARITHMETIC_SLACK for float32 norms and the grid), whatever the unit's images and labels
are: a unit's contribution is a function of that unit alone, it is scaled by its own norm, and sums are exact
(exact.py). Weights, `scale`, `shift` and the perturbations v_k must be public.

    edge case                      behaviour
    empty batch                    zeros
    NaN or Inf in a unit           that unit contributes zero, and nobody is told
    zero gradient                  contributes zero (minus the shift, clipped)
    a person with many images      averaged first, over several passes if need be; clipped once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpvision.errors import ConfigError
from dpvision.mechanism.clip import rules
from dpvision.mechanism.clip.cut import Cut, groups
from dpvision.mechanism.clip.memory import keep_freed_memory
from dpvision.mechanism.clip.seen import Watch
from dpvision.mechanism.clip.slots import Slots
from dpvision.mechanism.clip.styles import Flat, Style
from dpvision.mechanism.clip.trace import Data, Pass, plain

assert rules  # importing them registers them

# (outputs of the model, targets) -> one loss per image.
Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor, Sequence[int]]


@dataclass(frozen=True)
class Public:
    """Public vectors that shape a contribution, each flat and as long as all trainable parameters together."""

    scale: Tensor | None = None  # a diagonal preconditioner, applied first
    shift: Tensor | None = None  # taken off each unit's gradient before clipping
    perturbations: Sequence[Tensor] = ()  # one per view: view k is differentiated at w + v_k


class ClippedSum:
    """sum over units of clip(mean over views of the gradient), for the trainable parameters of `model`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        clip: float | Style,
        physical: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        from dpvision.mechanism.clip.safety import refuse_unsafe

        refuse_unsafe(model)
        keep_freed_memory()
        self._model, self._loss, self._watch = model, loss, watch
        self._style: Style = Flat(float(clip)) if isinstance(clip, int | float) else clip
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ConfigError("the model has no trainable parameter. Fix: requires_grad_() on what is to be trained.")
        self._names = list(self._parameters)
        self._bounds = self._style.bounds(self._names)
        self._sizes = [p.numel() for p in self._parameters.values()]
        self._channels_last = any(p.dim() == 4 for p in model.parameters())
        self._cut = Cut(physical, self._sizes)
        self._slots: Slots | None = None

    @property
    def sensitivity(self) -> float:
        return self._style.sensitivity

    @property
    def size(self) -> int:
        return sum(self._sizes)

    @property
    def part(self) -> int:
        """How many units to fetch at a time."""
        return self._cut.part

    def __call__(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public | None = None) -> Tensor:
        """`views[u]` consecutive images belong to unit u; the result is one flat float64 vector."""
        return self.sum([(images, targets, views)], public)

    @torch.no_grad()
    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor:
        """The same over parts of a batch that are fetched one after the other."""
        public = public or Public()
        for images, targets, views in batches:
            for units, slots in self._passes(images, targets, views, public):
                self._add(units, slots)
        if self._slots is None:
            return torch.zeros(self.size, dtype=torch.float64, device=next(iter(self._parameters.values())).device)
        return self._slots.take()

    @torch.no_grad()
    def gradients(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public | None = None) -> Tensor:
        """(units, size) of gradients that are neither clipped nor noised: for tests and the operator, never to release."""
        found = []
        for units, slots in self._passes(images, targets, views, public or Public()):
            for slot in slots.values():
                slot.transform(units, None, None)
            found.append(torch.cat([slot.rows(units).flatten(1) for slot in slots.values()], dim=1))
        return torch.cat(found)

    @torch.no_grad()
    def inner_products(
        self, images: Tensor, targets: Tensor, views: Sequence[int], direction: Tensor, public: Public | None = None
    ) -> Tensor:
        """<gradient, direction> of each unit in float64, before clipping: private, never to release as it is."""
        parts = direction.double().split(self._sizes)
        found = []
        for units, slots in self._passes(images, targets, views, public or Public()):
            found.append(sum(s.inner(units, d) for s, d in zip(slots.values(), parts, strict=True)))
        return torch.cat(found)  # type: ignore[arg-type]

    def _add(self, units: int, slots: Slots) -> None:
        """Clip and add to the total."""
        squares = slots.squares(units)
        norms = squares.sum(1).sqrt()
        bad = ~torch.isfinite(norms)
        factors = _never_half_way(self._style.factors(squares, self._names)).masked_fill(bad.unsqueeze(1), 0.0)
        for column, slot in enumerate(slots.values()):
            slot.add(factors[:, column], bad)
        if self._watch:
            self._watch(self._losses, norms, self.sensitivity)

    def _passes(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public) -> Any:
        """For each group of units that is worked on together: (number of units, slots with their gradients)."""
        views = [int(v) for v in views]
        if any(v < 1 for v in views) or sum(views) != len(images) or len(targets) != len(images):
            raise ConfigError(
                f"{len(images)} images and {len(targets)} targets can not be the views {views[:8]} of {len(views)} units: "
                "every unit needs at least one, and they must add up."
            )
        if not views:
            return
        copies = len(public.perturbations)
        if copies and set(views) != {copies}:
            raise ConfigError(f"there are {copies} perturbations, so every unit must have {copies} views.")
        values = self._values(public)
        self._cut.measure(lambda: self._saved_bytes(values[0], images, targets))
        most = self._cut.images
        ends = list(accumulate(views, initial=0))
        for first, last in groups(views, self._cut.units(copies or 1), most):
            start, stop, own = ends[first], ends[last], views[first:last]
            slots = self._room(len(own))
            slots.reset()
            losses = []
            if copies:  # view k of every unit at its own weights
                for k, weights in enumerate(values):
                    every = slice(start + k, stop, copies)
                    losses.append(self._one(slots, weights, images[every], targets[every], [1] * len(own), copies, False))
            elif len(own) == 1 and stop - start > most:  # a unit too large for one pass
                for a in range(start, stop, most):
                    piece = slice(a, min(a + most, stop))
                    count = [piece.stop - piece.start]
                    losses.append(self._one(slots, values[0], images[piece], targets[piece], count, own[0], False))
            else:
                every = slice(start, stop)
                few = public.scale is None and public.shift is None
                losses.append(self._one(slots, values[0], images[every], targets[every], own, None, few))
            self._losses = torch.cat(losses)
            if public.scale is not None or public.shift is not None:
                for slot, scale, shift in zip(
                    slots.values(), self._split(public.scale), self._split(public.shift), strict=True
                ):
                    slot.transform(len(own), scale, shift)
            yield len(own), slots

    def _one(
        self,
        slots: Slots,
        weights: dict[str, Tensor],
        images: Tensor,
        targets: Tensor,
        views: list[int],
        divisor: int | None,
        factors: bool,
    ) -> Tensor:
        """One pass: the units' gradients are added to the slots; the losses of the images are returned."""
        current = Pass(slots, views, factors=factors)
        counts = torch.tensor(views, device=images.device)
        share = 1.0 / (counts if divisor is None else torch.full_like(counts, divisor))
        with torch.enable_grad(), current:
            outputs = functional_call(self._model, current.weights(weights), (self._laid_out(images).as_subclass(Data),))
            if not isinstance(outputs, Data) or len(outputs) != len(images):
                raise ConfigError(
                    f"the model must give one row of outputs per image as a tensor, not {type(outputs).__name__}."
                )
            losses = self._loss(plain(outputs), targets)
            if losses.shape != (len(images),):
                raise ConfigError(
                    f"the loss gives shape {tuple(losses.shape)} for {len(images)} images: it must give one number for each. "
                    "Fix: reduction='none'."
                )
            current.backward((losses * share.repeat_interleave(counts).to(losses)).sum())
        return losses.detach()

    def _values(self, public: Public) -> list[dict[str, Tensor]]:
        """The weights at which each view is differentiated."""
        own = {n: p.detach() for n, p in self._parameters.items()}
        shifts = [self._split(v) for v in public.perturbations] or [[None] * len(own)]
        found = []
        for shift in shifts:
            moved = (p if v is None else p + v.view(p.shape).to(p) for p, v in zip(own.values(), shift, strict=True))
            found.append({n: self._laid_out(p) for n, p in zip(own, moved, strict=True)})
        return found

    def _split(self, vector: Tensor | None) -> list[Tensor | None]:
        if vector is None:
            return [None] * len(self._sizes)
        if vector.numel() != self.size or not bool(torch.isfinite(vector).all()):
            raise ConfigError(f"a public vector must have {self.size} finite numbers, one for each trainable weight.")
        return list(vector.reshape(-1).split(self._sizes))

    def _laid_out(self, tensor: Tensor) -> Tensor:
        """Channels last: the convolutions here are a third faster that way."""
        if self._channels_last and tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _room(self, units: int) -> Slots:
        if self._slots is None or self._slots.capacity < units:
            capacity = max(units, self._cut.capacity)
            previous, self._slots = self._slots, Slots(self._parameters, capacity, self._bounds)
            if previous is not None:
                self._slots.inherit(previous)
        return self._slots

    def _saved_bytes(self, weights: dict[str, Tensor], images: Tensor, targets: Tensor) -> int:
        """What a forward pass keeps per image, from blank images: it depends on shapes only."""
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        blank = self._laid_out(torch.zeros_like(images[:1]).repeat(2, *([1] * (images.dim() - 1))))
        current = Pass(Slots({}, 1, {}), [1, 1], factors=False)
        current.slots = Slots(self._parameters, 1, self._bounds)
        held = sum(p.numel() * p.element_size() for p in self._model.parameters())
        with torch.enable_grad(), current, torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            functional_call(self._model, current.weights(weights), (blank.as_subclass(Data),))
        return max(1, sum(sizes.values()) - held) // 2


def _never_half_way(factors: Tensor) -> Tensor:
    """Set the last bit: with an odd factor no product lies half-way between two points of the grid (exact.py)."""
    return (factors.contiguous().view(torch.int64) | 1).view(torch.float64)
