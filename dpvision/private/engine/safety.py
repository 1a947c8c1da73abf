"""What must not be trained: layers that mix the images of a batch, keep statistics of them, or draw at random.

`refuse_unsafe` knows some of them by class. `verify` knows nothing and tries, on random images, in three ways:

    against autograd    in float64, every unit's gradient in a batch by the rules equals that of the unit alone by
                        ordinary autograd: the rules are right for this model
    against itself      in the model's own precision and with more images than pass at a time, the other units keep
                        every bit when odd units (negative, zero, huge, not a number) are added, and when one is alone
    against memory      the same batch gives the same bits again after another batch

Each trial starts from a fresh copy of the model, with images in [-1, 1] and in [0, 1]. A trial is not a proof: a model
that mixes images only in batches above MOST_TRIED, or only for values that no trial has, is not found.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, pairwise, starmap
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpvision.core.clipping import Public
from dpvision.errors import ConfigError, DPVisionError, UnsafeLayer
from dpvision.private.engine.clipped_sum import ClippedSum
from dpvision.private.engine.passes import Loss

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
TOLERANCE = 1e-6  # of the trial in float64
TOLERANCE_OWN = 1e-3  # of the trial in the model's own precision: more is not rounding
# Images in the trial in the model's own precision: more than pass at a time, if that is not too many.
LEAST_TRIED, MOST_TRIED = 33, 257
HUGE = 1e6
NAN = float("nan")
# Trials in float64: images of each unit, the least value of an image, the odd unit and what it is multiplied by.
TRIALS: tuple[tuple[list[int], float, int, float], ...] = (
    ([2, 3, 2], -1.0, 0, 1.0),
    ([2, 2, 2], 0.0, 0, -1.0),
    ([1, 2, 1], 0.0, 1, HUGE),
    ([1, 1, 1], -1.0, 1, NAN),
    ([1, 1, 1], 0.0, 1, 0.0),
)


def refuse_unsafe(model: nn.Module) -> None:
    """Refuse, by name, the modules that couple examples, keep statistics of the data, or draw at random."""
    for name, module in model.named_modules():
        what = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, MIXES_IMAGES) or getattr(module, "track_running_stats", False):
            raise UnsafeLayer(
                f"{what} mixes the examples of a batch or keeps statistics of them, so clipping one example does not "
                "bound its influence. Fix: use GroupNorm instead."
            )
        if _draws(module):
            raise UnsafeLayer(
                f"{what} draws from torch's global generator, so a run could not be resumed bit by bit. "
                "Fix: leave it out, or call .eval() on it."
            )
        for found, reason, fix in WRAPPERS:
            if found(module):
                raise ConfigError(f"{what} {reason}, so no gradient can be computed for each unit. Fix: {fix}.")


def _draws(module: nn.Module) -> bool:
    if not module.training:
        return False
    if type(module).__name__ in DRAWS_BY_NAME:
        return bool(getattr(module, "drop_prob", None) or getattr(module, "p", None))
    return isinstance(module, DRAWS) and getattr(module, "p", 1.0) > 0


def verify(
    model: nn.Module,
    loss: Loss,
    shape: tuple[int, ...],
    classes: int,
    *,
    apart: bool = False,
    physical: int | None = None,
) -> None:
    """By trial: the gradient of each unit in a batch equals that of the unit alone, or the model is refused.

    At weights that are moved a little, so that no path is closed by a zero. In float64 rounding cannot hide a
    difference, nor a kink of the activation function make one. With `apart`, also where each view is differentiated at
    weights of its own. With `physical` 1 units pass one by one, and need not have the same bits in a larger pass.
    """
    if classes < 1:
        raise ConfigError(f"classes is {classes}: a model needs at least one output.")
    refuse_unsafe(model)
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ConfigError(f"{name} is not finite: training cannot start from it. Fix: other initial weights.")
    with _explained():
        trial = _Trial(model, loss, shape, classes)
        with _constants_in(torch.float64):
            trial.require_outputs()
            trial.require_loss_of_outputs()
            for views, least, odd, factor in TRIALS:
                trial.against_autograd(views, least, odd, factor)
            if apart:
                trial.views_apart()
        trial.against_itself(physical)


@contextmanager
def _constants_in(dtype: torch.dtype) -> Iterator[None]:
    """What a model makes by torch.zeros and the like fits the precision of the trial."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _explained() -> Iterator[None]:
    """What torch raises in a trial, as one error of ours."""
    try:
        yield
    except DPVisionError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"the model or the loss failed on random images, in a trial of its gradients: {type(error).__name__}: "
            f"{reason} Fix: a model and a loss of plain torch functions, with the images along the first axis."
        ) from error


