"""The network of a training run, and its phases: which weights each step trains, at which learning rate.

Phases depend only on the step number and are fixed before training. All steps are the same mechanism: Poisson sampling,
and noise of sigma times the clipping norm. Training only the head in the first steps (Tang et al. 2023, Phase II), or
the mean of the features, changes what is summed but not what it reveals: there is one event, one charge and one noise
multiplier for all steps.

With the objective "balanced", one more step at the beginning sums the classes as unit vectors, each clipped and noised
like a gradient, and so estimates the shares of the classes. Afterwards, their logarithms are added to the scores in the
loss, and left out of the released model (Menon et al. 2021, arXiv 2007.07314): a model that would learn the classes as
frequent as they are then learns them as if all were equally frequent. The offset is the same for all units and is a
function of a noisy sum, so it neither changes what bounds a unit nor reveals anything further.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvision.core.clipping import Style
from dpvision.data import Split, identify
from dpvision.errors import LedgerMismatch
from dpvision.models import Featured, build, load_public, train_only
from dpvision.models.device import CPU
from dpvision.models.featured import CLASS_SHARES, split_head
from dpvision.models.inputs import Inputs
from dpvision.models.parts import CENTRE, SHARES, Agreement, Centred, ClassShares, share_loss, zero_centres
from dpvision.models.tasks import Task, class_losses
from dpvision.private.engine import STYLES, ClippedSum, Loss, Tally
from dpvision.private.features import cache
from dpvision.private.training.public_inputs import PublicInputs
from dpvision.private.training.state import load_weights, trainable
from dpvision.settings.training import Config

each_loss = class_losses  # of a model with one class per image


def outputs_as_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs of a learner whose only output is its loss."""
    return outputs[:, 0]


@dataclass(frozen=True)
class Network:
    """The network that the settings name, for images of one shape, with its initial weights, on one device."""

    config: Config
    shape: tuple[int, int, int]
    classes: int
    public: PublicInputs
    device: torch.device = CPU

    def build(self, *, part: str | None = None) -> nn.Module:
        """Return a copy of the network with its initial weights; only `part` is trainable, or all the run trains."""
        built: dict[str | None, nn.Module] = self.__dict__.setdefault("_built", {})
        if not self.balanced:  # all that the run trains is one part
            part = part or self.config.part
        if part not in built:
            built[part] = self._build(part)
        return copy.deepcopy(built[part])

    def _build(self, part: str | None) -> nn.Module:
        config, weights = self.config, self.public.weights
        assert config.model
        model = build(config.model, self.shape, classes=self.task.outputs, seed=config.seed)
        if weights and load_public(model, weights) != self.public.weights_digest:
            raise LedgerMismatch(f"{weights}: the weights have changed. Fix: restore the file.")
        train_only(model, part or config.part)
        if self.balanced:  # a parameter of the run, which the model itself does not use
            shares = nn.Parameter(torch.zeros(self.classes), requires_grad=part in (None, SHARES))
            model.register_parameter(CLASS_SHARES, shares)
        if config.part == "centred-head":
            zero_centres(model)
        return model.to(self.device)  # built on the CPU: the same initial weights on every device

    @property
    def balanced(self) -> bool:
        """Whether the shares of the classes are estimated first, and then left out of the released model."""
        return self.config.objective == "balanced"

    def split(self, model: nn.Module) -> Featured | None:
        """Return the frozen part and the rest, or None; without views, the frozen part is computed once per image."""
        if not self.config.as_it_is:
            return None
        return split_head(model) if self.config.part == "head" else model if isinstance(model, Featured) else None

    def learner(self, model: nn.Module, *, part: str | None = None) -> tuple[nn.Module, Loss]:
        """Return the module that the clipped sum differentiates (the model, or its unfrozen part) and the loss.

        The centred head is differentiated at rows that were centred once, so its learner is the head alone. Without
        `part`, the learner maps the inputs to the outputs of the model.
        """
        parts = self.split(model)
        rest = model if parts is None else parts.rest
        if part == SHARES:
            return ClassShares(model), share_loss
        if part == CENTRE:
            return Agreement(next(m for m in rest.modules() if isinstance(m, Centred))), outputs_as_losses
        if part == "head" and self.config.part == "centred-head":
            assert isinstance(rest, nn.Sequential)
            return rest[-1], self._loss(model)
        return rest, self._loss(model)

    def centred(self, model: nn.Module) -> nn.Module:
        """Return the function that centres the inputs of the centred head, once for all steps."""
        parts = self.split(model)
        assert parts is not None and isinstance(parts.rest, nn.Sequential) and len(parts.rest) == 2
        return parts.rest[0]

    def _loss(self, model: nn.Module) -> Loss:
        """Return the loss of the model's outputs, to which a balanced run adds the logarithms of its class shares."""
        if not self.balanced:
            return self.task.losses
        shares = ClassShares(model)
        return lambda outputs, targets: each_loss(outputs + shares.offset(outputs), targets)

    def clipped_sum(self, model: nn.Module, loss: Loss, *, clip: Style, watch: Tally | None = None) -> ClippedSum:
        """Return the clipped sum of a learner's gradients as this training run computes it."""
        config = self.config
        return ClippedSum(
            model,
            loss,
            clip=clip,
            physical=config.physical,
            watch=watch,
            one_view=config.one_view,
            views=config.views,
            batch=config.batch,
            precision=config.precision,
        )

    @property
    def task(self) -> Task:
        """What the model answers about an image."""
        return Task(self.config.task, self.classes)

    @property
    def style(self) -> Style:
        """How a unit's gradient is bounded."""
        return STYLES[self.config.clip_style](self.config.clip)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the network that the phases train, in order."""
        part, shares = self.config.part, (SHARES,) if self.balanced else ()
        if part == "centred-head":
            return CENTRE, *shares, "head"
        return ("probe", part) if self.config.probe_steps else (*shares, part)

    def input_shape(self, model: nn.Module) -> tuple[int, ...]:
        """Return the shape of the learner's input: an image or a feature row."""
        frozen = self.split(model)
        return self.shape if frozen is None else cache.shape_of(frozen, self.shape)

    @property
    def passes(self) -> str:
        """The images per pass in each phase on an accelerator, which determine its kernels; empty on the CPU."""
        if self.device.type == "cpu":
            return ""
        if "_passes" not in self.__dict__:
            sizes = []
            for part in self.parts:
                model = self.build(part=part)
                engine = self.clipped_sum(*self.learner(model, part=part), clip=self.style)
                sizes.append(engine.plan_pass(self.input_shape(model)))
            self.__dict__["_passes"] = f"passes of {' and '.join(map(str, dict.fromkeys(sizes)))} images"
        return str(self.__dict__["_passes"])

    def load_or_compute_inputs(
        self, split: Split, model: nn.Module, progress: Callable[[int, int], None] = lambda *_: None
    ) -> Inputs:
        """Return the learner's inputs for a split: its images, or its features, which are computed unless cached."""
        parts = self.split(model)
        if parts is None:
            return Inputs(split)
        return Inputs(
            split, cache.load_or_compute(parts, split, key=self.features_key(split, parts), progress=progress)
        )

    def features_key(self, split: Split, parts: Featured) -> tuple[str, ...]:
        """Return everything that the features of a split depend on."""
        return identify(split)[1], str(self.config.model), self.config.part, cache.digest(parts), cache.code_version()


