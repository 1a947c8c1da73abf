"""A training that could begin: data read, settings completed from public numbers, network and views chosen.

Nothing here is random, writes to the run or touches the ledger; a dictionary of random images may be made and kept.
Public inputs (weights to start from, synthetic images) are named by their digests: a run cannot be resumed with other
ones.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.core.certify import certify
from dpvision.core.events import Event, from_json, to_json
from dpvision.core.sampling import PoissonSampler
from dpvision.data import Dataset, Split, identify, load
from dpvision.errors import ConfigError, DataError, LedgerMismatch
from dpvision.models import Featured, build, digest_file, load_public, train_only
from dpvision.models.featured import require_head_last, split_head
from dpvision.models.inputs import Inputs, to_tensor
from dpvision.models.parts import CENTRE, Agreement, Centred, zero_centres
from dpvision.private.accounts import overlap
from dpvision.private.accounts.accounts import require_not_learned_from
from dpvision.private.engine import STYLES, ClippedSum, Loss
from dpvision.private.features import cache
from dpvision.private.training.units import units
from dpvision.public import dictionary, provenance
from dpvision.settings.training import WAYS, Config
from dpvision.storage import safetensors
from dpvision.storage.home import home
from dpvision.views import Views

Progress = Callable[[int, int], None]


def outputs_as_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """For a learner whose only output is its loss."""
    return outputs[:, 0]


def each_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """One cross-entropy per image; targets are classes or shares of classes."""
    return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Prepared:
    """The data, the complete settings, and which public facts the data itself gave."""

    source: str
    data: Dataset
    config: Config
    read_off: tuple[str, ...]
    fingerprint: str  # of the records in any order: finds the ledger
    in_order: str  # of the records in their order: coins are drawn by place, so it belongs to the branch
    sketch: overlap.Sketch  # digests of images: finds other accounts about the same ones
    public: dict[str, dict[str, Any]] = field(default_factory=dict)  # what else goes in: name -> file and digest
    synthetic: Split | None = None
    start: str | None = None  # the file of weights to start from, given or made

    @property
    def _digest_of_start(self) -> str:
        return str(self.public["prior" if self.config.prior else "pretrained"]["digest"])

    @property
    def learned_from(self) -> str:
        """Digests of images that public inputs learned from without privacy, as far as these say so."""
        started = provenance.of_weights(Path(self.start)) if self.start else ""
        synthetic = provenance.of_synthetic(self.config.synthetic) if self.config.synthetic else ""
        return provenance.joined((started, synthetic))

    @property
    def shape(self) -> tuple[int, int, int]:
        height, width, channels = self.data.train.images.shape[1:]
        return channels, height, width

    @property
    def sampler(self) -> PoissonSampler:
        config = self.config
        assert config.batch and config.n and config.steps  # complete
        return PoissonSampler(config.batch, config.n, config.steps)

    def event(self) -> Event:
        """What this training does."""
        assert self.config.sigma
        return self.sampler.event(self.config.sigma)

    @property
    def before(self) -> tuple[Event, ...]:
        """What the weights to start from tell already. Whether about the same units, nobody knows; it is counted."""
        told = self.public.get("pretrained", {}).get("event")
        return () if told is None else (from_json(told),)

    @property
    def everything(self) -> str:
        """Names all that is trained on, private and public."""
        return self.in_order + (json.dumps(self.public, sort_keys=True) if self.public else "")

    def model(self, *, part: str | None = None) -> nn.Module:
        """The network with its first weights, a copy for the caller; what is not trained (of another part, if given) is
        frozen."""
        built: dict[str, nn.Module] = self.__dict__.setdefault("_networks", {})
        part = part or self.config.part
        if part not in built:
            built[part] = self._build(part)
        return copy.deepcopy(built[part])

    def _build(self, part: str) -> nn.Module:
        config = self.config
        assert config.model
        model = build(config.model, self.shape, classes=len(self.data.classes), seed=config.seed)
        if self.start and load_public(model, self.start) != self._digest_of_start:
            raise LedgerMismatch(f"{self.start}: the weights changed meanwhile. Fix: restore the file.")
        train_only(model, part)
        if config.part == "centred-head":
            zero_centres(model)
        return model

    def split(self, model: nn.Module) -> Featured | None:
        """The same network as a frozen part and the rest, where images come as they are: features are computed once."""
        if not self.config.as_it_is:
            return None
        return split_head(model) if self.config.part == "head" else model if isinstance(model, Featured) else None

    def learner(self, model: nn.Module, *, part: str | None = None) -> tuple[nn.Module, Loss]:
        """What the clipped sum differentiates, all of the model or what stands behind a frozen part, and the loss."""
        parts = self.split(model)
        rest = model if parts is None else parts.rest
        if part != CENTRE:
            return rest, each_loss
        return Agreement(next(m for m in rest.modules() if isinstance(m, Centred))), outputs_as_losses

    def inputs(self, split: Split, model: nn.Module, progress: Progress = lambda *_: None) -> Inputs:
        """What `learner` gets of a split."""
        parts = self.split(model)
        if parts is None:
            return Inputs(split)
        return Inputs(split, cache.load_or_compute(parts, split, key=self.named(split, parts), progress=progress))

    def named(self, split: Split, parts: Featured) -> tuple[str, ...]:
        """What the features of a split depend on."""
        return (
            identify(split)[1],
            str(self.config.model),
            self.config.part,
            cache.digest(parts),
            cache.code_version(),
        )

    def warm(self, progress: Progress) -> None:
        """Compute features that are not there yet, where a frozen part makes some."""
        model = self.model()
        for split in (self.data.train, self.data.test):
            if split is not None and self.split(model) is not None:
                self.inputs(split, model, progress)

    def views(self) -> Views | None:
        """What an image is trained on, where that is not the image itself."""
        config = self.config
        if config.as_it_is:
            return None
        public = None
        if self.synthetic is not None:
            images, labels = np.asarray(self.synthetic.images), np.asarray(self.synthetic.labels, dtype=np.int64)
            if images.dtype == np.uint8:  # kept so, in a quarter of the memory; what is drawn becomes float
                tensor = torch.from_numpy(np.require(images, requirements="W")).permute(0, 3, 1, 2)
            else:
                tensor = to_tensor(images)
            public = (tensor, torch.from_numpy(labels))
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
        """Persons of the test split whose images are trained on: their guarantee does not cover the accuracy."""
        train, test = self.data.train.persons, None if self.data.test is None else self.data.test.persons
        return 0 if train is None or test is None else len(np.intersect1d(train, test))

    @property
    def tried_as(self) -> tuple[object, ...]:
        """All that the certificate depends on: two trainings that agree in it need one."""
        config = self.config
        style = (config.clip, config.clip_style, config.views, config.one_view, config.as_it_is, config.physical)
        return (config.model, config.part, bool(config.probe_steps), config.assist, config.unit, *style)

    def require_separable(self) -> None:
        """By trial on random images: no layer mixes the images of a batch, and every gradient is right.

        What was tried in this process, with as many threads, is not tried again.
        """
        threads = torch.get_num_threads()
        if self.__dict__.get("_tried_with") == threads:
            return
        self._try_parts()
        self.__dict__["_tried_with"] = threads

    def _try_parts(self) -> None:
        if self.config.part == "centred-head":
            self._require_separable(CENTRE)
            self._require_separable("head")
            return
        if self.config.probe_steps:
            self._require_separable("probe")
        self._require_separable(self.config.part)

    def _require_separable(self, part: str) -> None:
        model, classes = self.model(part=part), 1 if part == CENTRE else len(self.data.classes)
        parts, shape = self.split(model), tuple[int, ...](self.shape)
        if parts is not None:
            require_head_last(model, parts, self.shape)
            cache.require_separate(parts, self.shape)
            shape = cache.shape_of(parts, self.shape)
        config = self.config
        certify(
            *self.learner(model, part=part),
            shape,
            classes,
            engine=partial(ClippedSum, physical=config.physical, one_view=config.one_view),
            style=STYLES[config.clip_style](config.clip),
            views=self._numbers_of_views,
            public=WAYS[config.assist].shaped_by,
        )

    @property
    def _numbers_of_views(self) -> tuple[int, ...]:
        """How many images units have: those of an image are all the same number, those of a person any multiple."""
        count = self.config.views
        several = self.config.unit == "person" and not WAYS[self.config.assist].each_view
        return (count, 2 * count, 3 * count) if several else (count,)


def prepare(source: str, config: Config, progress: Progress = lambda *_: None) -> Prepared:
    """Read the data and complete the settings. A fact that was not declared is read off the data and named."""
    read = load(
        source,
        classes=config.classes,
        size=config.size,
        channels=config.channels,
        skip_broken=config.skip_broken,
    )
    return prepare_read(read, config, source=source, progress=progress)


def prepare_read(data: Dataset, config: Config, *, source: str, progress: Progress = lambda *_: None) -> Prepared:
    """The same for data that is in memory; `source` is where it would be read again, or a word for it."""
    if config.unit == "person" and data.train.persons is None:
        raise ConfigError(f"{source}: --unit person needs to know who is on each image, such as a CSV column 'person'.")
    known = not data.inferred and source == "digits"  # built-in data: its size is public knowledge
    read_off = data.inferred if config.n or known else (*data.inferred, f"number of {config.unit}s")
    complete = config.complete(units(data.train, config.unit))
    _require_every_class(data.train, data.classes, data.name, "Fix: leave it out of the classes, or add images")
    fingerprint, in_order, digests = identify(data.train)
    public: dict[str, dict[str, Any]] = {}
    synthetic = None
    if config.synthetic:
        synthetic, public["synthetic"] = public_images(config.synthetic, data, set(digests))
    start = config.pretrained
    if complete.prior:
        start, public["prior"] = _prior(complete, data, progress)
    elif config.pretrained:
        public["pretrained"] = _pretrained(Path(config.pretrained), data, unit=config.unit)
    sketch = overlap.sketch_images(data.train.images, digests)
    if config.unit == "person":
        _require_one_person_each(data.train, sketch, source)
    prepared = Prepared(source, data, complete, read_off, fingerprint, in_order, sketch, public, synthetic, start)
    prepared.model()  # unknown names, wrong files and impossible parts are told now
    prepared.views()
    return prepared


def _require_one_person_each(split: Split, sketch: overlap.Sketch, source: str) -> None:
    """The same image under two persons would count each of them apart. Blank images, which have no digest, may be."""
    assert split.persons is not None
    there = sketch.digests[:, 0] > 0
    pairs = np.unique(np.column_stack([sketch.digests[there, 0], split.persons[there].astype(np.uint64)]), axis=0)
    _, counts = np.unique(pairs[:, 0], return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"{source}: {int((counts > 1).sum()):,} images are there more than once, for different persons, so what is "
            "revealed about these persons would be counted apart. Fix: keep each of these images once, under one "
            "person, or give all persons on an image one name."
        )


def _prior(config: Config, data: Dataset, progress: Progress) -> tuple[str, dict[str, Any]]:
    """A file of weights of random images, made for the images' shape where it is not there yet; name and digest."""
    height, width, channels = data.train.images.shape[1:]
    assert config.model  # complete
    settings = dictionary.Settings(config.model, (channels, height, width))
    path = dictionary.kept(settings, home() / "priors", progress)
    name = f"{settings.model} of {settings.process}, seed {settings.seed}"
    return str(path), {"file": name, "digest": digest_file(path)}