class _Trial:
    """Random images and fresh copies of a model at weights that are moved a little."""

    def __init__(self, model: nn.Module, loss: Loss, shape: tuple[int, ...], classes: int) -> None:
        self._loss, self._shape, self._classes = loss, shape, classes
        self._generator = torch.Generator().manual_seed(0)
        self._model = copy.deepcopy(model)
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        with torch.no_grad():
            for parameter in self._model.parameters():
                move = 0.02 * torch.randn(parameter.shape, generator=self._generator, dtype=torch.float64)
                parameter.add_(move.to(parameter))
        self._wide = copy.deepcopy(self._model).double()

    def _images(self, count: int, least: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Images with values from `least` to 1, and classes."""
        images = torch.rand(count, *self._shape, generator=self._generator, dtype=torch.float64)
        targets = torch.randint(0, self._classes, (count,), generator=self._generator)
        return (images * (1 - least) + least).to(self._device, dtype), targets.to(self._device)

    def require_outputs(self) -> None:
        """One row of outputs per image, one number per class."""
        images, _ = self._images(3, -1.0)
        with torch.no_grad():
            outputs: Any = copy.deepcopy(self._wide)(images)
        if not isinstance(outputs, Tensor):
            raise ConfigError(
                f"the model gives a {type(outputs).__name__} and not a tensor. Fix: a model, or a small one around it, "
                "that returns the logits alone."
            )
        if tuple(outputs.shape) != (3, self._classes):
            raise ConfigError(
                f"the model gives outputs of shape {tuple(outputs.shape)} for 3 images; with {self._classes} classes "
                f"it must be (3, {self._classes})."
            )

    def require_loss_of_outputs(self) -> None:
        """A loss that uses trainable tensors itself would lose that part of its gradient."""
        _, targets = self._images(3, -1.0)
        outputs = torch.zeros(3, self._classes, dtype=torch.float64, device=self._device)
        with torch.enable_grad():
            losses = self._loss(outputs, targets)
        if losses.requires_grad:
            raise ConfigError(
                "the loss depends on trainable tensors besides the model's outputs, such as a penalty on the weights, "
                "and that part would be left out. Fix: weight decay of the optimiser, or compute it in the model."
            )

    def against_autograd(self, views: list[int], least: float, odd: int, factor: float) -> None:
        """In float64 and in one pass; next to a unit that is multiplied by `factor`."""
        images, targets = self._images(sum(views), least)
        units = _slices(views)
        images[units[odd]] *= factor
        model = copy.deepcopy(self._wide)
        before = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
        together = ClippedSum(model, self._loss, clip=1.0, physical=len(images)).gradients(images, targets, views)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.equal(tensor, before[name]):
                raise UnsafeLayer(f"{name}: a tensor that a pass over images changes would carry them out of here.")
        for unit, part in enumerate(units):
            if unit != odd or abs(factor) <= 1:
                fresh = copy.deepcopy(self._wide)
                alone = _alone(fresh, self._loss, images[part], targets[part]).detach()
                _compare(fresh, together[unit], alone, TOLERANCE)

    def views_apart(self) -> None:
        """Two units of two views, each view at weights of its own: the mean of ordinary gradients at these weights."""
        images, targets = self._images(4, -1.0)
        engine = ClippedSum(copy.deepcopy(self._wide), self._loss, clip=1.0)
        moves = [
            0.01 * torch.randn(engine.size, generator=self._generator, dtype=torch.float64).to(images) for _ in range(2)
        ]
        together = engine.gradients(images, targets, [2, 2], Public(perturbations=moves))
        for unit in range(2):
            each = []
            for view, move in enumerate(moves):
                moved, row = copy.deepcopy(self._wide), slice(2 * unit + view, 2 * unit + view + 1)
                trained = [p for p in moved.parameters() if p.requires_grad]
                vector_to_parameters(parameters_to_vector(trained).detach() + move, trained)
                each.append(_alone(moved, self._loss, images[row], targets[row]).detach())
            _compare(self._wide, together[unit], (each[0] + each[1]) / 2, TOLERANCE)

    def against_itself(self, physical: int | None) -> None:
        """In the model's own precision, by bits: other units and other batches change nothing of a unit's gradient.

        One unit is one image, another is all the rest: so that many images take the memory of few gradients.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as each group of units is worked on
        try:
            for least in (0.0, -1.0):
                self._in_own_precision(least, physical)
        finally:
            torch.set_num_threads(threads)

    def _in_own_precision(self, least: float, physical: int | None) -> None:
        engine = ClippedSum(copy.deepcopy(self._model), self._loss, clip=1.0, physical=physical)
        images, targets = self._images(LEAST_TRIED, least, self._dtype)
        alone = engine.gradients(images[:1], targets[:1], [1])
        count = min(max(LEAST_TRIED, engine.pass_images + 1), MOST_TRIED) if least == 0 else 3
        if count > LEAST_TRIED:
            more = self._images(count - LEAST_TRIED, least, self._dtype)
            images, targets = (torch.cat(pair) for pair in zip((images, targets), more, strict=True))
        images, targets = images[:count], targets[:count]
        engine = ClippedSum(copy.deepcopy(self._model), self._loss, clip=1.0, physical=count + 3)  # in one pass
        first, views = slice(0, 1), [1, count - 1]

        def beside(*odd: Tensor) -> Tensor:
            """The gradients of both units next to odd ones in front of them, between them and behind them."""
            mine = [(images[first], targets[first], [1]), (images[1:], targets[1:], [count - 1])]
            strange = [(t, targets[:1].expand(len(t)), [1] * len(t)) for t in odd]
            parts = [strange[0], mine[0], strange[1], mine[1], strange[2]]
            xs, ys, sizes = zip(*parts, strict=True)
            rows = engine.gradients(torch.cat(xs), torch.cat(ys), list(chain.from_iterable(sizes)))
            before = len(odd[0])
            return rows[[before, before + 1 + len(odd[1])]]

        one, none = images[:1], images[:0]
        base = engine.gradients(images, targets, views)
        trials = [
            torch.cat([alone, base[1:]]),
            beside(torch.cat([-one, 0 * one, HUGE * one]), none, none),
            beside(none, NAN * one, -one),
        ]
        if count < LEAST_TRIED:
            trials.append(engine.gradients(images, targets, views))  # again, after others
        for mine, other in ((m, o) for trial in trials for m, o in zip(trial, base, strict=True)):
            self._require_same(mine, other, physical)

    def _require_same(self, mine: Tensor, other: Tensor, physical: int | None) -> None:
        if bool(((mine == other) | (mine.isnan() & other.isnan())).all()):
            return
        _compare(self._model, mine.double(), other.double(), TOLERANCE_OWN)
        if physical != 1:
            raise UnsafeLayer(
                f"the gradient of a unit is rounded differently when other units are in the batch, by "
                f"{float((mine - other).norm() / other.norm()):.1e} of itself, so one unit more could move all others. "
                "Some function of the model rounds a number by its place in a batch. Fix: physical=1, where units pass "
                "one by one; or write that function with layers of torch.nn."
            )


def _slices(views: Sequence[int]) -> list[slice]:
    return list(starmap(slice, pairwise(accumulate(views, initial=0))))


def _alone(model: nn.Module, loss: Loss, images: Tensor, targets: Tensor) -> Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    try:
        gradients = torch.autograd.grad(loss(model(images), targets).mean(), parameters, allow_unused=True)
    except ValueError as error:
        raise UnsafeLayer(f"the model cannot treat an image when other images are not in the batch: {error}") from error
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, gradients, strict=True)]
    )


def _compare(model: nn.Module, batch: Tensor, alone: Tensor, tolerance: float) -> None:
    least = float(alone.norm()) * 1e-3
    start = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        part = slice(start, start + parameter.numel())
        off, size = float((batch[part] - alone[part]).norm()), float(alone[part].norm())
        if not off <= tolerance * max(size, least):
            owner = name.rpartition(".")[0]
            kind = type(model.get_submodule(owner)).__name__
            raise UnsafeLayer(
                f"{name} ({kind}): its gradient for an image differs when other images are in the batch, by "
                f"{off / max(size, least):.1%}. Either a layer after it mixes the examples of a batch, or it is used "
                "in a way that has no rule. Fix: let every layer work on each image alone, or freeze this one."
            )
        start += parameter.numel()