@dataclass(frozen=True)
class Phase:
    """A phase: steps `first` to `end` - 1, with a copy of the network in which only `part` is trainable."""

    first: int
    end: int
    part: str
    lr: float
    network: Network
    learner: nn.Module  # what the clipped sum differentiates
    loss: Loss
    before: nn.Module | None  # a fixed function that is applied to the learner's inputs once
    _all: list[nn.Parameter]  # all parameters of the network that the run trains, in any phase
    _trained: Tensor  # a mask of the entries of the state's flat vector that this phase trains

    def load(self, weights: Tensor) -> None:
        """Load the state's weights into the network."""
        load_weights(weights, self._all)

    def clipped_sum(self, watch: Tally | None = None) -> ClippedSum:
        """Return the clipped sum of this phase's gradients."""
        return self.network.clipped_sum(self.learner, self.loss, clip=self.network.style, watch=watch)

    def spread(self, gradient: Tensor) -> Tensor:
        """Extend a gradient of this phase's part to all trained weights, with zeros elsewhere."""
        return torch.zeros(len(self._trained)).masked_scatter(self._trained, gradient)


def phases(network: Network) -> list[Phase]:
    """Return the phases in order: what is estimated or trained first, if anything, and then the part of the run."""
    config, in_order = network.config, list[Phase]()
    assert config.steps
    for part in network.parts[:-1]:
        if part in (CENTRE, SHARES):  # a mean, in a single step
            first = len(in_order)
            in_order.append(_phase(network, first, first + 1, part=part, lr=_rate_of_mean(config)))
    if config.part == "centred-head":
        return [*in_order, _phase(network, len(in_order), config.steps, part="head", lr=config.lr)]
    if config.probe_steps:
        in_order.append(_phase(network, 0, config.probe_steps, part="probe", lr=config.probe_lr or config.lr))
    if config.probe_steps < config.steps:
        first = config.probe_steps or len(in_order)
        in_order.append(_phase(network, first, config.steps, part=config.part, lr=config.lr))
    return in_order


def fewest_weights(network: Network) -> int:
    """Return the smallest number of weights that any phase trains."""
    return min(sum(p.numel() for p in trainable(phase.learner)) for phase in phases(network))


def _phase(network: Network, first: int, end: int, *, part: str, lr: float) -> Phase:
    names = [n for n, p in network.build().named_parameters() if p.requires_grad]
    model = network.build(part=part)
    by_name = dict(model.named_parameters())
    parameters = [by_name[n] for n in names]
    trained = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in parameters])
    # A phase trains only weights that the run trains.
    assert int(trained.sum()) == sum(p.numel() for p in trainable(model))
    before = network.centred(model) if part == "head" and network.config.part == "centred-head" else None
    return Phase(first, end, part, lr, network, *network.learner(model, part=part), before, parameters, trained)


def _rate_of_mean(config: Config) -> float:
    """Return the learning rate that undoes clipping: rows of norm 1 are clipped to min(1, C), or normalised to C."""
    return 1.0 / (config.clip if config.clip_style == "automatic" else min(1.0, config.clip))
