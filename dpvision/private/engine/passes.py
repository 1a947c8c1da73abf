"""Passes over groups of units: the content of a group, its transfer to a device, and the work of one thread.

A worker computes the gradients of a group's units from their images, in one or more passes, and stores them in slots.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.stateless import _reparametrize_module

from dpvision.core.clipping import Loss
from dpvision.errors import ConfigError
from dpvision.private.engine.sinks import SeparateViews
from dpvision.private.engine.slots import Slots
from dpvision.private.engine.trace import FEW, MANY, Data, ImageAxes, Pass, align, blank_images, plain

# On the CPU, losses are computed for a multiple of this many images.
LOSS_ROWS = 64


@dataclass(frozen=True)
class Shape:
    """Inputs that shape all contributions of a sum; `weights` has one set for all views, or one per view of a unit."""

    weights: list[dict[str, Tensor]]
    scales: list[Tensor | None]
    shifts: list[Tensor | None]
    max_images: int  # per pass
    one_view: bool = False  # whether the caller promised one image per unit
    copies: int = 0  # number of perturbations, one per view
    possible: dict[int, bool] = field(default_factory=dict)  # by use of a weight, for all these weights (SeparateViews)
    pinned: list[Tensor] = field(default_factory=list)  # host memory from which a copy may still be running

    @property
    def factors(self) -> bool:
        """Whether linear layers may store factors of gradients; it never depends on the content of a batch."""
        return self.one_view and not self.changed

    @property
    def changed(self) -> bool:
        """Whether gradients are scaled or shifted before they are clipped."""
        return self.scales[0] is not None or self.shifts[0] is not None


@dataclass(frozen=True)
class Group:
    """Units that are processed together; unit e has `views[e]` consecutive images."""

    images: Tensor
    targets: Tensor
    views: list[int]
    shape: Shape
    units: list[int] = field(default_factory=list)  # positions in the batch; blank units follow after these
    real: list[int] = field(default_factory=list)  # for each unit, the number of images before its padding
    shares: Tensor | None = None  # the weight of each image in its unit's mean, if `views` does not determine it
    pinned: list[Tensor] = field(default_factory=list)  # host memory from which a copy may still be running


class Worker:
    """The slots and the modules of one thread, around shared parameters: a model cannot be called twice at once."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: dict[str, Tensor],
        bounds: dict[str, float],
        image_axes: ImageAxes | None = None,
        *,
        bf16: bool = False,
    ) -> None:
        self._image_axes = image_axes or ImageAxes()
        shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
        self._model, self._loss = copy.deepcopy(model, shared), loss
        self._parameters, self._bounds, self._bf16 = parameters, bounds, bf16
        self.channels_last = any(p.dim() == 4 for p in model.parameters())
        self._slots: Slots | None = None

    def twin(self) -> Worker:
        """Return a worker for another thread, with its own slots."""
        return Worker(self._model, self._loss, self._parameters, self._bounds, self._image_axes, bf16=self._bf16)

    def gradients(self, group: Group) -> tuple[Slots, Tensor]:
        """Compute the units' gradients, scaled and shifted if the group requires it, and the images' losses."""
        units, shape = len(group.views), group.shape
        slots = self._slots_for(units)
        slots.reset()
        copies, count = len(shape.weights), len(group.images)
        if copies > 1:  # view k of every unit has its own weights
            ones, separate = [1] * units, SeparateViews(shape.weights, slots, shape.possible)
            parts = [(slice(k, None, copies), weights) for k, weights in enumerate(shape.weights)]
            losses = [self._run(slots, group, w, part, ones, copies, separate_views=separate) for part, w in parts]
            separate.require_empty()
            losses = [torch.stack(losses, dim=1).flatten()] if slots.batched else losses
        elif units == 1 and count > (most := shape.max_images):  # a unit too large for one pass
            pieces = [slice(a, min(a + most, count)) for a in range(0, count, most)]
            losses = [self._run(slots, group, shape.weights[0], p, [p.stop - p.start], count) for p in pieces]
        else:
            losses = [self._run(slots, group, shape.weights[0], slice(None), group.views, 0, shape.factors)]
        if shape.changed:
            for slot, scale, shift in zip(slots.values(), shape.scales, shape.shifts, strict=True):
                slot.transform(units, scale, shift)
        return slots, torch.cat(losses) if len(losses) > 1 else losses[0]

    def possible(self, weights: list[dict[str, Tensor]]) -> dict[int, bool]:
        """Decide for all uses of weights what `SeparateViews` otherwise checks one by one: the host waits only once."""
        uses = self._image_axes.pulled_back
        flags = [possible(*([w[name] for w in weights] for name in names)) for possible, names in uses.values()]
        return dict(zip(uses, torch.stack(flags).tolist(), strict=True)) if flags else {}

    def absorb(self, other: Worker) -> None:
        """Take over the totals of another worker."""
        if self._slots is not None and other._slots is not None:
            self._slots.absorb(other._slots)

    def add_to(self, out: Tensor) -> None:
        """Add the slots' totals to one flat vector, and reset them."""
        if self._slots is not None:
            self._slots.add_to(out)

    def _run(
        self,
        slots: Slots,
        group: Group,
        weights: dict[str, Tensor],
        part: slice,
        views: list[int],
        divisor: int,
        factors: bool = False,
        separate_views: SeparateViews | None = None,
    ) -> Tensor:
        """Run one pass over a part of the group's images, and return the losses.

        The mean gradient over views, or the sum divided by `divisor`, is added to the slots.
        """
        images, targets = group.images[part], group.targets[part]
        current = Pass(slots, views, self._image_axes, factors=factors, separate_views=separate_views, bf16=self._bf16)
        share = self._share(views, divisor, images.device) if group.shares is None else group.shares[part]
        with torch.enable_grad(), current, ExitStack() as stack:
            inputs = align(self.set_layout(images)).as_subclass(Data)
            stack.enter_context(_reparametrize_module(self._model, current.weights(weights), tie_weights=True))
            outputs = self._model(inputs)  # the backward pass below may recompute parts, with the same weights
            if not isinstance(outputs, Data) or len(outputs) != len(images):
                raise ConfigError(
                    f"the model must return one row of outputs per image as a tensor, not {type(outputs).__name__}."
                )
            losses = self._losses(plain(outputs), targets)
            current.backward((losses * share.to(losses)).sum())
        return losses.detach()

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute one loss per image, padding to whole vectors: kernels may round a remainder differently.

        Padded rows get the first target, and their losses are dropped.
        """
        count, more = len(outputs), 0 if outputs.device.type != "cpu" else -len(outputs) % LOSS_ROWS
        if more:
            outputs = torch.cat([outputs, outputs.new_zeros(more, *outputs.shape[1:])])
            targets = torch.cat([targets, targets[:1].expand(more, *targets.shape[1:])])
        losses = self._loss(outputs, targets)
        if losses.shape != (count + more,):
            raise ConfigError("the loss must return one number for each image. Fix: use reduction='none'.")
        return losses[:count]

    @staticmethod
    def _share(views: list[int], divisor: int, device: torch.device) -> Tensor:
        """Return the weight of each image in its unit's mean."""
        if divisor:
            return torch.tensor(1.0 / divisor, dtype=torch.float64, device=device)
        counts = torch.tensor(views, dtype=torch.float64, device=device)
        return (1.0 / counts).repeat_interleave(counts.long())

    def set_layout(self, tensor: Tensor) -> Tensor:
        """Return a tensor in channels-last layout, with which the convolutions here are a third faster.

        Strides are also set where an axis of length 1 leaves them arbitrary, since libraries choose kernels by them.
        """
        if not self.channels_last or tensor.dim() != 4:
            return tensor
        _, channels, height, width = tensor.shape
        strides = (channels * height * width, 1, width * channels, channels)
        return tensor.contiguous(memory_format=torch.channels_last).as_strided(tensor.shape, strides)

    def _slots_for(self, units: int) -> Slots:
        if self._slots is None or self._slots.capacity < units:
            previous, self._slots = self._slots, Slots(self._parameters, units, self._bounds)
            if previous is not None:
                self._slots.inherit(previous)
        return self._slots

    def saved_bytes(self, weights: dict[str, Tensor], like: Tensor) -> int:
        """Measure on blank images how many bytes a forward pass stores per image; it depends on shapes only."""
        self._image_axes.clear()
        few, many = (self._saved_by(weights, like, images) for images in (FEW, MANY))
        self._image_axes.require_images_first()
        return max(1, many - few) // (MANY - FEW)

    def _saved_by(self, weights: dict[str, Tensor], like: Tensor, images: int) -> int:
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        blank = self.set_layout(blank_images(images, like))
        current = Pass(Slots(self._parameters, 1, self._bounds), [1] * images, self._image_axes, measures=True)
        with torch.enable_grad(), current, torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            functional_call(self._model, current.weights(weights), (blank.as_subclass(Data),))
        return sum(sizes.values())


