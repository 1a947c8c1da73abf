"""The clipped sum of per-unit gradients, in one forward and one backward pass over all views.

    sum_u clip_C( scale * mean_k grad l(w + v_k; view_uk, target_uk) - shift )

Formal guarantee: `ClippedSum` returns that sum. Adding or removing one unit moves it by at most `sensitivity` in
Euclidean norm (within noise.ARITHMETIC_SLACK for float32 norms and the grid), whatever the unit's images and labels
are: a unit's contribution is a function of that unit alone, it is scaled by its own norm, and sums are exact
(exact.py). It holds for models that pass `certify` (core/certify.py), which shows by trial that no layer mixes images
and every rule is right for them; and weights, `scale`, `shift` and the perturbations v_k must be public.

That a contribution is a function of the unit alone holds to the last bit, wherever the unit lies in the batch and
whatever lies next to it. Two things give that: functions without a rule are computed for each unit alone, and the
rules fill up what they give to a library until its kernels no longer round by place (products.py, conv.py,
pointwise.py, attention.py). The second is a property of the library and the processor, found by trial and not proven;
`certify` tries it again, with the very model, before each charge, and refuses a model without it unless units pass one
by one.

Neither the cut of the batch nor the number of threads changes a bit, with one exception: the images of a unit that is
larger than a pass are added up pass by pass, so its own last bits, and nobody else's, depend on the cut.

    edge case                      behaviour
    empty batch                    zeros
    NaN or Inf in a unit           that unit contributes zero, and nobody is told
    zero gradient                  contributes zero (minus the shift, clipped)
    a person with many images      averaged first, over several passes if need be; clipped once
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import torch
from torch import Tensor, nn

from dpvision.core.clipping import Flat, Loss, Public, Style
from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.models.memory import keep_freed_memory
from dpvision.private.engine import rules
from dpvision.private.engine.cut import Cut, groups
from dpvision.private.engine.passes import Group, Worker, split
from dpvision.private.engine.safety import refuse_unsafe
from dpvision.private.engine.seen import Watch
from dpvision.private.engine.slots import MOST_ROUNDING

assert rules  # importing them registers them

Batch = tuple[Tensor, Tensor, Sequence[int]]


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
        one_view: bool = False,
    ) -> None:
        """`one_view` promises that every unit is one image, which makes linear layers cheaper.

        It must be known beforehand: if it followed from a batch, one unit with two images would change how all others
        are rounded.
        """
        refuse_unsafe(model)
        keep_freed_memory()
        self._watch, self._one_view = watch, one_view
        self._tensors = [*model.parameters(), *model.buffers()]
        self._style: Style = Flat(float(clip)) if isinstance(clip, int | float) else clip
        self._parameters: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ConfigError("the model has no trainable parameter. Fix: requires_grad_() on what is to be trained.")
        self._names = list(self._parameters)
        self._bounds = self._style.bounds(self._names)
        self._sizes = [p.numel() for p in self._parameters.values()]
        self._cut = Cut(physical, self._sizes)
        wrong = [n for n, p in self._parameters.items() if p.dtype not in (torch.float32, torch.float64)]
        if wrong:
            raise ConfigError(f"{wrong[0]} is not float32: norms in half precision would not hold the bound.")
        self._workers = [Worker(model, loss, self._parameters, self._bounds)]  # a copy: later changes are not seen

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

    @property
    def pass_images(self) -> int:
        """The most images in one pass; before the first batch, as many as any model could have."""
        return self._cut.images

    @property
    def rounding(self) -> float:
        """What rounding may add to a unit's contribution, as a share of the bound: factors are kept with one view."""
        return MOST_ROUNDING if self._one_view else 0.0

    def __call__(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public | None = None) -> Tensor:
        """`views[u]` consecutive images belong to unit u; the result is one flat float64 vector."""
        return self.sum([(images, targets, views)], public)

    @torch.no_grad()
    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor:
        """The same over parts of a batch that are fetched one after the other."""
        total = torch.zeros(self.size, dtype=torch.float64, device=next(iter(self._parameters.values())).device)
        versions = [t._version for t in self._tensors]
        try:
            for batch in batches:
                self._add_all(list(self._groups(*batch, public or Public(), threads=torch.get_num_threads())))
        except BaseException:
            # Nothing of a sum that failed may enter the next one, also if a thread of it is still at work.
            self._workers = [self._workers[0].twin()]
            raise
        if versions != [t._version for t in self._tensors]:
            self._workers = [self._workers[0].twin()]
            raise UnsafeLayer("the model changed its own weights or buffers in a pass: they would carry images out.")
        for worker in self._workers[1:]:
            self._workers[0].absorb(worker)
        for worker in self._workers:
            worker.add_to(total)
        return total

    @torch.no_grad()
    def gradients(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public | None = None) -> Tensor:
        """(units, size) of gradients that are neither clipped nor noised: for tests and the operator's eyes."""
        found = []
        for group in self._groups(images, targets, views, public or Public()):
            slots, _ = self._worker(0).gradients(group)
            for slot in slots.values():
                slot.transform(len(group.views), None, None)
            units = len(group.views)
            found.append(torch.cat([slot.rows(units).reshape(units, -1) for slot in slots.values()], dim=1))
        return torch.cat(found) if found else next(iter(self._parameters.values())).new_zeros(0, self.size)

    @torch.no_grad()
    def inner_products(
        self, images: Tensor, targets: Tensor, views: Sequence[int], direction: Tensor, public: Public | None = None
    ) -> Tensor:
        """<gradient, direction> of each unit in float64, before clipping: private, never to release as it is."""
        parts = direction.double().split(self._sizes)
        found = []
        for group in self._groups(images, targets, views, public or Public()):
            slots, _ = self._worker(0).gradients(group)
            each = [slot.inner(len(group.views), part) for slot, part in zip(slots.values(), parts, strict=True)]
            found.append(torch.stack(each).sum(0))
        return torch.cat(found) if found else direction.new_zeros(0, dtype=torch.float64)

    def _add_all(self, work: list[Group]) -> None:
        """Clip and add every group, on as many threads as torch has; each thread does one whole group at a time."""
        threads = torch.get_num_threads() if work and work[0].images.device.type == "cpu" else 1
        if threads == 1:
            seen = [self._add(self._worker(0), group) for group in work]
        else:
            idle = [self._worker(i) for i in range(threads)]

            def one(group: Group) -> tuple[Tensor, Tensor]:
                torch.set_num_threads(1)
                worker = idle.pop()
                try:
                    with torch.no_grad():
                        return self._add(worker, group)
                finally:
                    idle.append(worker)

            pool = ThreadPoolExecutor(threads)
            try:
                futures = [pool.submit(one, group) for group in work]
                seen = [future.result() for future in futures]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # nothing is left to do, unless one failed
                torch.set_num_threads(threads)  # the threads' own setting reaches libraries that have only one
        if self._watch:
            for losses, norms in seen:
                self._watch(losses, norms, self.sensitivity)

    def _add(self, worker: Worker, group: Group) -> tuple[Tensor, Tensor]:
        """Clip the units of a group and add them to the worker's totals; (losses, norms) for the operator."""
        slots, losses = worker.gradients(group)
        squares = slots.squares(len(group.views))
        norms = squares.sum(1).sqrt()
        bad = ~torch.isfinite(norms)
        factors = _never_half_way(self._style.factors(squares, self._names)).masked_fill(bad.unsqueeze(1), 0.0)
        for column, slot in enumerate(slots.values()):
            slot.add(factors[:, column], bad)
        return losses, norms

    def _groups(
        self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public, *, threads: int = 1
    ) -> Iterator[Group]:
        """The units in groups that fit a pass, at least one for each thread."""
        views = [int(v) for v in views]
        if any(v < 1 for v in views) or sum(views) != len(images) or len(targets) != len(images):
            raise ConfigError(
                "images, targets and views do not fit: every unit needs at least one view, and they must add up."
            )
        if self._one_view and set(views) - {1}:
            raise ConfigError("this sum was made for units of one image each (one_view), and got a unit with more.")
        copies = len(public.perturbations)
        if copies and set(views) - {copies}:
            raise ConfigError(f"there are {copies} perturbations, so every unit must have {copies} views.")
        if not views:
            return
        weights = self._weights(public)
        scales, shifts = split(public.scale, self._sizes), split(public.shift, self._sizes)
        self._cut.measure(lambda: self._worker(0).saved_bytes(weights[0], images))
        ends = list(accumulate(views, initial=0))
        for first, last in groups(views, *self._cut.most(len(images), copies=copies, threads=threads)):
            rows = slice(ends[first], ends[last])
            shared = (weights, scales, shifts, self._cut.images, self._one_view)
            yield Group(images[rows], targets[rows], views[first:last], *shared)

    def _weights(self, public: Public) -> list[dict[str, Tensor]]:
        """The weights at which each view is differentiated."""
        own = {n: p.detach() for n, p in self._parameters.items()}
        moves = [split(v, self._sizes) for v in public.perturbations] or [[None] * len(own)]
        found = []
        for move in moves:
            moved = (p if v is None else p + v.view(p.shape).to(p) for p, v in zip(own.values(), move, strict=True))
            found.append({n: self._worker(0).laid_out(p) for n, p in zip(own, moved, strict=True)})
        return found

    def _worker(self, number: int) -> Worker:
        while len(self._workers) <= number:
            self._workers.append(self._workers[0].twin())
        return self._workers[number]


def _never_half_way(factors: Tensor) -> Tensor:
    """Set the last bit: with an odd factor no product lies half-way between two points of the grid (exact.py)."""
    return (factors.contiguous().view(torch.int64) | 1).view(torch.float64)
