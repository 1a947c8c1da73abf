"""The clipped sum of per-unit gradients, in one forward and one backward pass over all views.

    sum_u clip_C( scale * mean_k grad l(w + v_k; view_uk, target_uk) - shift )

Formal guarantee: `ClippedSum` returns that sum. Adding or removing one unit moves it by at most `sensitivity` in
Euclidean norm (within noise.ARITHMETIC_SLACK for float32 norms and the grid), whatever the unit's images and labels
are: a unit's contribution is a function of that unit alone, it is scaled by its own norm, and sums are exact
(exact.py). It holds for models that pass `certify` (core/certify.py), which shows by trial that no layer mixes images
and every rule is right for them; and weights, `scale`, `shift` and the perturbations v_k must be public.

That a contribution is a function of the unit alone holds to the last bit, at any position and whatever else is in the
batch. Two things ensure that: functions without a rule are computed for each unit alone, and the rules pad what they
pass to a library until its kernels no longer round by position (linear.py, conv.py, elementwise.py, attention.py). The
second is a property of the library and the processor, found by trial and not proven;
`certify` tries it again, with the actual model, before each charge, and refuses a model without it unless units pass
one by one.

Neither the size of a pass nor the number of threads changes a bit, with one exception: the images of a unit that is
larger than a pass are added up pass by pass, so its own last bits, and no other unit's, depend on the size.

    edge case                      behaviour
    empty batch                    zeros
    NaN or Inf in a unit           that unit contributes zero, silently
    zero gradient                  contributes zero (minus the shift, clipped)
    a person with many images      averaged first, over several passes if need be; clipped once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import torch
from torch import Tensor, nn

from dpvision.core.clipping import Flat, Loss, Public, Style
from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.models.device import keep_freed_memory
from dpvision.private.engine import rules
from dpvision.private.engine.passes import Group, PassSize, Worker, divide, split
from dpvision.private.engine.slots import MOST_ROUNDING

assert rules  # importing them registers them

# Images, targets, and the number of consecutive images of each unit.
Batch = tuple[Tensor, Tensor, Sequence[int]]
# Called with (losses of the images, norms of the units' gradients, bound). Both are private: not for release.
Watch = Callable[[Tensor, Tensor, float], None]

# Layers that are refused by their class.
MIXES_IMAGES = (nn.modules.batchnorm._BatchNorm,)
DRAWS = (nn.modules.dropout._DropoutNd, nn.RReLU)
DRAWS_BY_NAME = {"DropPath", "StochasticDepth", "DropBlock2d"}
WRAPPERS: tuple[tuple[Callable[[nn.Module], bool], str, str], ...] = (
    (lambda m: type(m).__name__ == "OptimizedModule", "is compiled", "pass the model itself, before torch.compile"),
    (
        lambda m: isinstance(m, torch.jit.ScriptModule),
        "is a script of torch.jit",
        "pass the nn.Module it was made from",
    ),
    (
        lambda m: isinstance(m, nn.DataParallel | nn.parallel.DistributedDataParallel),
        "spreads a batch over devices by itself",
        "pass its .module, and use torchrun for several processes",
    ),
    (
        lambda m: any(isinstance(p, nn.parameter.UninitializedParameter) for p in m.parameters(recurse=False)),
        "has parameters without a shape yet",
        "run the model once on an image before",
    ),
)


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
        """Copy the modules and share their weights.

        `one_view` promises that every unit is one image, which makes linear layers cheaper.

        The promise cannot be derived from a batch: one unit with two images would change how all others are rounded.
        """
        refuse_unsafe(model)
        keep_freed_memory()
        self._watch, self._one_view = watch, one_view
        self._tensors = [*model.parameters(), *model.buffers()]
        self._style: Style = Flat(float(clip)) if isinstance(clip, int | float) else clip
        self._parameters: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ConfigError("the model has no trainable parameter. Fix: requires_grad_() on those to train.")
        self._names = list(self._parameters)
        self._bounds = self._style.bounds(self._names)
        self._sizes = [p.numel() for p in self._parameters.values()]
        self._pass_size = PassSize(physical, self._sizes)
        wrong = [n for n, p in self._parameters.items() if p.dtype not in (torch.float32, torch.float64)]
        if wrong:
            raise ConfigError(f"{wrong[0]} is not float32: norms in half precision would not hold the bound.")
        self._workers = [Worker(model, loss, self._parameters, self._bounds)]  # a copy: later changes are not seen

    @property
    def sensitivity(self) -> float:
        """The most by which one unit moves the sum, in Euclidean norm."""
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
        """The most images in one pass; before the first batch, the most for any model."""
        return self._pass_size.images

    @property
    def rounding(self) -> float:
        """The most that rounding adds to a contribution, relative to the bound: with one view, factors are kept."""
        return MOST_ROUNDING if self._one_view else 0.0

    def __call__(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public | None = None) -> Tensor:
        """Return the clipped sum as one flat float64 vector; `views[u]` consecutive images belong to unit u."""
        return self.sum([(images, targets, views)], public)

    @torch.no_grad()
    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor:
        """Return the clipped sum over parts of a batch that are fetched one after the other."""
        total = torch.zeros(self.size, dtype=torch.float64, device=next(iter(self._parameters.values())).device)
        versions = [t._version for t in self._tensors]
        try:
            for batch in batches:
                self._add_all(list(self._groups(*batch, public or Public(), threads=torch.get_num_threads())))
        except BaseException:
            # Nothing of a sum that failed may enter the next one, even if one of its threads is still running.
            self._workers = [self._workers[0].twin()]
            raise
        if versions != [t._version for t in self._tensors]:
            self._workers = [self._workers[0].twin()]
            raise UnsafeLayer("the model changed its own weights or buffers in a pass: they would reveal images.")
        for worker in self._workers[1:]:
            self._workers[0].absorb(worker)
        for worker in self._workers:
            worker.add_to(total)
        return total

    @torch.no_grad()
    def gradients(self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public | None = None) -> Tensor:
        """Return the units' gradients, (units, size), without clipping and noise: private, not for release."""
        rows = []
        for group in self._groups(images, targets, views, public or Public()):
            slots, _ = self._worker(0).gradients(group)
            for slot in slots.values():
                slot.transform(len(group.views), None, None)
            units = len(group.views)
            rows.append(torch.cat([slot.rows(units).reshape(units, -1) for slot in slots.values()], dim=1))
        return torch.cat(rows) if rows else next(iter(self._parameters.values())).new_zeros(0, self.size)

    @torch.no_grad()
    def inner_products(
        self, images: Tensor, targets: Tensor, views: Sequence[int], direction: Tensor, public: Public | None = None
    ) -> Tensor:
        """Return <gradient, direction> of each unit in float64, before clipping: private, not for release."""
        parts = direction.double().split(self._sizes)
        products = []
        for group in self._groups(images, targets, views, public or Public()):
            slots, _ = self._worker(0).gradients(group)
            pairs = zip(slots.values(), parts, strict=True)
            products.append(torch.stack([slot.inner_products(len(group.views), part) for slot, part in pairs]).sum(0))
        return torch.cat(products) if products else direction.new_zeros(0, dtype=torch.float64)

    def _add_all(self, work: list[Group]) -> None:
        """Clip and add every group, on all of torch's threads; each thread works on one whole group at a time."""
        threads = torch.get_num_threads() if work and work[0].images.device.type == "cpu" else 1
        if threads == 1:
            figures = [self._add(self._worker(0), group) for group in work]
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
                figures = [future.result() for future in futures]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # no work remains, unless one failed
                torch.set_num_threads(threads)  # a thread's setting reaches libraries that have only one
        if self._watch:
            for losses, norms in figures:
                self._watch(losses, norms, self.sensitivity)

    def _add(self, worker: Worker, group: Group) -> tuple[Tensor, Tensor]:
        """Clip the units of a group and add them to the worker's totals; return losses and norms for the operator."""
        slots, losses = worker.gradients(group)
        squares = slots.squares(len(group.views))
        norms = squares.sum(1).sqrt()
        bad = ~torch.isfinite(norms)
        factors = _make_odd(self._style.factors(squares, self._names)).masked_fill(bad.unsqueeze(1), 0.0)
        for column, slot in enumerate(slots.values()):
            slot.add(factors[:, column], bad)
        return losses, norms

    def _groups(
        self, images: Tensor, targets: Tensor, views: Sequence[int], public: Public, *, threads: int = 1
    ) -> Iterator[Group]:
        """Yield the units in groups that fit a pass, at least one for each thread."""
        views = [int(v) for v in views]
        if any(v < 1 for v in views) or sum(views) != len(images) or len(targets) != len(images):
            raise ConfigError(
                "images, targets and views do not match: every unit needs at least one view, and they must add up."
            )
        if self._one_view and set(views) - {1}:
            raise ConfigError("this sum promises units of one image each (one_view), and got a unit with more.")
        copies = len(public.perturbations)
        if copies and set(views) - {copies}:
            raise ConfigError(f"there are {copies} perturbations, so every unit must have {copies} views.")
        if not views:
            return
        weights = self._weights(public)
        scales, shifts = split(public.scale, self._sizes), split(public.shift, self._sizes)
        self._pass_size.measure(lambda: self._worker(0).saved_bytes(weights[0], images))
        ends = list(accumulate(views, initial=0))
        for first, last in divide(views, *self._pass_size.limits(len(images), copies=copies, threads=threads)):
            rows = slice(ends[first], ends[last])
            shared = (weights, scales, shifts, self._pass_size.images, self._one_view)
            yield Group(images[rows], targets[rows], views[first:last], *shared)

    def _weights(self, public: Public) -> list[dict[str, Tensor]]:
        """Return the weights at which each view is differentiated."""
        own = {n: p.detach() for n, p in self._parameters.items()}
        moves = [split(v, self._sizes) for v in public.perturbations] or [[None] * len(own)]
        copies = []
        for move in moves:
            moved = (p if v is None else p + v.view(p.shape).to(p) for p, v in zip(own.values(), move, strict=True))
            copies.append({n: self._worker(0).set_layout(p) for n, p in zip(own, moved, strict=True)})
        return copies

    def _worker(self, number: int) -> Worker:
        while len(self._workers) <= number:
            self._workers.append(self._workers[0].twin())
        return self._workers[number]