def _pretrained(path: Path, data: Dataset, *, unit: str) -> dict[str, Any]:
    """Weights to start from, by name and digest; those of a private training also tell what they cost.

    That must be about the same kind of unit: what is told of one image and of one person does not add up. Weights of a
    warm-up say which images taught them: none of these may be private.
    """
    entry: dict[str, Any] = {"file": path.name, "digest": digest_file(path)}
    said = safetensors.verified_header(path)
    if "learned_from" in said:
        entry["learned_from"] = "noted"
        require_not_learned_from(data, said["learned_from"], f"{path}: was trained without privacy on")
    if said.get("private", "yes") != "yes":
        raise DataError(
            f"{path}: is not private ({said['private']}), and what starts from it would not be. Fix: other weights."
        )
    if "event" in said:
        if said.get("unit") != unit:
            raise ConfigError(
                f"{path}: was trained privately for each {said.get('unit', 'unit that it does not name')}, and what it "
                f"tells cannot be counted for each {unit}. Fix: --unit {said.get('unit', 'image')}, or other weights."
            )
        try:
            entry["event"] = to_json(from_json(json.loads(safetensors.read(path).header["event"])))
        except (ConfigError, ValueError, RecursionError) as exc:
            raise DataError(f"{path}: does not say what it tells about its training data ({exc}).") from exc
    return entry


