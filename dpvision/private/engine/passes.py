"""Passes over groups of units: how many images at a time, and the work of one thread, from images to gradients.

The size of a pass suits the memory and its caches and gives every thread a group. It depends on shapes only (the
model's, the images', the number of views), never on the images themselves. Results do not depend on it, as long as a
unit fits a pass: see exact.py and clipped_sum.py.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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

# Bytes that forward passes may keep for their backward passes, and that gradients may take, over all threads.
PASS_BYTES = 2 << 30
ROW_BYTES = 1 << 30
# A thread works best on a pass whose forward part keeps this many bytes.
BEST_BYTES = 320 << 20
MOST_IMAGES = 2048
MOST_UNITS_OF_COPIES = 128  # where each view of a unit passes at weights of its own
# Units fetched at a time where no physical batch size is set.
FETCHED = 1024
# Losses are computed for a multiple of this many images.
LOSS_ROWS = 64


class PassSize:
    """The number of images in a pass: `physical`, or the number that suits memory, caches and threads."""

    def __init__(self, physical: int | None, sizes: Sequence[int]) -> None:
        self._row_bytes = 4 * max(1, sum(sizes))
        self._physical = physical
        self._saved_bytes = 0

    @property
    def images(self) -> int:
        """The most images in one pass."""
        if self._physical is not None:
            return self._physical
        memory = min(BEST_BYTES, PASS_BYTES // torch.get_num_threads())
        fitting = max(1, min(MOST_IMAGES, memory // max(1, self._saved_bytes)))
        return fitting // 16 * 16 if fitting > 16 else fitting

    def measure(self, saved_bytes: Callable[[], int]) -> None:
        """Measure, at the first batch only, how many bytes a forward pass keeps per image."""
        if not self._saved_bytes:
            self._saved_bytes = max(1, saved_bytes())

    def limits(self, images: int, *, copies: int, threads: int) -> tuple[int, int]:
        """Return the most units and images in a group, such that every thread has one.

        Copies pass one after the other, and a part of what they keep stays until the last has passed. A group has as
        many of them as fit into memory, since convolutions are slow with few images.
        """
        rows = self._physical or max(1, ROW_BYTES // self._row_bytes // threads)
        share, size = -(-images // threads), self.images
        if copies and self._physical is None:
            size = max(size, min(MOST_UNITS_OF_COPIES * copies, PASS_BYTES // threads // max(1, self._saved_bytes)))
        return max(1, rows), max(1, copies, min(size, share))

    @property
    def units_at_a_time(self) -> int:
        """The number of units to fetch at a time; it never changes."""
        return self._physical or FETCHED


def divide(views: Sequence[int], most_units: int, most_images: int) -> list[tuple[int, int]]:
    """Divide the units into ranges (first, last) within both limits; a unit with more images is alone."""
    ends = list(accumulate(views, initial=0))
    ranges = []
    first = 0
    while first < len(views):
        last = max(first + 1, bisect_right(ends, ends[first] + most_images) - 1)
        last = min(last, first + most_units)
        ranges.append((first, last))
        first = last
    return ranges


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
        """Whether gradients are scaled or shifted before they are clipped."""
        return self.scales[0] is not None or self.shifts[0] is not None


class Worker:
    """A thread's own slots, and its own shell around the shared parameters: a model cannot be called twice at once."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: dict[str, Tensor],
        bounds: dict[str, float],
        image_axes: ImageAxes | None = None,
    ) -> None:
        self._image_axes = image_axes or ImageAxes()
        shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
        self._model, self._loss = copy.deepcopy(model, shared), loss
        self._parameters, self._bounds = parameters, bounds
        self.channels_last = any(p.dim() == 4 for p in model.parameters())
        self._slots: Slots | None = None

    def twin(self) -> Worker:
        """Return a worker for another thread, with slots of its own."""
        return Worker(self._model, self._loss, self._parameters, self._bounds, self._image_axes)

    def gradients(self, group: Group) -> tuple[Slots, Tensor]:
        """Compute the units' gradients, scaled and shifted where the group says so, and the images' losses."""
        units = len(group.views)
        slots = self._slots_for(units)
        slots.reset()
        copies, count = len(group.weights), len(group.images)
        if copies > 1:  # view k of every unit at its own weights
            ones, separate = [1] * units, SeparateViews(group.weights, slots)
            views = [(group.weights[k], group.images[k::copies], group.targets[k::copies]) for k in range(copies)]
            losses = [self._run(slots, *view, ones, copies, separate_views=separate) for view in views]
            separate.require_empty()
        elif units == 1 and count > group.most:  # a unit too large for one pass
            pieces = [slice(a, min(a + group.most, count)) for a in range(0, count, group.most)]
            losses = [
                self._run(slots, group.weights[0], group.images[p], group.targets[p], [p.stop - p.start], count)
                for p in pieces
            ]
        else:
            losses = [self._run(slots, group.weights[0], group.images, group.targets, group.views, 0, group.factors)]
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

    def _run(
        self,
        slots: Slots,
        weights: dict[str, Tensor],
        images: Tensor,
        targets: Tensor,
        views: list[int],
        divisor: int,
        factors: bool = False,
        separate_views: SeparateViews | None = None,
    ) -> Tensor:
        """Run one pass: add the mean over views (or the sum over `divisor`) to the slots, and return the losses."""
        current = Pass(slots, views, self._image_axes, factors=factors, separate_views=separate_views)
        share = self._share(views, divisor, images.device)
        with torch.enable_grad(), current, ExitStack() as stack:
            inputs = align(self.set_layout(images)).as_subclass(Data)
            stack.enter_context(_reparametrize_module(self._model, current.weights(weights), tie_weights=True))
            outputs = self._model(inputs)  # the weights stay until after the backward pass, which may recompute parts
            if not isinstance(outputs, Data) or len(outputs) != len(images):
                raise ConfigError(
                    f"the model must return one row of outputs per image as a tensor, not {type(outputs).__name__}."
                )
            losses = self._losses(plain(outputs), targets)
            current.backward((losses * share.to(losses)).sum())
        return losses.detach()

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute one loss per image, for whole vectors of rows: kernels may round the remainder differently.

        Blank rows get the first target, and their losses are dropped.
        """
        count, more = len(outputs), -len(outputs) % LOSS_ROWS
        outputs = torch.cat([outputs, outputs.new_zeros(more, *outputs.shape[1:])])
        targets = torch.cat([targets, targets[:1].expand(more, *targets.shape[1:])])
        losses = self._loss(outputs, targets)
        if losses.shape != (count + more,):
            raise ConfigError("the loss must return one number for each image. Fix: reduction='none'.")
        return losses[:count]

    @staticmethod
    def _share(views: list[int], divisor: int, device: torch.device) -> Tensor:
        """Return the weight of each image in its unit's mean."""
        if divisor:
            return torch.tensor(1.0 / divisor, dtype=torch.float64, device=device)
        counts = torch.tensor(views, dtype=torch.float64, device=device)
        return (1.0 / counts).repeat_interleave(counts.long())

    def set_layout(self, tensor: Tensor) -> Tensor:
        """Lay a tensor out with channels last: the convolutions here are a third faster that way.

        The strides are set even where an axis of length 1 leaves them open: kernels are chosen by them.
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
        """Measure how many bytes a forward pass keeps per image, with blank images: it depends on shapes only."""
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


def split(vector: Tensor | None, sizes: Sequence[int]) -> list[Tensor | None]:
    """Split a public vector by parameter."""
    if vector is None:
        return [None] * len(sizes)
    if vector.numel() != sum(sizes) or not bool(torch.isfinite(vector).all()):
        raise ConfigError(f"a public vector must have {sum(sizes)} finite numbers, one for each trainable weight.")
    return list(vector.detach().reshape(-1).split(list(sizes)))
