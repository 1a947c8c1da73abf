"""A training that could begin: data read, settings completed from public numbers, network built, time estimated.

Nothing here draws from the run's key, writes to the run or touches the ledger; a dictionary of random images may be
built and cached. Public inputs (initial weights, synthetic images) are named by their digests: a run cannot be resumed
with other ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvision.core.certify import certify
from dpvision.core.events import Event
from dpvision.core.sampling import PoissonSampler
from dpvision.data import Dataset, Split, identify, load
from dpvision.errors import ConfigError, DataError
from dpvision.models.featured import require_head_last
from dpvision.models.inputs import Inputs, to_tensor
from dpvision.models.parts import CENTRE
from dpvision.private.accounts import overlap
from dpvision.private.engine import STYLES, ClippedSum, Public
from dpvision.private.features import cache
from dpvision.private.training.network import Network
from dpvision.private.training.private_sum import count_units, fetcher
from dpvision.private.training.public_inputs import PublicInputs, read_public_inputs, require_every_class
from dpvision.settings.training import WAYS, Config
from dpvision.views import Views


@dataclass(frozen=True)
class Prepared:
    """A training before its first step: the private data, the complete settings, the public inputs, the network."""

    source: str
    data: Dataset
    config: Config
    read_off: tuple[str, ...]  # facts that were not declared, so the data itself reveals them
    fingerprint: str  # of the records in any order: finds the ledger
    in_order: str  # of the records in their order: units are drawn by number, so it belongs to the branch
    sketch: overlap.Sketch  # digests of images: finds other accounts about the same ones
    public: PublicInputs
    network: Network

    def __post_init__(self) -> None:
        if self.network.config != self.config or self.network.public is not self.public:
            raise ConfigError("a prepared training and its network have different settings or public inputs.")

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
        """Return the event of this training."""
        assert self.config.sigma
        return self.sampler.event(self.config.sigma)

    @property
    def everything(self) -> str:
        """A name for all data that is trained on, private and public."""
        names = self.public.names
        return self.in_order + (json.dumps(names, sort_keys=True) if names else "")

    def compute_features(self, progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """Compute the features that are not cached yet, where the network has a frozen part."""
        model = self.network.build()
        for split in (self.data.train, self.data.test):
            if split is not None and self.network.split(model) is not None:
                self.network.load_or_compute_inputs(split, model, progress)

    def views(self) -> Views | None:
        """Return the views that an image is trained on; None where that is the image itself."""
        config = self.config
        if config.as_it_is:
            return None
        public = None
        if self.public.images is not None:
            images, labels = (np.asarray(a) for a in (self.public.images.images, self.public.images.labels))
            if images.dtype == np.uint8:  # kept so, in a quarter of the memory; images that are drawn become float
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

    def persons_in_both(self) -> int:
        """Return the number of persons in both splits: their guarantee does not cover the test accuracy."""
        train, test = self.data.train.persons, None if self.data.test is None else self.data.test.persons
        return 0 if train is None or test is None else len(np.intersect1d(train, test))

    @property
    def certified_settings(self) -> tuple[object, ...]:
        """All settings that the certificate depends on: trainings that agree in them need one."""
        config = self.config
        style = (config.clip, config.clip_style, config.views, config.one_view, config.as_it_is, config.physical)
        return (config.model, config.part, bool(config.probe_steps), config.assist, config.unit, *style)

    def require_certificate(self) -> None:
        """Require, by trial on random images, that no layer mixes images and that every clipped sum is right.

        A trial in this process with the same number of threads is not repeated.
        """
        threads = torch.get_num_threads()
        if self.__dict__.get("_certified_with") == threads:
            return
        part = self.config.part
        parts = (CENTRE, "head") if part == "centred-head" else ("probe", part) if self.config.probe_steps else (part,)
        for name in parts:
            self._certify(name)
        self.__dict__["_certified_with"] = threads

    def _certify(self, part: str) -> None:
        config, network = self.config, self.network
        model, classes = network.build(part=part), 1 if part == CENTRE else network.classes
        frozen, shape = network.split(model), tuple[int, ...](self.shape)
        if frozen is not None:
            require_head_last(model, frozen, self.shape)
            cache.require_separate(frozen, self.shape)
            shape = cache.shape_of(frozen, self.shape)
        several = config.unit == "person" and not WAYS[config.assist].each_view  # a person has any number of images
        certify(
            *network.learner(model, part=part),
            shape,
            classes,
            engine=partial(ClippedSum, physical=config.physical, one_view=config.one_view),
            style=STYLES[config.clip_style](config.clip),
            views=(config.views, 2 * config.views, 3 * config.views) if several else (config.views,),
            public=WAYS[config.assist].shaped_by,
        )

    def estimate_seconds(self, *, ranks: int = 1) -> float:
        """Estimate the time of missing features and of all steps on this machine, without that of the test split."""
        images = self.sampler.rate * self.sampler.steps * len(self.data.train)
        return _seconds_of_features(self) / ranks + images / ranks / images_per_second(self)


def prepare(source: str, config: Config, progress: Callable[[int, int], None] = lambda *_: None) -> Prepared:
    """Read the data and complete the settings. A fact that was not declared is read off the data and named."""
    data = load(
        source,
        classes=config.classes,
        size=config.size,
        channels=config.channels,
        skip_broken=config.skip_broken,
    )
    return prepare_read(data, config, source=source, progress=progress)


def prepare_read(
    data: Dataset, config: Config, *, source: str, progress: Callable[[int, int], None] = lambda *_: None
) -> Prepared:
    """Prepare a training on data in memory; `source` is where it would be read again, or a word for it."""
    if config.unit == "person" and data.train.persons is None:
        raise ConfigError(f"{source}: --unit person needs to know who is on each image, such as a CSV column 'person'.")
    known = not data.inferred and source == "digits"  # built-in data: its size is public knowledge
    read_off = data.inferred if config.n or known else (*data.inferred, f"number of {config.unit}s")
    complete = config.complete(count_units(data.train, config.unit))
    require_every_class(data.train, data.classes, data.name, "Fix: leave it out of the classes, or add images")
    fingerprint, in_order, digests = identify(data.train)
    public = read_public_inputs(complete, data, digests, progress)
    sketch = overlap.sketch_images(data.train.images, digests)
    if config.unit == "person":
        _require_one_person_each(data.train, sketch, source)
    height, width, channels = data.train.images.shape[1:]
    network = Network(complete, (channels, height, width), len(data.classes), public)
    prepared = Prepared(source, data, complete, read_off, fingerprint, in_order, sketch, public, network)
    network.build()  # unknown names, wrong files and impossible parts are refused now
    prepared.views()
    return prepared


def _require_one_person_each(split: Split, sketch: overlap.Sketch, source: str) -> None:
    """Require every image under one person: two would be counted apart. Blank images, without a digest, are exempt."""
    assert split.persons is not None
    digested = sketch.digests[:, 0] > 0
    pairs = np.unique(np.column_stack([sketch.digests[digested, 0], split.persons[digested].astype(np.uint64)]), axis=0)
    _, counts = np.unique(pairs[:, 0], return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"{source}: {int((counts > 1).sum()):,} images are there more than once, for different persons, so what is "
            "revealed about these persons would be counted apart. Fix: keep each of these images once, under one "
            "person, or give all persons on an image one name."
        )


def _seconds_of_features(prepared: Prepared) -> float:
    parts = prepared.network.split(prepared.network.build())
    if parts is None:
        return 0.0
    splits = [s for s in (prepared.data.train, prepared.data.test) if s is not None]
    missing = sum(cache.count_missing(prepared.network.features_key(s, parts), len(s)) for s in splits)
    if not missing:
        return 0.0
    images = torch.rand(min(missing, cache.AT_A_TIME), *prepared.shape) * 2 - 1
    parts.features(images[:1])  # the first call sets things up
    began = time.perf_counter()
    parts.features(images)
    return (time.perf_counter() - began) / len(images) * missing


def images_per_second(prepared: Prepared, *, seconds: float = 3.0) -> float:
    """Measure private images per second, with all their views, on random images; public gradients are not counted."""
    network, views, config = prepared.network, prepared.views(), prepared.config
    model = network.build()
    (learner, loss), parts = network.learner(model), network.split(model)
    shape = cache.shape_of(parts, prepared.shape) if parts else prepared.shape
    clipped_sum = ClippedSum(learner, loss, clip=1.0, physical=config.physical, one_view=config.one_view)
    count = max(1, min(prepared.sampler.batch, 64 // config.views or 1))
    copies = config.views if WAYS[config.assist].each_view else 0
    public = Public(perturbations=[torch.zeros(clipped_sum.size)] * copies)
    while True:
        images, labels = torch.rand(count, *shape) * 2 - 1, np.zeros(count, dtype=np.int64)
        split = Split(np.zeros((count, 1, 1, 1), dtype=np.uint8), labels, None)
        fetch = fetcher(split, "image", _Ready(split, images), views)
        clipped_sum.sum([fetch(np.arange(count), 0)], public)  # the first call sets things up
        began = time.perf_counter()
        clipped_sum.sum([fetch(np.arange(count), 0)], public)
        rate = count / (time.perf_counter() - began)
        most = max(1, min(prepared.sampler.batch, clipped_sum.units_at_a_time // config.views))
        wanted = max(1, min(most, int(rate * seconds / 2)))
        if wanted <= 2 * count:
            return rate
        count = wanted


class _Ready(Inputs):
    """Inputs that are tensors already."""

    def __init__(self, split: Split, images: Tensor) -> None:
        super().__init__(split)
        self._ready = images

    def __call__(self, rows: Any) -> Tensor:
        return self._ready[rows]
