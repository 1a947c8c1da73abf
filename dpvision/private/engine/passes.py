"""Passes over groups of units: what one thread does, from images to the units' gradients in its own slots."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.stateless import _reparametrize_module

from dpvision.core.clipping import Loss
from dpvision.errors import ConfigError
from dpvision.private.engine.aligned import aligned
from dpvision.private.engine.growth import FEW, MANY, Growth, blank_images
from dpvision.private.engine.slots import Slots
from dpvision.private.engine.trace import Data, Pass, Together, plain

# (outputs of the model, targets) -> one loss per image.
# Losses are computed for a multiple of this many images.
LOSS_ROWS = 64


@dataclass(frozen=True)
class Group:
    """Units that are worked on together. `weights` has one set for all views, or one for each view of a unit."""

    images: Tensor
    targets: Tensor
    views: list[int]
    weights: list[dict[str, Tensor]]
    scales: list[Tensor | None]
    shifts: list[Tensor | None]
    most: int  # images in one pass
    one_view: bool = False  # every unit is one image, by promise

    @property
    def factors(self) -> bool:
        """Whether linear layers may keep factors of gradients: never by what happens to be in a batch."""
        return self.one_view and not self.changed

    @property
    def changed(self) -> bool:
        return self.scales[0] is not None or self.shifts[0] is not None


class Worker:
    """A thread's own slots, and its own shell around the shared parameters: a model cannot be called twice at once."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: dict[str, Tensor],
        bounds: dict[str, float],
        growth: Growth | None = None,
    ) -> None:
        self._growth = growth or Growth()
        shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
        self._model, self._loss = copy.deepcopy(model, shared), loss
        self._parameters, self._bounds = parameters, bounds
        self.channels_last = any(p.dim() == 4 for p in model.parameters())
        self._slots: Slots | None = None

    def twin(self) -> Worker:
        return Worker(self._model, self._loss, self._parameters, self._bounds, self._growth)

    def gradients(self, group: Group) -> tuple[Slots, Tensor]:
        """The units' gradients, each scaled and shifted as asked for, and the losses of the images."""
        units = len(group.views)
        slots = self._room(units)
        slots.reset()
        copies, count = len(group.weights), len(group.images)
        if copies > 1:  # view k of every unit at its own weights
            ones, together = [1] * units, Together(group.weights, slots)
            losses = [
                self._one(
                    slots,
                    group.weights[k],
                    group.images[k::copies],
                    group.targets[k::copies],
                    ones,
                    copies,
                    together=together,
                )
                for k in range(copies)
            ]
            together.require_empty()
        elif units == 1 and count > group.most:  # a unit too large for one pass
            pieces = [slice(a, min(a + group.most, count)) for a in range(0, count, group.most)]
            losses = [
                self._one(slots, group.weights[0], group.images[p], group.targets[p], [p.stop - p.start], count)
                for p in pieces
            ]
        else:
            losses = [self._one(slots, group.weights[0], group.images, group.targets, group.views, 0, group.factors)]
        if group.changed:
            for slot, scale, shift in zip(slots.values(), group.scales, group.shifts, strict=True):
                slot.transform(units, scale, shift)
        return slots, torch.cat(losses)

    def absorb(self, other: Worker) -> None:
        """Take over what another worker added up."""
        if self._slots is not None and other._slots is not None:
            self._slots.absorb(other._slots)

    def add_to(self, out: Tensor) -> None:
        """Add the slots' totals to one flat vector, and start again at zero."""
        if self._slots is not None:
            self._slots.add_to(out)

    def _one(
        self,
        slots: Slots,
        weights: dict[str, Tensor],
        images: Tensor,
        targets: Tensor,
        views: list[int],
        divisor: int,
        factors: bool = False,
        together: Together | None = None,
    ) -> Tensor:
        """One pass: the mean over views (or the sum over `divisor`) is added to the slots; the losses are returned."""
        current = Pass(slots, views, self._growth, factors=factors, together=together)
        share = self._share(views, divisor, images.device)
        with torch.enable_grad(), current, ExitStack() as stack:
            inputs = aligned(self.laid_out(images)).as_subclass(Data)
            stack.enter_context(_reparametrize_module(self._model, current.weights(weights), tie_weights=True))
            outputs = self._model(inputs)  # the weights stay until after the backward pass: it may compute parts again
            if not isinstance(outputs, Data) or len(outputs) != len(images):
                raise ConfigError(
                    f"the model must give one row of outputs per image as a tensor, not {type(outputs).__name__}."
                )
            losses = self._losses(plain(outputs), targets)
            current.backward((losses * share.to(losses)).sum())
        return losses.detach()

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per image, of whole vectors of rows: kernels may round what is left over at the end differently.

        Blank rows get the first target, and their losses are dropped.
        """
        count, more = len(outputs), -len(outputs) % LOSS_ROWS
        outputs = torch.cat([outputs, outputs.new_zeros(more, *outputs.shape[1:])])
        targets = torch.cat([targets, targets[:1].expand(more, *targets.shape[1:])])
        losses = self._loss(outputs, targets)
        if losses.shape != (count + more,):
            raise ConfigError("the loss must give one number for each image. Fix: reduction='none'.")
        return losses[:count]

    @staticmethod
    def _share(views: list[int], divisor: int, device: torch.device) -> Tensor:
        """What each image counts in its unit's mean."""
        if divisor:
            return torch.tensor(1.0 / divisor, dtype=torch.float64, device=device)
        counts = torch.tensor(views, dtype=torch.float64, device=device)
        return (1.0 / counts).repeat_interleave(counts.long())

    def laid_out(self, tensor: Tensor) -> Tensor:
        """Channels last: the convolutions here are a third faster that way.

        The strides are set even where an axis of length 1 leaves them open: kernels are chosen by them.
        """
        if not self.channels_last or tensor.dim() != 4:
            return tensor
        _, channels, height, width = tensor.shape
        strides = (channels * height * width, 1, width * channels, channels)
        return tensor.contiguous(memory_format=torch.channels_last).as_strided(tensor.shape, strides)

    def _room(self, units: int) -> Slots:
        if self._slots is None or self._slots.capacity < units:
            previous, self._slots = self._slots, Slots(self._parameters, units, self._bounds)
            if previous is not None:
                self._slots.inherit(previous)
        return self._slots

    def saved_bytes(self, weights: dict[str, Tensor], like: Tensor) -> int:
        """What a forward pass keeps per image, from blank images: it depends on shapes only."""
        self._growth.clear()
        few, many = (self._saved_by(weights, like, images) for images in (FEW, MANY))
        self._growth.require_images_first()
        return max(1, many - few) // (MANY - FEW)

    def _saved_by(self, weights: dict[str, Tensor], like: Tensor, images: int) -> int:
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        blank = self.laid_out(blank_images(images, like))
        current = Pass(Slots(self._parameters, 1, self._bounds), [1] * images, self._growth, measures=True)
        with torch.enable_grad(), current, torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            functional_call(self._model, current.weights(weights), (blank.as_subclass(Data),))
        return sum(sizes.values())


def split(vector: Tensor | None, sizes: Sequence[int]) -> list[Tensor | None]:
    """A public vector by parameter."""
    if vector is None:
        return [None] * len(sizes)
    if vector.numel() != sum(sizes) or not bool(torch.isfinite(vector).all()):
        raise ConfigError(f"a public vector must have {sum(sizes)} finite numbers, one for each trainable weight.")
    return list(vector.detach().reshape(-1).split(list(sizes)))
