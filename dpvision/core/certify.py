"""Tests before every charge that the engine computes the clipped sum that clipping.py specifies.

The engine is fast, and it is tested instead of trusted. In exactly the configuration of the run (model with its frozen
parts, loss, clipping style, numbers of views, one-view path, physical batch size, threads), random images show that

    it matches the specification   in float64: units above and below the bound, images in [-1, 1] and in [0, 1], and
                                   public vectors if the run uses them
    odd units are bounded          zeros, huge values, NaN and Inf contribute at most the sensitivity; NaN nothing
    every unit is bounded          in the model's own precision too, at a bound that all gradients exceed
    units are independent          in the model's own precision and with more images than fit one pass, the sum of all
                                   units is bitwise the sum of their separate sums, even next to odd units
    position does not matter       on an accelerator, in full passes: a unit's gradient has the same bits when it is
                                   computed again, at other positions, with fewer units, and next to odd units; its
                                   contribution has the same bits at the first position and at the last
    float64 is exact               for sums and products of whole numbers, as exact sums of contributions require
    no state remains               a batch gives the same bits again after another batch, and a pass leaves every
                                   parameter and buffer unchanged

Each test starts from a fresh copy of the model with slightly perturbed weights, so that no zero blocks a path. A test
is not a proof: it does not detect a model that mixes images only in batches above MAX_TRIED, or only for values that no
test uses. Still trusted: torch's autograd, and that the engine treats private images like the random ones.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpvision.core.clipping import Flat, Loss, Public, Style, clipped_sum, layer_of
from dpvision.core.noise import ARITHMETIC_SLACK
from dpvision.errors import ConfigError, DPVisionError, UnsafeLayer

TOLERANCE = 1e-6  # relative error of a parameter's part of the sum, in float64; rounding stays below it
MIN_TRIED, MAX_TRIED = 33, 257  # limits on the number of images that is meant to exceed one pass
HUGE = 1e6
KINDS = 16  # number of different units in a test of full passes
Unit = tuple[Tensor, Tensor]
Batch = tuple[Tensor, Tensor, Sequence[int]]
DrawTargets = Callable[[int, torch.Generator], Tensor]  # (number of images, generator) -> targets as in training


class Engine(Protocol):
    """Computes clipped sums; implemented by private.engine.ClippedSum."""

    @property
    def sensitivity(self) -> float: ...

    @property
    def pass_images(self) -> int: ...

    @property
    def rounding(self) -> float: ...

    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor: ...

    def inner_products(
        self, images: Tensor, targets: Tensor, views: Sequence[int], direction: Tensor, public: Public | None = None
    ) -> Tensor: ...


MakeEngine = Callable[..., Engine]  # (model, loss, *, clip: Style), with all other settings as in the run


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
    targets: DrawTargets | None = None,
) -> None:
    """Refuse an engine that differs from the specification in a test on random images.

    `views` lists the numbers of images per unit, which the test uses in turn. `public` names the public vectors that
    shape contributions: "scale", "shift", "perturbations". `targets` draws targets of the kind that the loss takes; by
    default, one of the classes.
    """
    if classes < 1:
        raise ConfigError(f"classes is {classes}: a model needs at least one output.")
    with _explain_failures(model, shape):
        engine(model, loss, clip=style)  # refuses unsafe layers by name
        require_exact_sums(_device_of(model))
        for name, parameter in model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise ConfigError(
                    f"{name} is not finite: training cannot start from it. Fix: use other initial weights."
                )
        trial = _Trial(
            model, loss, shape, classes, engine=engine, style=style, views=views, public=public, targets=targets
        )
        # So that tensors created by the model, such as torch.zeros(...), have the precision of the test.
        with _torch_setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64):
            trial.require_outputs()
            trial.require_loss_of_outputs()
            trial.equals_specification()
        for size in dict.fromkeys(views) if _device_of(model).type != "cpu" else ():
            trial.places_do_not_matter(size)
        trial.units_are_apart()


def digest_rounding(model: nn.Module, loss: Loss, shape: tuple[int, ...], classes: int, **options: Any) -> str:
    """Return a digest of the bits that an accelerator computes on random images; arguments as for `certify`."""
    with _explain_failures(model, shape):
        return _Trial(model, loss, shape, classes, **options).digest()


def require_exact_sums(device: torch.device) -> None:
    """Require that the device's float64 adds and multiplies whole numbers below 2^53 without error."""
    generator = torch.Generator().manual_seed(0)
    terms = torch.randint(-(1 << 42), 1 << 42, (1024, 64), generator=generator)
    factors = [torch.randint(-(1 << 22), 1 << 22, (256, 48), generator=generator) for _ in range(2)]
    far, (one, other) = terms.double().to(device), (f.double().to(device) for f in factors)
    anchor = 1.5 * 2.0**52
    results = ((far.sum(0), terms.sum(0)), (one.T @ other, factors[0].T @ factors[1]), (far + anchor - anchor, terms))
    if not all(torch.equal(result.cpu(), exact.double()) for result, exact in results):
        raise ConfigError(f"device {device}: its float64 does not add whole numbers exactly. Fix: use --device cpu.")


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@dataclass
class _Trial:
    """Random images and fresh copies of a model with slightly perturbed weights."""

    model: nn.Module
    loss: Loss
    shape: tuple[int, ...]
    classes: int
    engine: MakeEngine
    style: Style
    views: Sequence[int]
    public: Sequence[str] = ()
    targets: DrawTargets | None = None

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self.model = copy.deepcopy(self.model)
        self._device = _device_of(self.model)
        self._dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        self._size = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_((0.02 * self._normal(*parameter.shape)).to(parameter))
        self._wide = copy.deepcopy(self.model).double()

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def _images(self, count: int, low: float, dtype: torch.dtype = torch.float64) -> Unit:
        """Draw images with values from `low` to 1, and targets."""
        images = torch.rand(count, *self.shape, generator=self._generator, dtype=torch.float64)
        if self.targets is None:
            targets = torch.randint(0, self.classes, (count,), generator=self._generator)
        else:
            targets = self.targets(count, self._generator)
        return (images * (1 - low) + low).to(self._device, dtype), targets.to(self._device)

    def _units(self, sizes: list[int], low: float, dtype: torch.dtype = torch.float64) -> list[Unit]:
        """Draw units with these numbers of images."""
        images, targets = self._images(sum(sizes), low, dtype)
        return list(zip(images.split(sizes), targets.split(sizes), strict=True))

    def _vectors(self, views: int, dtype: torch.dtype = torch.float64) -> Public:
        """Draw public vectors of the kinds that the run uses."""
        drawn = [self._normal(self._size).to(self._device, dtype) for _ in range(2 + views)]
        scale = drawn[0].abs() + 0.5 if "scale" in self.public else None
        shift = 0.1 * drawn[1] / math.sqrt(self._size) if "shift" in self.public else None
        return Public(scale, shift, [0.01 * v for v in drawn[2:]] if "perturbations" in self.public else [])

    def require_outputs(self) -> None:
        """Require one row of outputs per image, with one number per class."""
        images, _ = self._images(3, -1.0)
        with torch.no_grad():
            outputs: Any = copy.deepcopy(self._wide)(images)
        if not isinstance(outputs, Tensor):
            raise ConfigError(
                f"the model returns a {type(outputs).__name__} and not a tensor. Fix: use a model, or a wrapper, that "
                "returns the logits alone."
            )
        if tuple(outputs.shape) != (3, self.classes):
            raise ConfigError(
                f"the model returns outputs of shape {tuple(outputs.shape)} for 3 images; with {self.classes} classes "
                f"it must be (3, {self.classes})."
            )

    def require_loss_of_outputs(self) -> None:
        """Refuse a loss that uses trainable tensors itself: that part of its gradient would be lost."""
        _, targets = self._images(3, -1.0)
        outputs = torch.zeros(3, self.classes, dtype=torch.float64, device=self._device)
        with torch.enable_grad():
            losses = self.loss(outputs, targets)
        if losses.requires_grad:
            raise ConfigError(
                "the loss depends on trainable tensors besides the model's outputs, such as a penalty on the weights, "
                "and their gradient would be lost. Fix: use the optimiser's weight decay, or compute it in the model."
            )

    def equals_specification(self) -> None:
        """Compare with the specification in float64, at the run's bound and at one that about half the units exceed."""
        for low, odd in ((-1.0, 1.0), (0.0, -1.0), (0.0, HUGE), (-1.0, 0.0), (-1.0, torch.nan), (0.0, torch.inf)):
            views = [self.views[i % len(self.views)] for i in range(3)]
            units = self._units(views, low)
            units[1] = (units[1][0] * odd, units[1][1])
            public = self._vectors(max(views))
            self._compare(units, odd, self.style, public)
            if odd == 1.0:
                norms = sorted(self._norms(units, public))
                self._compare(units, odd, self._style_of(norms[len(norms) // 2]), public)

    def _norms(self, units: Iterable[Unit], public: Public) -> list[float]:
        """Return the norms of the units' gradients before clipping."""
        return [float(self._compute_specification([unit], Flat(1e12), public).norm()) for unit in units]

    def _style_of(self, bound: float) -> Style:
        """Return the run's clipping style with another bound."""
        return type(self.style)(min(max(bound, 1e-9), 1e9))

    def _compute_specification(self, units: Iterable[Unit], style: Style, public: Public) -> Tensor:
        try:
            return clipped_sum(copy.deepcopy(self._wide), self.loss, style, units, public)
        except ValueError as error:
            raise UnsafeLayer(f"the model cannot process a single image without others: {error}") from error

    def _compare(self, units: list[Unit], odd: float, style: Style, public: Public) -> None:
        model = copy.deepcopy(self._wide)
        before = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
        engine = self.engine(model, self.loss, clip=style)
        result = engine.sum([_batch(units)], public).cpu()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.equal(tensor, before[name]):
                raise UnsafeLayer(f"{name}: a pass over images changes this tensor, so images would reach later steps.")
        if not abs(odd) <= 1:  # rounding is large here: only bound this unit, and compare the others
            contribution = engine.sum([_batch(units[1:2])], public).cpu()
            bound = 0.0 if math.isnan(odd) else engine.sensitivity * (1 + ARITHMETIC_SLACK)
            if not float(contribution.norm()) <= bound:
                raise UnsafeLayer(
                    f"a unit of images times {odd} contributes {float(contribution.norm()):.3g} to the sum, above the "
                    f"bound of {bound:.3g}. Either a layer has no rule, or one turns such values into numbers."
                )
            result, units = result - contribution, [units[0], *units[2:]]
        _require_close(self._wide, result, self._compute_specification(units, style, public), engine)

    def digest(self) -> str:
        """Return a digest of the inner products of full passes: it identifies how the device rounds this model."""
        digest = hashlib.blake2b(digest_size=8)
        for size in dict.fromkeys(self.views):
            engine, public, direction, images, targets, units = self._full_pass(size)
            order = (torch.arange(units) % len(images)).to(self._device)
            batch = images[order].flatten(0, 1), targets[order].flatten(0, 1), [size] * units
            digest.update(engine.inner_products(*batch, direction, public).cpu().numpy().tobytes())
        return digest.hexdigest()

    def _full_pass(self, size: int) -> tuple[Engine, Public, Tensor, Tensor, Tensor, int]:
        """Return an engine, public vectors, a direction, units of some kinds, and the number of units in a pass."""
        engine = self.engine(copy.deepcopy(self.model), self.loss, clip=self.style)
        public, direction = self._vectors(size, self._dtype), self._normal(self._size).to(self._device)
        engine.sum([(*self._images(size, 0.0, self._dtype), [size])], public)  # fixes the number of images in a pass
        units = max(2, engine.pass_images // size)
        kinds = min(units, KINDS)
        images, targets = (t.unflatten(0, (kinds, size)) for t in self._images(size * kinds, 0.0, self._dtype))
        return engine, public, direction, images, targets, units

    def places_do_not_matter(self, size: int) -> None:
        """In full passes of units of this size, require equal bits for equal units at any position.

        Running out of memory and nondeterministic kernels also surface here.
        """
        engine, public, direction, images, targets, units = self._full_pass(size)
        kinds = len(images)

        def products(order: Tensor, odd: Sequence[float] = ()) -> Tensor:
            """Compute <gradient, direction> for units of these kinds, the first of them times the odd factors."""
            x, y = (t[order.to(self._device)] for t in (images, targets))
            for unit, factor in enumerate(odd):
                x[unit] *= factor
            batch = x.flatten(0, 1), y.flatten(0, 1), [size] * len(order)
            return engine.inner_products(*batch, direction, public).cpu()

        order = torch.arange(units) % kinds
        first = products(order)
        expected = first[order]
        self._require_equal("when computed again", products(order), first)
        self._require_equal("at another position", first, expected)
        for shift in (1, units // 2):
            self._require_equal("at another position", products(order.roll(shift)), expected.roll(shift))
        for fewer in (1, units // 2):
            self._require_equal("with fewer units", products(order[fewer:]), expected[fewer:])
        odd = (HUGE, torch.nan)[: units - 1]
        self._require_equal("next to odd units", products(order, odd)[len(odd) :], expected[len(odd) :])
        alone = engine.sum([(images[0], targets[0], [size])], public)
        x, y = (
            images[:1].repeat(units, *[1] * (images.dim() - 1)),
            targets[:1].repeat(units, *[1] * (targets.dim() - 1)),
        )
        x[:-1] = torch.nan  # these contribute nothing
        last = engine.sum([(x.flatten(0, 1), y.flatten(0, 1), [size] * units)], public)
        self._require_equal("in a sum, at the last position", last.cpu(), alone.cpu())

    def _require_equal(self, where: str, result: Tensor, expected: Tensor) -> None:
        if not torch.equal(result, expected):
            raise UnsafeLayer(
                f"device {self._device}: a unit's gradient has different bits {where}, so adding one unit could move "
                "all others. Either a layer mixes the examples of a batch, or a kernel rounds by position or randomly. "
                "Fix: use --device cpu, or another --precision."
            )

    def units_are_apart(self) -> None:
        """In the model's own precision, require that the sum of all units is bitwise the sum of their separate sums.

        Tries a few units at the run's bound, and more images than fit one pass at a bound that no unit exceeds. Uses
        one thread, like each pass in training, so that passes are as large as any there.
        """
        with _torch_setting(torch.get_num_threads, torch.set_num_threads, 1):
            for low in (0.0, -1.0):
                self._apart(low, self.style)
            self._apart(0.0, self._unclipped_style(), many=True)
            self._bound_holds()

    def _unclipped_style(self) -> Style:
        """Return a style that clips no unit of the test: clipping would hide what only scales a gradient."""
        size = self.views[0]
        return self._style_of(16 * max(self._norms(self._units([size] * 4, 0.0), self._vectors(size))))

    def _bound_holds(self) -> None:
        """In the model's own precision, require that gradients far above the bound contribute at most the bound.

        On an accelerator, a contribution with flat clipping must also not be clearly below the bound.
        """
        size = self.views[0]
        units, public = self._units([size] * 2, 0.0), self._vectors(size)
        norms = self._norms(units, public)
        if not min(norms) > 1e-8:  # nothing to clip
            return
        style = self._style_of(min(norms) / 8)
        flat = isinstance(style, Flat) and self._device.type != "cpu"
        engine = self.engine(copy.deepcopy(self.model), self.loss, clip=style)
        scale, shift = (None if v is None else v.to(self._dtype) for v in (public.scale, public.shift))
        public = Public(scale, shift, [v.to(self._dtype) for v in public.perturbations])
        for x, y in units:
            contribution = engine.sum([(x.to(self._dtype), y, [size])], public)
            _require_bounded(contribution, engine, minimum=0.9 if flat else 0.0)

    def _apart(self, low: float, style: Style, *, many: bool = False) -> None:
        engine = self.engine(copy.deepcopy(self.model), self.loss, clip=style)
        size = self.views[0]
        public = self._vectors(size, self._dtype)
        engine.sum([(*self._images(size, low, self._dtype), [size])], public)  # fixes the images in a pass
        count = min(max(MIN_TRIED, engine.pass_images + 1), MAX_TRIED) if many else 3
        sizes = [size] * max(3, math.ceil(count / size))
        if size == 1 and len(self.views) > 1:  # one large unit needs the memory of a single gradient
            sizes = [1, len(sizes) - 1]
        units = self._units(sizes, low, self._dtype)
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
            self._require_same(engine.sum([_batch(units)], public), base)  # again, after other batches

    def _require_same(self, result: Tensor, expected: Tensor) -> None:
        if torch.equal(result, expected):
            return
        off = float((result - expected).norm()) / self.style.sensitivity
        if self._device.type != "cpu":
            self._require_equal("in a sum with others", result, expected)
        raise UnsafeLayer(
            f"the contribution of a unit depends on the other units in the batch, by {off:.1e} of the clipping norm, "
            "so adding one unit could move all others. Either a layer mixes the examples of a batch or keeps state "
            "from them, or a function rounds by the position in a batch. Fix: let every layer process each image "
            "independently; if it is only rounding, use physical=1, which passes units one by one."
        )


def _batch(units: Sequence[Unit]) -> Batch:
    images, targets = (torch.cat(part) for part in zip(*units, strict=True))
    return images, targets, [len(x) for x, _ in units]


def _require_bounded(contribution: Tensor, engine: Engine, *, minimum: float = 0.0) -> None:
    """Require that the norm of one unit's contribution is at most the sensitivity, and at least a share of it."""
    norm = float(contribution.cpu().norm()) / engine.sensitivity
    if not minimum <= norm <= 1 + ARITHMETIC_SLACK:
        raise UnsafeLayer(
            f"device {contribution.device}: a random unit contributes {norm:.4g} times the sensitivity to the sum; "
            f"{minimum:g} to 1 is correct. The device, or a library, computes norms or sums wrongly in the model's own "
            "precision. Fix: use --device cpu, or another --precision."
        )


def _require_close(model: nn.Module, result: Tensor, expected: Tensor, engine: Engine) -> None:
    """Compare parameter by parameter, allowing for rounding and for parts that are far smaller than the rest."""
    rounding = (TOLERANCE + min(engine.rounding, ARITHMETIC_SLACK)) * engine.sensitivity
    trained = [(name, p.numel()) for name, p in model.named_parameters() if p.requires_grad]
    sizes = [size for _, size in trained]
    for (name, _), mine, theirs in zip(trained, result.split(sizes), expected.split(sizes), strict=True):
        off, size = float((mine - theirs).norm()), max(float(theirs.norm()), 1e-3 * float(expected.norm()))
        if not off <= TOLERANCE * size + rounding:
            kind = type(model.get_submodule(layer_of(name))).__name__
            raise UnsafeLayer(
                f"{name} ({kind}): its part of the clipped sum differs from the specification by "
                f"{off / max(size, 1e-300):.1%}. Either a layer after it mixes the examples of a batch, or it is used "
                "in a way that no rule covers. Fix: let every layer process each image independently, or freeze this "
                "one."
            )


@contextmanager
def _torch_setting(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Iterator[None]:
    """Change one of torch's global settings until the block ends."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextmanager
def _explain_failures(model: nn.Module, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn errors that torch raises in a test into errors with a reason and a fix."""
    try:
        yield
    except DPVisionError:
        raise
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"device {_device_of(model)}: its memory is too small for one pass of this run. Fix: use a "
            "smaller --physical."
        ) from error
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        if "deterministic" in reason:
            raise UnsafeLayer(
                f"{_without_deterministic_kernel(model, shape)} has no kernel on {_device_of(model)} that gives the "
                f"same bits twice: {reason.split(', but')[0]}. Fix: use another layer, or --device cpu."
            ) from error
        raise ConfigError(
            f"the model or the loss failed on random images, in a test of its gradients: {type(error).__name__}: "
            f"{reason} Fix: use a model and a loss of plain torch functions, with the images along the first axis."
        ) from error


def _without_deterministic_kernel(model: nn.Module, shape: tuple[int, ...]) -> str:
    """Name the first module, inner ones first, whose own backward pass has no deterministic kernel."""
    model, calls = copy.deepcopy(model), list[tuple[nn.Module, Any]]()
    names = {module: name for name, module in model.named_modules()}
    for module in names:
        module.register_forward_hook(lambda module, inputs, _: calls.append((module, inputs)))
    with suppress(RuntimeError), torch.no_grad():
        model(torch.zeros(2, *shape, device=_device_of(model)))
    for module, inputs in tuple(calls):
        if not all(isinstance(x, Tensor) and x.is_floating_point() for x in inputs):
            continue
        try:
            with torch.enable_grad():
                copies = [x.detach().clone().requires_grad_() for x in inputs]
                torch.autograd.grad(module.forward(*copies).sum(), copies, allow_unused=True)
        except (RuntimeError, AttributeError, TypeError) as error:
            if "deterministic" in str(error):
                return f"{names[module] or 'the model'} ({type(module).__name__})"
    return "the model or the loss"
