"""The clipped sum of per-unit gradients, in one forward and one backward pass over all views.

    sum_u clip_C( scale * mean_k grad l(w + v_k; view_uk, target_uk) - shift )

Formal guarantee: `ClippedSum` returns that sum. Adding or removing one unit moves it by at most `sensitivity` in
Euclidean norm (within noise.ARITHMETIC_SLACK for float32 norms and the grid), whatever the unit's images and labels
are: a unit's contribution is a function of that unit alone, is scaled by its own norm, and sums are exact (exact.py).
This holds for models that pass `certify` (core/certify.py), which tests that no layer mixes images and that every rule
is correct for the model. The weights, `scale`, `shift` and the perturbations v_k must be public.

A contribution depends on its unit alone down to the last bit, at any position and for any batch. On the CPU this has
two reasons: functions without a rule are computed separately for each unit, and the rules pad the inputs of library
kernels until these no longer round by position (linear.py, conv.py, elementwise.py, attention.py). The second is a
property of the library and the processor that was found by tests, not proven; `certify` tests it again with the actual
model before each charge, and refuses a model without it unless units pass one by one.

On the CPU, neither the size of a pass nor the number of threads changes a bit, with one exception: the images of a unit
that is larger than a pass are added up pass by pass, so the unit's own last bits depend on the size.

On an accelerator, the rules compute all units of a pass in one call. Libraries choose kernels by size, so every pass
has the same size for any batch (pass_size.py). `plan_pass` fixes this size, on which the bits of a sum depend, from
public numbers. Whether kernels of one size treat all units alike is also tested: `certify` does so on the device
itself, in full passes. The host never waits for the device within a pass.

    edge case                      behaviour
    empty batch                    zeros
    NaN or Inf in a unit           that unit contributes zero, without a message
    zero gradient                  contributes zero (minus the shift, clipped)
    a person with many images      averaged first, over several passes if necessary; clipped once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from dpvision.core.clipping import Flat, Loss, Public, Style
from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.models.device import fix_arithmetic, keep_freed_memory
from dpvision.private.engine import rules
from dpvision.private.engine.pass_size import PassSize, divide
from dpvision.private.engine.passes import Group, Mover, Shape, Worker, split
from dpvision.private.engine.refusals import refuse_unsafe
from dpvision.private.engine.slots import MAX_ROUNDING, Slots

assert rules  # importing the rules registers them

# Images, targets, and the number of consecutive images of each unit.
Batch = tuple[Tensor, Tensor, Sequence[int]]
# Called with (losses of the images, norms of the units' gradients, bound). Losses and norms are private.
Watch = Callable[[Tensor, Tensor, float], None]


class ClippedSum:
    """Computes the sum over units of clip(mean gradient over views), for the trainable parameters of `model`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        clip: float | Style,
        physical: int | None = None,
        watch: Watch | None = None,
        one_view: bool = False,
        views: int = 1,
        batch: int | None = None,
        precision: str = "float32",
    ) -> None:
        """Copy the modules, sharing their weights. The sum is computed on the device of the parameters.

        `one_view` promises that every unit has one image, which makes linear layers cheaper. It cannot be inferred from
        a batch: one unit with two images would change how all others are rounded.

        On an accelerator, units are padded to `views` images times a power of two. If `physical` is not given, the
        memory and the expected number of units in a `batch` determine the size of a pass.

        `precision` applies to products in float32 models: "tf32" (on an accelerator) and "bf16" round their inputs to
        10 and 7 bits and accumulate in float32. On the CPU, bf16 is emulated slowly, for comparison. Gradients are
        always float32, and norms, factors and sums are computed from these gradients.
        """
        refuse_unsafe(model)
        keep_freed_memory()
        self._watch, self._one_view = watch, one_view
        self._tensors = [*model.parameters(), *model.buffers()]
        self._style: Style = Flat(float(clip)) if isinstance(clip, int | float) else clip
        self._parameters: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ConfigError(
                "the model has no trainable parameters. Fix: call requires_grad_() on the parameters to train."
            )
        self._names = list(self._parameters)
        self._bounds = self._style.bounds(self._names)
        self._sizes = [p.numel() for p in self._parameters.values()]
        like = next(iter(self._parameters.values()))
        self._device, self._precision = like.device, precision
        if precision == "tf32" and like.device.type == "cpu":
            raise ConfigError("precision is tf32, which the CPU does not support. Fix: use float32 or bf16.")
        fix_arithmetic(self._device, precision)
        self._pass_size = PassSize(physical, self._sizes, like=like, views=views, batch=batch)
        wrong = [n for n, p in self._parameters.items() if p.dtype not in (torch.float32, torch.float64)]
        if wrong:
            raise ConfigError(f"{wrong[0]} is not float32: norms in half precision could exceed the bound.")
        self._mover = Mover(self._device)
        bf16 = precision == "bf16"  # the worker copies the model, so later changes to modules have no effect
        self._workers = [Worker(model, loss, self._parameters, self._bounds, bf16=bf16)]

    @property
    def sensitivity(self) -> float:
        """The largest change of the sum, in Euclidean norm, when one unit is added or removed."""
        return self._style.sensitivity

    @property
    def size(self) -> int:
        """The number of trainable weights."""
        return sum(self._sizes)

    @property
    def units_at_a_time(self) -> int:
        """The number of units to fetch at a time."""
        return self._pass_size.units_at_a_time

    @property
    def pass_images(self) -> int:
        """The maximum number of images in one pass; before `plan_pass` or the first batch, that for any model."""
        return self._pass_size.images

    def plan_pass(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        """Fix the number of images in a pass, for images of this shape; the first batch does the same.

        It depends only on public numbers: shapes, `physical`, `views`, `batch` and the size of the device's memory.
        """
        self._measure(torch.zeros(1, *shape, dtype=dtype, device=self._device))
        return self._pass_size.images

    @property
    def rounding(self) -> float:
        """The largest rounding error of a contribution, relative to the bound; with one view, slots store factors."""
        return MAX_ROUNDING if self._one_view else 0.0

    def __call__(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public | None = None) -> Tensor:
        """Return the clipped sum as one flat float64 vector; `views[u]` consecutive images belong to unit u."""
        return self.sum([(images, targets, views)], public)

    @torch.no_grad()
    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor:
        """Return the clipped sum over a batch whose parts are fetched one after the other."""
        total = torch.zeros(self.size, dtype=torch.float64, device=self._device)
        versions = [t._version for t in self._tensors]
        threads = torch.get_num_threads() if self._device.type == "cpu" else 1
        shape: Shape | None = None
        unread: list[_Figures] = []
        try:
            for images, targets, views in batches:
                views = self._require_matching(images, targets, views, public or Public())
                if not views:
                    continue
                shape = shape or self._shape(images, public or Public())
                figures = self._add_all(self._groups(images, targets, views, shape, threads=threads), threads)
                self._report(unread)  # of the previous part: the device computes this one while the host waits
                unread = figures
            self._report(unread)
        except BaseException:
            # Nothing from a failed sum may enter the next one, even if one of its threads is still running.
            self._workers = [self._workers[0].twin()]
            raise
        if versions != [t._version for t in self._tensors]:
            self._workers = [self._workers[0].twin()]
            raise UnsafeLayer("the model changed its own weights or buffers in a pass: they could reveal images.")
        for worker in self._workers[1:]:
            self._workers[0].absorb(worker)
        for worker in self._workers:
            worker.add_to(total)
        return total

    @torch.no_grad()
    def gradients(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public | None = None) -> Tensor:
        """Return the units' gradients, (units, size), without clipping and noise: private, not for release."""

        def rows(slots: Slots, units: int) -> Tensor:
            for slot in slots.values():
                slot.transform(units, None, None)
            return torch.cat([slot.rows(units).reshape(units, -1) for slot in slots.values()], dim=1)

        empty = next(iter(self._parameters.values())).new_zeros(0, self.size)
        return self._of_units(rows, empty, images, targets, views, public)

    @torch.no_grad()
    def inner_products(
        self, images: Tensor, targets: Tensor, views: Sequence[int], direction: Tensor, public: Public | None = None
    ) -> Tensor:
        """Return <gradient, direction> of each unit in float64, before clipping: private, not for release."""
        parts = direction.to(self._device).double().split(self._sizes)

        def products(slots: Slots, units: int) -> Tensor:
            pairs = zip(slots.values(), parts, strict=True)
            return torch.stack([slot.inner_products(units, part) for slot, part in pairs]).sum(0)

        empty = torch.zeros(0, dtype=torch.float64, device=self._device)
        return self._of_units(products, empty, images, targets, views, public)

    def _of_units(
        self,
        compute: Callable[[Slots, int], Tensor],
        empty: Tensor,
        images: Tensor,
        targets: Tensor,
        views: Sequence[int],
        public: Public | None,
    ) -> Tensor:
        """Compute a row for each unit from the slots of its group, in the order of the batch."""
        views = self._require_matching(images, targets, views, public or Public())
        if not views:
            return empty
        rows: list[Tensor] = []
        order: list[int] = []
        pinned: list[Tensor] = []
        for group in self._groups(images, targets, views, self._shape(images, public or Public())):
            slots, _ = self._worker(0).gradients(group)
            rows.append(compute(slots, len(group.views))[: len(group.units)])
            order += group.units
            pinned += group.pinned
        if pinned:
            rows[-1].flatten()[:1].cpu()  # waits for the copies from pinned memory
        return torch.cat(rows) if order == sorted(order) else torch.cat(rows)[torch.tensor(order).argsort()]

    def _add_all(self, groups: Iterable[Group], threads: int) -> list[_Figures]:
        """Clip and add every group on all of torch's threads; each thread processes one whole group at a time."""
        if threads == 1:
            return [self._add(self._worker(0), group) for group in groups]
        work = list(groups)
        idle = [self._worker(i) for i in range(threads)]

        def one(group: Group) -> _Figures:
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
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # no work remains unless a group failed
            torch.set_num_threads(threads)  # the setting above also affects libraries with one global setting

    def _add(self, worker: Worker, group: Group) -> _Figures:
        """Clip the units of a group and add them to the worker's totals."""
        slots, losses = worker.gradients(group)
        squares = slots.squares(len(group.views))
        norms = squares.sum(1).sqrt()
        bad = ~torch.isfinite(norms)
        if group.shares is not None:
            bad |= group.shares.view(len(norms), -1)[:, 0] == 0  # blank units
        factors = _make_odd(self._style.factors(squares, self._names)).masked_fill(bad.unsqueeze(1), 0.0)
        for column, slot in enumerate(slots.values()):
            slot.add(factors[:, column], bad)
        return _Figures(losses, norms, group.real, group.pinned)

    def _report(self, figures: list[_Figures]) -> None:
        """Pass losses and norms to `watch`. The host waits here until the device has computed them."""
        if not figures:
            return
        if self._device.type != "cpu":
            figures = _read(figures)
        if self._watch:
            for group in figures:
                self._watch(group.losses, group.norms, self.sensitivity)

    def _require_matching(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public) -> list[int]:
        """Return the units' numbers of images, after checking that they are consistent."""
        views = list(map(int, views))
        if (views and min(views) < 1) or sum(views) != len(images) or len(targets) != len(images):
            raise ConfigError(
                "images, targets and views do not match: every unit needs at least one view, and the numbers of views "
                "must sum to the number of images and of targets."
            )
        if self._one_view and set(views) - {1}:
            raise ConfigError("one_view promises units of one image each, but a unit has more.")
        copies = len(public.perturbations)
        if copies and set(views) - {copies}:
            raise ConfigError(f"there are {copies} perturbations, so every unit must have {copies} views.")
        return views

    def _groups(
        self, images: Tensor, targets: Tensor, views: list[int], shape: Shape, *, threads: int = 1
    ) -> Iterator[Group]:
        """Yield the units in groups that fit a pass, with at least one group per thread."""
        if self._pass_size.batched:
            for units, places, size in self._pass_size.full_passes(views, copies=shape.copies):
                yield self._mover.group((images, targets, views), units, places, size, shape)
            return
        ends = list(accumulate(views, initial=0))
        for first, last in divide(views, *self._pass_size.limits(len(images), copies=shape.copies, threads=threads)):
            rows = slice(ends[first], ends[last])
            yield Group(images[rows], targets[rows], views[first:last], shape, list(range(first, last)))

    def _shape(self, images: Tensor, public: Public) -> Shape:
        """Prepare what shapes all contributions of a sum, and determine the number of images in a pass."""
        fix_arithmetic(self._device, self._precision)
        pinned: list[Tensor] = []
        weights = self._weights(public, pinned)
        self._measure(images, weights[0])
        scales, shifts = (split(v, self._sizes, self._mover, pinned) for v in (public.scale, public.shift))
        copies, images_per_pass = len(public.perturbations), self._pass_size.images
        possible = self._worker(0).possible(weights) if copies and self._pass_size.batched else {}
        return Shape(weights, scales, shifts, images_per_pass, self._one_view, copies, possible, pinned)

    def _measure(self, like: Tensor, weights: dict[str, Tensor] | None = None) -> None:
        weights = weights or self._weights(Public())[0]
        self._pass_size.measure(lambda: self._worker(0).saved_bytes(weights, like[:1].to(self._device)))

    def _weights(self, public: Public, pinned: list[Tensor] | None = None) -> list[dict[str, Tensor]]:
        """Return the weights at which each view is differentiated."""
        own = {n: p.detach() for n, p in self._parameters.items()}
        moves = [split(v, self._sizes, self._mover, pinned) for v in public.perturbations] or [[None] * len(own)]
        copies = []
        for move in moves:
            moved = (p if v is None else p + v.view(p.shape).to(p) for p, v in zip(own.values(), move, strict=True))
            copies.append({n: self._worker(0).set_layout(p) for n, p in zip(own, moved, strict=True)})
        return copies

    def _worker(self, number: int) -> Worker:
        while len(self._workers) <= number:
            self._workers.append(self._workers[0].twin())
        return self._workers[number]


@dataclass(frozen=True)
class _Figures:
    """Losses of a group's images and norms of its units; on an accelerator, including padding until they are read."""

    losses: Tensor
    norms: Tensor
    real: list[int]
    pinned: list[Tensor]


def _read(figures: list[_Figures]) -> list[_Figures]:
    """Copy losses and norms to the host at once, and drop those of padding."""
    flat = torch.cat([t.double() for group in figures for t in (group.losses, group.norms)]).cpu()
    parts = iter(flat.split([len(t) for group in figures for t in (group.losses, group.norms)]))
    read = []
    for group in figures:
        losses, norms = next(parts).view(len(group.norms), -1), next(parts)
        losses = torch.cat([row[:count] for row, count in zip(losses, group.real, strict=False)])
        read.append(_Figures(losses, norms[: len(group.real)], [], []))
    return read


def _make_odd(factors: Tensor) -> Tensor:
    """Set the last bit of each factor, so that no product is half-way between two grid points (exact.py)."""
    return (factors.contiguous().view(torch.int64) | 1).view(torch.float64)


class Tally:
    """Statistics for the operator's log, which depend on private data without noise and must never be released."""

    def __init__(self) -> None:
        self.images = 0  # in total
        self._losses, self._images, self._units, self._clipped = 0.0, 0, 0, 0

    def __call__(self, losses: Tensor, norms: Tensor, bound: float) -> None:
        self.images += len(losses)
        self._losses += float(losses.nansum())
        self._images += len(losses)
        self._units += len(norms)
        self._clipped += int((norms > bound).sum())

    def flush(self) -> dict[str, float]:
        """Return the statistics since the last call, and reset them."""
        images, units = self._images, self._units
        tally = {
            "units": units,
            "images": images,
            "mean_loss": self._losses / images if images else 0.0,
            "clipped_share": self._clipped / units if units else 0.0,
        }
        self._losses, self._images, self._units, self._clipped = 0.0, 0, 0, 0
        return tally