def split(
    vector: Tensor | None, sizes: Sequence[int], mover: Mover, pinned: list[Tensor] | None = None
) -> list[Tensor | None]:
    """Move a public vector to the device and split it by parameter."""
    if vector is None:
        return [None] * len(sizes)
    if vector.numel() != sum(sizes) or not bool(torch.isfinite(vector).all()):
        raise ConfigError(f"a public vector must have {sum(sizes)} finite numbers, one for each trainable weight.")
    return list(mover.move(vector.detach().reshape(-1), pinned).split(list(sizes)))


class Mover:
    """Moves tensors to a device without waiting, from pinned memory that the caller keeps until the copy is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pins = True

    def move(self, values: Tensor, pinned: list[Tensor] | None) -> Tensor:
        """Return a tensor on the device. Memory to keep is appended to `pinned`; if that is None, the host waits."""
        if values.device == self._device or self._device.type == "cpu" or pinned is None:
            return values.to(self._device)
        return self._filled(values, len(values), pinned)

    def group(
        self, batch: tuple[Tensor, Tensor, Sequence[int]], units: list[int], places: int, size: int, shape: Shape
    ) -> Group:
        """Return a full pass: these units of a batch, each padded with its own images, and blank units."""
        images, targets, views = batch
        starts = list(accumulate(views, initial=0))
        real = [views[unit] for unit in units]
        counts, image = torch.tensor(real).unsqueeze(1), torch.arange(size)
        rows: slice | Tensor = slice(starts[units[0]], starts[units[-1] + 1])
        if set(real) != {size} or units[-1] - units[0] != len(units) - 1:
            rows = (torch.tensor([starts[unit] for unit in units]).unsqueeze(1) + image % counts).flatten()
        shares = torch.where(image < counts, 1.0 / counts.double(), 0.0)
        pinned: list[Tensor] = []
        moved = [self._filled(t, places * size, pinned) for t in (images[rows], targets[rows], shares.flatten())]
        return Group(moved[0], moved[1], [size] * places, shape, units, real, moved[2], pinned)

    def _filled(self, values: Tensor, count: int, pinned: list[Tensor]) -> Tensor:
        """Return rows on the device, padded with zeros to `count` rows."""
        far = torch.empty(count, *values.shape[1:], dtype=values.dtype, device=self._device)
        far[len(values) :].zero_()
        if values.device.type == "cpu" and self._pins:
            try:
                pinned.append(torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values))
                values = pinned[-1]
            except RuntimeError:  # this host or backend does not support pinned memory
                self._pins = False
        far[: len(values)].copy_(values, non_blocking=values.is_pinned() if values.device.type == "cpu" else False)
        return far
