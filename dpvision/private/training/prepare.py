"""Prepares a training run: reads data, completes settings from public numbers, builds the network, estimates the time.

Nothing here draws from the run's key, writes to the run folder or touches the ledger; a dictionary of random images may
be built and cached. Public inputs (initial weights, synthetic images) are identified by their digests, and a run cannot
be resumed with different ones.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dpvision.core.certify import certify, digest_rounding
from dpvision.core.clipping import Flat
from dpvision.core.events import Event
from dpvision.core.sampling import PoissonSampler
from dpvision.data import RULE, Dataset, Split, identify, load
from dpvision.errors import ConfigError
from dpvision.models.cost import Described, Prediction, count, predict
from dpvision.models.device import find_device, fix_arithmetic
from dpvision.models.featured import CLASS_SHARES, require_head_last
from dpvision.models.inputs import Inputs, to_tensor
from dpvision.models.parts import CENTRE, SHARES
from dpvision.private.accounts import overlap
from dpvision.private.accounts.persons import require_one_person_each, require_persons
from dpvision.private.engine import Public
from dpvision.private.features import cache
from dpvision.private.training.choice import choose_recipe
from dpvision.private.training.network import Network
from dpvision.private.training.private_sum import count_units, fetcher
from dpvision.private.training.public_inputs import PublicInputs, read_public_inputs, require_every_class
from dpvision.private.training.state import software
from dpvision.settings import auto
from dpvision.settings.setting import reading_options, with_share
from dpvision.settings.training import WAYS, Config
from dpvision.views import Views


@dataclass(frozen=True)
class Prepared:
    """A training run before its first step: the private data, the complete settings, the public inputs, the network."""

    source: str
    data: Dataset
    config: Config
    read_off: tuple[str, ...]  # facts that were not declared and are therefore read from the data
    fingerprint: str  # identifies the records in any order, and so the ledger
    in_order: str  # identifies the records in this order; part of the branch, as units are drawn by number
    sketch: overlap.Sketch  # digests of images, to find other accounts of the same images
    public: PublicInputs
    network: Network
    notes: tuple[str, ...] = ()  # to print with the plan
    rule: int = RULE  # by which image files became pixels

    def __post_init__(self) -> None:
        if self.network.config != self.config or self.network.public is not self.public:
            raise ConfigError("the prepared training run and its network have different settings or public inputs.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The channels, height and width of an image."""
        return self.network.shape

    @property
    def sampler(self) -> PoissonSampler:
        """The sampler of the steps."""
        config = self.config
        assert config.batch and config.n and config.steps  # complete
        return PoissonSampler(config.batch, config.n, config.steps)

    def event(self) -> Event:
        """Return the event of this training run."""
        assert self.config.sigma
        return self.sampler.event(self.config.sigma)

    @property
    def device(self) -> torch.device:
        """The device on which the run trains."""
        return self.network.device

    def software(self) -> str:
        """Describe everything that affects the rounding of this training run; it is part of the name of its noise."""
        passes = ", ".join(filter(None, (self.network.passes, self._rounding())))
        return software(self.device, self.config.precision, passes=passes)

    def _rounding(self) -> str:
        """Return a digest of the accelerator's current results for random images; empty on the CPU.

        If the results of a device change for an unknown reason, the name of the run's noise changes, and so the noise.
        """
        if self.device.type == "cpu":
            return ""
        known, threads = self.__dict__.setdefault("_rounding_with", {}), torch.get_num_threads()
        if threads not in known:
            known[threads] = "bits " + " ".join(
                digest_rounding(*a, **k) for a, k in map(self._trial, self.network.parts)
            )
        return str(known[threads])

    @property
    def everything(self) -> str:
        """A name for all training data, private and public."""
        names = self.public.names
        return self.in_order + (json.dumps(names, sort_keys=True) if names else "")

    def compute_features(self, progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """If the network has a frozen part, compute the features that are not cached yet."""
        model = self.network.build()
        for split in (self.data.train, self.data.test):
            if split is not None and self.network.split(model) is not None:
                self.network.load_or_compute_inputs(split, model, progress)

    def views(self) -> Views | None:
        """Return the views of an image that are trained on; None if only the image itself is."""
        config = self.config
        if config.as_it_is:
            return None
        public = None
        if self.public.images is not None:
            images, labels = (np.asarray(a) for a in (self.public.images.images, self.public.images.labels))
            if images.dtype == np.uint8:  # kept as bytes to save memory; drawn images become float
                tensor = torch.from_numpy(np.require(images, requirements="W")).permute(0, 3, 1, 2)
            else:
                tensor = to_tensor(images)
            public = (tensor, torch.from_numpy(np.asarray(labels, dtype=np.int64)))
        return Views(
            augment=config.augment,
            base=config.k_base,
            self_mix=config.k_self,
            diff=config.k_diff,
            alpha=config.mix_alpha,
            mix=config.mix,
            classes=len(self.data.classes),
            public=public,
        )

    @property
    def certified_settings(self) -> tuple[object, ...]:
        """All settings that the certificate depends on: training runs that share them need only one."""
        config = self.config
        passes = (config.views, config.one_view, config.as_it_is, config.physical, config.batch)
        network = (config.model, config.part, bool(config.probe_steps), config.precision, config.task)
        return (*network, config.objective, config.assist, config.unit, config.clip, config.clip_style, *passes)

    def require_certificate(self) -> None:
        """Require, by a test on random images, that no layer mixes images and that every clipped sum is right.

        The test is not repeated in a process with the same number of threads.
        """
        threads = torch.get_num_threads()
        if self.__dict__.get("_certified_with") == threads:
            return
        for part in self.network.parts:
            try:
                self._certify(part)
            except torch.OutOfMemoryError as exc:
                raise ConfigError(
                    f"{self.device}: has too little memory for the test that precedes a charge, with "
                    f"{self.network.passes}. Nothing was charged. Fix: use --physical {self.config.views} or slightly "
                    "more, or free memory on the device."
                ) from exc
        self.__dict__["_certified_with"] = threads

    def _certify(self, part: str) -> None:
        network = self.network
        model = network.build(part=part)
        frozen, shape = network.split(model), network.input_shape(model)
        if frozen is not None:
            require_head_last(model, frozen, self.shape)
            cache.require_separate(frozen, self.shape)
        if self.device.type != "cpu":
            self._try_memory(part, shape)
        arguments, options = self._trial(part)
        certify(*arguments, **options)

    def _trial(self, part: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the test of one part of the network."""
        config, network = self.config, self.network
        model = network.build(part=part)
        if network.balanced and part != SHARES:  # as in the run, where the step before has learned them
            shares = model.get_parameter(CLASS_SHARES)
            shares.data.copy_(torch.linspace(1, 2, len(shares)) / len(shares))
        shape, learner = network.input_shape(model), network.learner(model, part=part)
        options = {"engine": network.clipped_sum, "style": network.style, "public": WAYS[config.assist].shaped_by}
        views = [config.views]
        if config.unit == "person" and not WAYS[config.assist].each_view:  # a person can have any number of images
            views += [2 * config.views, 3 * config.views]
            if self.device.type != "cpu":
                images = network.clipped_sum(*learner, clip=network.style).plan_pass(shape)
                views = sizes_on_a_device(views, images)
        if part == CENTRE:  # its loss has no targets
            return (*learner, shape, 1), {**options, "views": views}
        targets = network.task.draw_targets
        return (*learner, shape, network.task.outputs), {**options, "views": views, "targets": targets}

    def _try_memory(self, part: str, shape: tuple[int, ...]) -> None:
        """Try a sum over blank units, with memory for the images in use and for those that are fetched ahead."""
        config, network = self.config, self.network
        engine = network.clipped_sum(*network.learner(network.build(part=part), part=part), clip=network.style)
        engine.plan_pass(shape)
        units = max(1, engine.units_at_a_time // config.views)
        images = torch.zeros(2 * units * config.views, *shape, device=self.device)
        targets = network.task.blank_targets(units * config.views).to(self.device)
        copies = config.views if WAYS[config.assist].each_view else 0
        public = Public(perturbations=[torch.zeros(engine.size, device=self.device)] * copies)
        engine.sum([(images[: len(targets)], targets, [config.views] * units)], public).cpu()

    def predict(self, device: Described) -> Prediction:
        """Predict the time of a step on a device that is not present, without public gradients and frozen parts."""
        network, config = self.network, self.config
        model = network.build()
        cost = count(*network.learner(model), network.input_shape(model), network.task.blank_targets)
        return predict(cost, device, batch=self.sampler.batch, views=config.views, precision=config.precision)

    def bytes_of_features(self) -> int:
        """Return the disk space that features will take that are not cached yet; 0 without a frozen part."""
        model = self.network.build()
        parts = self.network.split(model)
        if parts is None:
            return 0
        splits = [s for s in (self.data.train, self.data.test) if s is not None]
        missing = sum(cache.count_missing(self.network.features_key(s, parts), len(s)) for s in splits)
        return 4 * missing * math.prod(cache.shape_of(parts, self.shape))

    def estimate_seconds(self, *, ranks: int = 1) -> float:
        """Estimate the time for missing features and all steps on this machine, without testing."""
        images = self.sampler.rate * self.sampler.steps * len(self.data.train)
        return _seconds_of_features(self) / ranks + images / ranks / images_per_second(self)


def sizes_on_a_device(views: Sequence[int], pass_images: int) -> list[int]:
    """Return numbers of images per unit that cover each kernel size, up to one above a pass (pass_size.py)."""
    doubled = itertools.takewhile(lambda size: size < pass_images, (views[0] << k for k in itertools.count()))
    whole = max(views[0], pass_images)
    return list(dict.fromkeys((*views, *doubled, whole, whole + 1)))


def prepare(
    source: str, config: Config, progress: Callable[[int, int], None] = lambda *_: None, *, rule: int = RULE
) -> Prepared:
    """Read the data and complete the settings. Facts that were not declared are read from the data and listed.

    `rule` is the version of the rule by which image files become pixels: a resumed run keeps that of its beginning.
    """
    data = load(source, **reading_options(config), rule=rule)
    return prepare_read(data, config, source=source, progress=progress, rule=rule)


def prepare_read(
    data: Dataset,
    config: Config,
    *,
    source: str,
    progress: Callable[[int, int], None] = lambda *_: None,
    rule: int = RULE,
) -> Prepared:
    """Prepare a training run on data in memory; `source` is where it can be read again, or its name."""
    require_persons(data, config.unit, source)
    known = not data.inferred and source == "digits"  # built-in data of public size
    read_off = data.inferred if config.n or known else (*data.inferred, f"number of {config.unit}s")
    notes: list[str] = []
    device = find_device(config.device, report=notes.append)
    fix_arithmetic(device, config.precision)
    if config.device == "auto":  # so that a resumed run uses the same kind of device
        config = replace(config, device=device.type)
    config = with_share(config, data.test_share, source=source)
    units = count_units(data.train, config.unit)
    if config.recipe == auto.AUTO:
        config = choose_recipe(config, data, units, device)
    elif config.minutes is not None and (config.chosen_by is None or config.recipe == "default"):
        raise ConfigError(
            f"minutes is {config.minutes:g}, but recipe {config.recipe} is not fitted to a time. Fix: leave --minutes "
            "out, or use --recipe auto without settings of the method."
        )
    complete = config.complete(units)
    require_every_class(data.train, data.classes, data.name, "Fix: leave it out of the classes, or add images")
    fingerprint, in_order, digests = identify(data.train)
    public = read_public_inputs(complete, data, digests, progress)
    sketch = overlap.sketch_images(data.train.images, digests)
    require_one_person_each(data.train, sketch, config.unit, source)
    height, width, channels = data.train.images.shape[1:]
    network = Network(complete, (channels, height, width), len(data.classes), public, device)
    facts = (source, data, complete, read_off, fingerprint, in_order, sketch, public, network)
    prepared = Prepared(*facts, notes=tuple(notes), rule=rule)
    network.build()  # raises the errors for unknown names, wrong files and impossible parts
    prepared.views()
    return prepared


def _seconds_of_features(prepared: Prepared) -> float:
    parts = prepared.network.split(prepared.network.build())
    if parts is None:
        return 0.0
    splits = [s for s in (prepared.data.train, prepared.data.test) if s is not None]
    missing = sum(cache.count_missing(prepared.network.features_key(s, parts), len(s)) for s in splits)
    if not missing:
        return 0.0
    images = (torch.rand(min(missing, cache.AT_A_TIME), *prepared.shape) * 2 - 1).to(prepared.device)
    parts.features(images[:1])  # the first call has setup costs
    began = time.perf_counter()
    parts.features(images).cpu()
    return (time.perf_counter() - began) / len(images) * missing


def images_per_second(prepared: Prepared, *, seconds: float = 3.0) -> float:
    """Measure the images per second, with all views, on random images and without public gradients."""
    network, views, config = prepared.network, prepared.views(), prepared.config
    model = network.build()
    learner, loss = network.learner(model)
    shape = network.input_shape(model)
    clipped_sum = network.clipped_sum(learner, loss, clip=Flat(1.0))
    clipped_sum.plan_pass(shape)
    count = max(1, min(prepared.sampler.batch, 64 // config.views or 1))
    copies = config.views if WAYS[config.assist].each_view else 0
    public = Public(perturbations=[torch.zeros(clipped_sum.size, device=network.device)] * copies)
    while True:
        images, labels = torch.rand(count, *shape) * 2 - 1, network.task.blank_targets(count).numpy()
        split = Split(np.zeros((count, 1, 1, 1), dtype=np.uint8), labels, None)
        fetch = fetcher(split, "image", Inputs(split, images.numpy()), views, network.device)
        clipped_sum.sum([fetch(np.arange(count), 0)], public).cpu()  # the first call has setup costs
        began = time.perf_counter()
        clipped_sum.sum([fetch(np.arange(count), 0)], public).cpu()  # waits until it is done
        rate = count / (time.perf_counter() - began)
        most = max(1, min(prepared.sampler.batch, clipped_sum.units_at_a_time // config.views))
        wanted = max(1, min(most, int(rate * seconds / 2)))
        if wanted <= 2 * count:
            return rate
        count = wanted