def _make_odd(factors: Tensor) -> Tensor:
    """Set the last bit of each factor, so that no product lies half-way between two points of the grid (exact.py)."""
    return (factors.contiguous().view(torch.int64) | 1).view(torch.float64)


def refuse_unsafe(model: nn.Module) -> None:
    """Refuse modules that mix the examples of a batch, keep statistics of them, or draw at random.

    These are known by their class; `certify` finds others by trial (core/certify.py).
    """
    for name, module in model.named_modules():
        what = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, MIXES_IMAGES) or getattr(module, "track_running_stats", False):
            raise UnsafeLayer(
                f"{what} mixes the examples of a batch or keeps statistics of them, so clipping one example does not "
                "bound its influence. Fix: use GroupNorm instead."
            )
        if _draws_at_random(module):
            raise UnsafeLayer(
                f"{what} draws from torch's global generator, so a resumed run would not have the same bits. "
                "Fix: leave it out, or call .eval() on it."
            )
        for is_wrapper, reason, fix in WRAPPERS:
            if is_wrapper(module):
                raise ConfigError(f"{what} {reason}, so no gradient can be computed for each unit. Fix: {fix}.")


def _draws_at_random(module: nn.Module) -> bool:
    if not module.training:
        return False
    if type(module).__name__ in DRAWS_BY_NAME:
        return bool(getattr(module, "drop_prob", None) or getattr(module, "p", None))
    return isinstance(module, DRAWS) and getattr(module, "p", 1.0) > 0


class Tally:
    """Counts for the operator's log: they depend on private data, have no noise, and must never be released."""

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
        """Return the figures since the last call, and start again at zero."""
        images, units = self._images, self._units
        tally = {
            "units": units,
            "images": images,
            "mean_loss": self._losses / images if images else 0.0,
            "clipped_share": self._clipped / units if units else 0.0,
        }
        self._losses, self._images, self._units, self._clipped = 0.0, 0, 0, 0
        return tally