def _require_every_class(split: Split, classes: Sequence[str], name: str, fix: str) -> None:
    counts = np.bincount(np.asarray(split.labels), minlength=len(classes))
    empty = [str(each) for each, count in zip(classes, counts, strict=True) if not count]
    if empty:
        raise DataError(f"{name}: no image is of class {', '.join(empty)}, so it could not be learned. {fix}.")


def public_images(source: str, data: Dataset, private: set[bytes]) -> tuple[Split, dict[str, Any]]:
    """Public images of the same classes and size, none of which is among the private ones."""
    height, width, channels = data.train.images.shape[1:]
    found = load(source, classes=list(data.classes), size=(height, width), channels=channels).train
    _require_every_class(found, data.classes, source, "Fix: add images of it")
    _, in_order, digests = identify(found)
    seen = {d for s in (data.train, data.val, data.test) if s is not None for d in provenance.pixel_digests(s.images)}
    same = sum(d in private or e in seen for d, e in zip(digests, provenance.pixel_digests(found.images), strict=True))
    if same:
        raise ConfigError(
            f"{source}: {same:,} of its images are, pixel for pixel, in the private data too, so they are not public. "
            "Fix: give images that were made or collected without the private data."
        )
    note = provenance.of_synthetic(source)
    if note:
        require_not_learned_from(data, note, f"{source}: its images were synthesised by a model that learned from")
    return found, {"file": Path(source).name, "digest": in_order, "images": len(found)}
