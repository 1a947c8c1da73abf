"""A certificate by trial: the engine that will train returns the clipped sum that clipping.py specifies.

The engine is fast, and checked instead of trusted. Before every charge, in exactly the configuration that will train
(the model with its frozen parts, the loss, the clip style, the numbers of views, the one-view path, the physical batch,
the threads), random images show that

    it equals the specification    in float64, with units above and below the bound, images in [-1, 1] and in [0, 1],
                                   and public vectors where some are used
    odd units are bounded          units of zeros, huge, NaN or Inf contribute at most the sensitivity; NaN nothing
    every unit is bounded          in the model's own precision too, at a bound that all gradients exceed as well
    no unit moves another          in the model's own precision and with more images than one pass holds, the sum of
                                   all units is, to the last bit, the sum of their own sums: also next to odd units
    positions do not matter        on an accelerator, in full passes: a unit's gradient has the same bits when it is
                                   computed again, at other positions, with fewer units, and next to odd ones, and its
                                   contribution has the same bits at the first position and at the last
    float64 adds exactly           whole numbers, alone and in products, as the sums of contributions need it
    nothing is kept                the same batch gives the same bits again after another batch, and a pass leaves every
                                   parameter and buffer as it was

Each trial starts from a fresh copy of the model, at weights that are moved a little, so that no path is closed by a
zero. A trial is not a proof: a model that mixes images only in batches above MAX_TRIED, or only for values that no
trial has, is not detected. What remains to be trusted: torch's autograd, and that the engine treats the private images
as it treated the random ones.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpvision.core.clipping import Flat, Loss, Public, Style, clipped_sum, layer_of
from dpvision.core.noise import ARITHMETIC_SLACK
from dpvision.errors import ConfigError, DPVisionError, UnsafeLayer

TOLERANCE = 1e-6  # relative error of a parameter's part of the specified sum, in float64: more is not rounding
# Images in the trial in the model's own precision: more than one pass holds, within these bounds.
MIN_TRIED, MAX_TRIED = 33, 257
HUGE = 1e6
KINDS = 16  # different units in a trial of full passes
Batch = tuple[Tensor, Tensor, Sequence[int]]


class Engine(Protocol):
    """Computes clipped sums: private.engine.ClippedSum."""

    @property
    def sensitivity(self) -> float: ...

    @property
    def size(self) -> int: ...

    @property
    def pass_images(self) -> int: ...

    @property
    def rounding(self) -> float: ...

    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor: ...

    def inner_products(
        self, images: Tensor, targets: Tensor, views: Sequence[int], direction: Tensor, public: Public | None = None
    ) -> Tensor: ...


class MakeEngine(Protocol):
    """Makes an engine for a model, a loss and a style; everything else about it is as it will train."""

    def __call__(self, model: nn.Module, loss: Loss, *, clip: Style) -> Engine: ...


def certify(
    model: nn.Module,
    loss: Loss,
    shape: tuple[int, ...],
    classes: int,
    *,
    engine: MakeEngine,
    style: Style,
    views: Sequence[int] = (2, 3, 1),
    public: Sequence[str] = (),
) -> None:
    """Refuse an engine that differs from the specification in a trial.

    `views` are the numbers of images of units, in turn. `public` names the public vectors that shape contributions:
    "scale", "shift", "perturbations".
    """
    if classes < 1:
        raise ConfigError(f"classes is {classes}: a model needs at least one output.")
    with _explained(model, shape):
        engine(model, loss, clip=style)  # refuses layers by name
        require_exact_sums(_device_of(model))
        for name, parameter in model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise ConfigError(f"{name} is not finite: training cannot start from it. Fix: other initial weights.")
        trial = _Trial(model, loss, shape, classes, engine, style, views, public)
        with _constants_in(torch.float64):
            trial.require_outputs()
            trial.require_loss_of_outputs()
            trial.equals_specification()
        trial.places_do_not_matter()
        trial.units_are_apart()


def digest_rounding(
    model: nn.Module,
    loss: Loss,
    shape: tuple[int, ...],
    classes: int,
    *,
    engine: MakeEngine,
    style: Style,
    views: Sequence[int],
    public: Sequence[str] = (),
) -> str:
    """Return a digest of the bits that an accelerator computes for this model on random images, in full passes."""
    with _explained(model, shape):
        return _Trial(model, loss, shape, classes, engine, style, views, public).digest()


def require_exact_sums(device: torch.device) -> None:
    """Require that float64 adds and multiplies whole numbers below 2^53 without error, as on the host."""
    generator = torch.Generator().manual_seed(0)
    terms = torch.randint(-(1 << 42), 1 << 42, (1024, 64), generator=generator)
    factors = [torch.randint(-(1 << 22), 1 << 22, (256, 48), generator=generator) for _ in range(2)]
    far, (one, other) = terms.double().to(device), (f.double().to(device) for f in factors)
    anchor = 1.5 * 2.0**52
    results = ((far.sum(0), terms.sum(0)), (one.T @ other, factors[0].T @ factors[1]), (far + anchor - anchor, terms))
    if not all(torch.equal(result.cpu(), exact.double()) for result, exact in results):
        raise ConfigError(f"device {device}: its float64 does not add whole numbers exactly. Fix: --device cpu.")


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@dataclass
class _Trial:
    """Random images and fresh copies of a model at weights that are moved a little."""

    _model: nn.Module
    _loss: Loss
    _shape: tuple[int, ...]
    _classes: int
    _engine: MakeEngine
    _style: Style
    _views: Sequence[int]
    _public: Sequence[str]

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._model = copy.deepcopy(self._model)
        self._device = _device_of(self._model)
        self._dtype = next((p.dtype for p in self._model.parameters() if p.is_floating_point()), torch.float32)
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.add_((0.02 * self._normal(*parameter.shape)).to(parameter))
        self._wide = copy.deepcopy(self._model).double()

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def _images(self, count: int, least: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Images with values from `least` to 1, and classes."""
        images = torch.rand(count, *self._shape, generator=self._generator, dtype=torch.float64)
        targets = torch.randint(0, self._classes, (count,), generator=self._generator)
        return (images * (1 - least) + least).to(self._device, dtype), targets.to(self._device)

    def _vectors(self, views: int, dtype: torch.dtype = torch.float64) -> Public:
        """Public vectors of the kinds that training will use."""
        size = sum(p.numel() for p in self._wide.parameters() if p.requires_grad)
        drawn = [self._normal(size).to(self._device, dtype) for _ in range(2 + views)]
        scale = drawn[0].abs() + 0.5 if "scale" in self._public else None
        shift = 0.1 * drawn[1] / math.sqrt(size) if "shift" in self._public else None
        return Public(scale, shift, [0.01 * v for v in drawn[2:]] if "perturbations" in self._public else [])

    def require_outputs(self) -> None:
        """Require one row of outputs per image, with one number per class."""
        images, _ = self._images(3, -1.0)
        with torch.no_grad():
            outputs: Any = copy.deepcopy(self._wide)(images)
        if not isinstance(outputs, Tensor):
            raise ConfigError(
                f"the model returns a {type(outputs).__name__} and not a tensor. Fix: a model, or a wrapper, that "
                "returns the logits alone."
            )
        if tuple(outputs.shape) != (3, self._classes):
            raise ConfigError(
                f"the model returns outputs of shape {tuple(outputs.shape)} for 3 images; with {self._classes} classes "
                f"it must be (3, {self._classes})."
            )

    def require_loss_of_outputs(self) -> None:
        """Refuse a loss that uses trainable tensors itself: that part of its gradient would be lost."""
        _, targets = self._images(3, -1.0)
        outputs = torch.zeros(3, self._classes, dtype=torch.float64, device=self._device)
        with torch.enable_grad():
            losses = self._loss(outputs, targets)
        if losses.requires_grad:
            raise ConfigError(
                "the loss depends on trainable tensors besides the model's outputs, such as a penalty on the weights, "
                "and that part would be left out. Fix: weight decay of the optimiser, or compute it in the model."
            )

    def equals_specification(self) -> None:
        """In float64: units of each kind together, at the bound that will train and at one that half of them exceed."""
        for least, odd in ((-1.0, 1.0), (0.0, -1.0), (0.0, HUGE), (-1.0, 0.0), (-1.0, torch.nan), (0.0, torch.inf)):
            views = [self._views[i % len(self._views)] for i in range(3)]
            images, targets = self._images(sum(views), least)
            units = list(zip(images.split(views), targets.split(views), strict=True))
            units[1] = (units[1][0] * odd, units[1][1])
            public = self._vectors(max(views))
            self._compare(units, odd, self._style, public)
            if odd == 1.0:
                norms = sorted(self._norms(units, public))
                self._compare(units, odd, self._style_of(norms[len(norms) // 2]), public)

    def _norms(self, units: Iterable[tuple[Tensor, Tensor]], public: Public) -> list[float]:
        """The norms of the units' gradients before clipping."""
        return [float(self._specified([unit], Flat(1e12), public).norm()) for unit in units]

    def _style_of(self, bound: float) -> Style:
        """The clip style of the run, with another bound."""
        return type(self._style)(min(max(bound, 1e-9), 1e9))

    def _specified(self, units: Iterable[tuple[Tensor, Tensor]], style: Style, public: Public) -> Tensor:
        try:
            return clipped_sum(copy.deepcopy(self._wide), self._loss, style, units, public)
        except ValueError as error:
            raise UnsafeLayer(f"the model cannot treat an image when no others are in the batch: {error}") from error

    def _compare(self, units: list[tuple[Tensor, Tensor]], odd: float, style: Style, public: Public) -> None:
        model = copy.deepcopy(self._wide)
        before = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
        engine = self._engine(model, self._loss, clip=style)
        got = engine.sum([_batch(units)], public).cpu()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.equal(tensor, before[name]):
                raise UnsafeLayer(f"{name}: a pass over images changes this tensor, so they would reach later steps.")
        if not abs(odd) <= 1:  # rounding is large there: this unit is only bounded, and the others are compared
            contribution = engine.sum([_batch(units[1:2])], public).cpu()
            most = 0.0 if math.isnan(odd) else engine.sensitivity * (1 + ARITHMETIC_SLACK)
            if not float(contribution.norm()) <= most:
                raise UnsafeLayer(
                    f"a unit of images times {odd} contributes {float(contribution.norm()):.3g} to the sum, where "
                    f"{most:.3g} is the most. Either a layer has no rule, or one turns such values into numbers."
                )
            got, units = got - contribution, [units[0], *units[2:]]
        _require_close(self._wide, got, self._specified(units, style, public), engine)

    def places_do_not_matter(self) -> None:
        """On an accelerator, in full passes of units of each size: equal units have equal bits, wherever they are.

        Running out of memory, and kernels that are not deterministic, show here too.
        """
        if self._device.type != "cpu":
            for size in dict.fromkeys(self._views):
                self._try_places(size)

    def digest(self) -> str:
        """Return a digest of the inner products of a full pass, which names how the device rounds this model."""
        digest = hashlib.blake2b(digest_size=8)
        for size in dict.fromkeys(self._views):
            engine, public, direction, images, targets, units = self._full_pass(size)
            order = (torch.arange(units) % len(images)).to(self._device)
            batch = images[order].flatten(0, 1), targets[order].flatten(0, 1), [size] * units
            digest.update(engine.inner_products(*batch, direction, public).cpu().numpy().tobytes())
        return digest.hexdigest()

    def _full_pass(self, size: int) -> tuple[Engine, Public, Tensor, Tensor, Tensor, int]:
        """Return an engine, public vectors, a direction, units of some kinds, and the number of units in a pass."""
        engine = self._engine(copy.deepcopy(self._model), self._loss, clip=self._style)
        public, direction = self._vectors(size, self._dtype), self._normal(engine.size).to(self._device)
        engine.sum([(*self._images(size, 0.0, self._dtype), [size])], public)  # measures the images of a pass
        units = max(2, engine.pass_images // size)
        kinds = min(units, KINDS)
        images, targets = (t.unflatten(0, (kinds, size)) for t in self._images(size * kinds, 0.0, self._dtype))
        return engine, public, direction, images, targets, units

    def _try_places(self, size: int) -> None:
        engine, public, direction, images, targets, units = self._full_pass(size)
        kinds = len(images)

        def products(order: Tensor, odd: Sequence[float] = ()) -> Tensor:
            """Compute <gradient, direction> of units of these kinds, the first of them times an odd factor."""
            x, y = (t[order.to(self._device)] for t in (images, targets))
            for unit, factor in enumerate(odd):
                x[unit] *= factor
            batch = x.flatten(0, 1), y.flatten(0, 1), [size] * len(order)
            return engine.inner_products(*batch, direction, public).cpu()

        order = torch.arange(units) % kinds
        first = products(order)
        expected = first[order]
        self._require_equal("when it is computed again", products(order), first)
        self._require_equal("at another position", first, expected)
        for shift in (1, units // 2):
            self._require_equal("at another position", products(order.roll(shift)), expected.roll(shift))
        for fewer in (1, units // 2):
            self._require_equal("with fewer units", products(order[fewer:]), expected[fewer:])
        odd = (HUGE, torch.nan)[: units - 1]
        self._require_equal("next to odd ones", products(order, odd)[len(odd) :], expected[len(odd) :])
        alone = engine.sum([(images[0], targets[0], [size])], public)
        x, y = images[:1].repeat(units, *[1] * (images.dim() - 1)), targets[:1].repeat(units, 1)
        x[:-1] = torch.nan  # these contribute nothing
        last = engine.sum([(x.flatten(0, 1), y.flatten(0, 1), [size] * units)], public)
        self._require_equal("in a sum, at the last position", last.cpu(), alone.cpu())

    def _require_equal(self, where: str, got: Tensor, expected: Tensor) -> None:
        if not torch.equal(got, expected):
            raise UnsafeLayer(
                f"device {self._device}: a unit's gradient has other bits {where}, so one unit more could move all "
                "others. Either a layer mixes the examples of a batch, or a kernel rounds by position or at random. "
                "Fix: --device cpu, or another --precision."
            )

    def units_are_apart(self) -> None:
        """In the model's own precision, to the bit: the sum of all units is the sum of each, whatever is next to it.

        Few units at the bound that will train, and more images than one pass holds at a bound that nobody exceeds. On
        one thread, like each pass in training, so that the passes are as large as any there.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for least in (0.0, -1.0):
                self._apart(least, self._style)
            self._apart(0.0, self._unclipped(), many=True)
            self._bound_holds()
        finally:
            torch.set_num_threads(threads)

    def _unclipped(self) -> Style:
        """A style whose bound no unit of the trial exceeds: clipping would hide what only scales a gradient."""
        size = self._views[0]
        images, targets = self._images(4 * size, 0.0)
        units = zip(images.split(size), targets.split(size), strict=True)
        return self._style_of(16 * max(self._norms(units, self._vectors(size))))

    def _bound_holds(self) -> None:
        """In the model's own precision: units whose gradients are far above the bound contribute at most the bound.

        On an accelerator, a contribution that is clipped flat then has the norm of the bound, and not less either.
        """
        size = self._views[0]
        images, targets = self._images(2 * size, 0.0)
        units = list(zip(images.split(size), targets.split(size), strict=True))
        public = self._vectors(size)
        norms = self._norms(units, public)
        if not min(norms) > 1e-8:  # nothing to clip
            return
        style = self._style_of(min(norms) / 8)
        flat = isinstance(style, Flat) and self._device.type != "cpu"
        engine = self._engine(copy.deepcopy(self._model), self._loss, clip=style)
        scale, shift = (None if v is None else v.to(self._dtype) for v in (public.scale, public.shift))
        public = Public(scale, shift, [v.to(self._dtype) for v in public.perturbations])
        for x, y in units:
            contribution = engine.sum([(x.to(self._dtype), y, [size])], public)
            _require_bounded(contribution, engine, least=0.9 if flat else 0.0)

    def _apart(self, least: float, style: Style, *, many: bool = False) -> None:
        engine = self._engine(copy.deepcopy(self._model), self._loss, clip=style)
        size = self._views[0]
        public = self._vectors(size, self._dtype)
        engine.sum([(*self._images(size, least, self._dtype), [size])], public)  # measures the images of a pass
        count = min(max(MIN_TRIED, engine.pass_images + 1), MAX_TRIED) if many else 3
        images, targets = self._images(size * max(3, math.ceil(count / size)), least, self._dtype)
        units = list(zip(images.split(size), targets.split(size), strict=True))
        if size == 1 and len(self._views) > 1:  # one large unit takes the memory of one gradient
            units = [units[0], (images[1:], targets[1:])]
        image, target = units[0]
        negative, zero, huge, none = ((image * factor, target) for factor in (-1.0, 0.0, HUGE, torch.nan))
        base = engine.sum([_batch(units)], public)
        alone = engine.sum([_batch(units[:1])], public) + engine.sum([_batch(units[1:])], public)
        self._require_same(alone, base)
        for first, between, last in (([negative, zero, huge], [], []), ([], [none], [negative])):
            parts = [engine.sum([_batch([unit])], public) for unit in (*first, *between, *last)]
            for part in parts:
                _require_bounded(part, engine)
            mixed = engine.sum([_batch([*first, units[0], *between, *units[1:], *last])], public)
            self._require_same(mixed, base + sum(parts))
        for unit in () if many else units:
            _require_bounded(engine.sum([_batch([unit])], public), engine)
        if not many:
            self._require_same(engine.sum([_batch(units)], public), base)  # again, after others

    def _require_same(self, got: Tensor, expected: Tensor) -> None:
        if torch.equal(got, expected):
            return
        off = float((got - expected).norm()) / self._style.sensitivity
        if self._device.type != "cpu":
            self._require_equal("in a sum with others", got, expected)
        raise UnsafeLayer(
            f"the contribution of a unit depends on which other units are in the batch, by {off:.1e} of the clipping "
            "norm, so one unit more could move all others. Either a layer mixes the examples of a batch or keeps "
            "something of them, or some function rounds by the position in a batch. Fix: let every layer work on "
            "each image alone; if it is only rounding, physical=1, where units pass one by one."
        )


def _batch(units: Sequence[tuple[Tensor, Tensor]]) -> Batch:
    images, targets = (torch.cat(part) for part in zip(*units, strict=True))
    return images, targets, [len(x) for x, _ in units]


def _require_bounded(contribution: Tensor, engine: Engine, *, least: float = 0.0) -> None:
    """Require that one unit's contribution has at most the norm of the sensitivity, and at least a part of it."""
    norm = float(contribution.cpu().norm()) / engine.sensitivity
    if not least <= norm <= 1 + ARITHMETIC_SLACK:
        raise UnsafeLayer(
            f"device {contribution.device}: a random unit contributes {norm:.4g} times the sensitivity to the sum, "
            f"where {least:g} to 1 is right. The device, or a library, computes norms or sums wrongly in the model's "
            "own precision. Fix: --device cpu, or another --precision."
        )


def _require_close(model: nn.Module, got: Tensor, expected: Tensor, engine: Engine) -> None:
    """Compare parameter by parameter, allowing for rounding and for parts that are far smaller than the rest."""
    rounding = (TOLERANCE + min(engine.rounding, ARITHMETIC_SLACK)) * engine.sensitivity
    trained = [(name, p.numel()) for name, p in model.named_parameters() if p.requires_grad]
    sizes = [size for _, size in trained]
    for (name, _), mine, theirs in zip(trained, got.split(sizes), expected.split(sizes), strict=True):
        off, size = float((mine - theirs).norm()), max(float(theirs.norm()), 1e-3 * float(expected.norm()))
        if not off <= TOLERANCE * size + rounding:
            kind = type(model.get_submodule(layer_of(name))).__name__
            raise UnsafeLayer(
                f"{name} ({kind}): its part of the clipped sum differs from the specified one by "
                f"{off / max(size, 1e-300):.1%}. Either a layer after it mixes the examples of a batch, or it is used "
                "in a way that has no rule. Fix: let every layer work on each image alone, or freeze this one."
            )


@contextmanager
def _constants_in(dtype: torch.dtype) -> Iterator[None]:
    """Tensors that a model creates, by torch.zeros and the like, have the precision of the trial."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _explained(model: nn.Module, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn what torch raises in a trial into a ConfigError."""
    try:
        yield
    except DPVisionError:
        raise
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"device {_device_of(model)}: its memory is too small for one pass of this training. "
            "Fix: a smaller --physical."
        ) from error
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        if "deterministic" in reason:
            raise UnsafeLayer(
                f"{_without_deterministic_kernel(model, shape)} has no kernel on {_device_of(model)} that gives the "
                f"same bits twice: {reason.split(', but')[0]}. Fix: another layer, or --device cpu."
            ) from error
        raise ConfigError(
            f"the model or the loss failed on random images, in a trial of its gradients: {type(error).__name__}: "
            f"{reason} Fix: a model and a loss of plain torch functions, with the images along the first axis."
        ) from error


def _without_deterministic_kernel(model: nn.Module, shape: tuple[int, ...]) -> str:
    """Name the first module, inner ones first, whose own backward pass has no deterministic kernel."""
    model = copy.deepcopy(model)
    names = {module: name for name, module in model.named_modules()}
    found: list[str] = []
    trying = False

    def attempt(module: nn.Module, inputs: tuple[Any, ...], _: Any) -> None:
        nonlocal trying
        if trying or found or not all(isinstance(x, Tensor) and x.is_floating_point() for x in inputs):
            return
        trying = True
        try:
            with torch.enable_grad():
                copies = [x.detach().clone().requires_grad_() for x in inputs]
                torch.autograd.grad(module.forward(*copies).sum(), copies, allow_unused=True)
        except RuntimeError as error:
            if "deterministic" in str(error):
                found.append(f"{names[module] or 'the model'} ({type(module).__name__})")
        finally:
            trying = False

    for module in model.modules():
        module.register_forward_hook(attempt)
    with suppress(RuntimeError), torch.no_grad():
        model(torch.zeros(2, *shape, device=_device_of(model)))
    return found[0] if found else "the model or the loss"
