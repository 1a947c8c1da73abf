"""Public inputs of private training: initial weights and synthetic images, each identified by its digest.

None of them may contain private data: images from the private data are refused, as are weights and generators that were
trained on it without privacy. Weights from private training come with their event, which is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpvision.core.events import Event, from_json, to_json
from dpvision.data import Dataset, Split, identify, load
from dpvision.errors import ConfigError, DataError
from dpvision.models import at_side, digest_file
from dpvision.private.accounts.accounts import require_not_in_provenance
from dpvision.public import dictionary, provenance
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from dpvision.storage import weights as public_weights
from dpvision.storage.home import home


@dataclass(frozen=True)
class PublicInputs:
    """The file and digest of each public input by name, the images, and the file of initial weights.

    `names` identifies the inputs: it is part of the name of the run's noise. `stated` is only for the card, because it
    may change with the registry of public weights and with `dpvision weights get`.
    """

    names: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: Split | None = None
    images_from: str | None = None  # the file or folder of the images
    weights: str | None = None
    stated: dict[str, dict[str, str]] = field(default_factory=dict)  # origin and licence

    def are(self, recorded: Any) -> bool:
        """Whether these are the inputs that a run recorded. Some runs recorded origin and licence among the names."""
        if not isinstance(recorded, dict) or not all(isinstance(entry, dict) for entry in recorded.values()):
            return False
        stated = ("origin", "licence")
        return self.names == {
            kind: {key: value for key, value in entry.items() if key not in stated} for kind, entry in recorded.items()
        }

    def read_provenance(self) -> str:
        """Return digests of the images that these inputs were trained on without privacy, as far as recorded."""
        weights = provenance.read_provenance(Path(self.weights)) if self.weights else ""
        images = provenance.read_card_provenance(self.images_from) if self.images_from else ""
        return provenance.merge_provenance((weights, images))

    @property
    def weights_digest(self) -> str:
        """The digest of the initial weights."""
        return str(self.names["prior" if "prior" in self.names else "pretrained"]["digest"])

    @property
    def earlier_events(self) -> tuple[Event, ...]:
        """The event of the initial weights, which is counted whether or not it is about the same units."""
        event = self.names.get("pretrained", {}).get("event")
        return () if event is None else (from_json(event),)


def read_public_inputs(
    config: Config, data: Dataset, digests: Sequence[bytes], progress: Callable[[int, int], None]
) -> PublicInputs:
    """Read and check the public inputs that complete settings name; a prior is built if it is not cached."""
    names: dict[str, dict[str, Any]] = {}
    stated: dict[str, dict[str, str]] = {}
    images, weights = None, config.pretrained
    if config.synthetic:
        images, names["synthetic"] = read_public_images(config.synthetic, data, set(digests))
    if config.prior:
        weights, names["prior"] = _load_or_build_prior(config, data, progress)
    elif config.pretrained:
        weights = str(public_weights.resolve(config.pretrained))
        entry = names["pretrained"] = read_pretrained(Path(weights), data, unit=config.unit)
        if about := public_weights.describe(Path(weights), entry["digest"]):
            stated["pretrained"] = about
    return PublicInputs(names, images, config.synthetic, weights, stated)


def read_pretrained(path: Path, data: Dataset, *, unit: str) -> dict[str, Any]:
    """Return the file and digest of initial weights, and their event if they come from private training.

    The event must be about the same kind of unit, because guarantees for images and for persons do not add up. If the
    weights record the images on which they were trained without privacy, none of these may be private.
    """
    entry: dict[str, Any] = {"file": path.name, "digest": digest_file(path)}
    header = safetensors.verified_header(path)
    if "learned_from" in header:
        entry["learned_from"] = "noted"
        require_not_in_provenance(data, header["learned_from"], f"{path}: was trained without privacy on")
    if header.get("private", "yes") != "yes":
        raise DataError(
            f"{path}: is not private ({header['private']}), so a model initialised from it would not be private. Fix: "
            "use other weights."
        )
    if "event" in header:
        if header.get("unit") != unit:
            raise ConfigError(
                f"{path}: was trained with privacy for each {header.get('unit', 'unit, which it does not name')}, so "
                f"it has no guarantee for each {unit}. Fix: use --unit {header.get('unit', 'image')}, or other weights."
            )
        try:
            entry["event"] = to_json(from_json(json.loads(safetensors.read(path).header["event"])))
        except (ConfigError, ValueError, RecursionError) as exc:
            raise DataError(f"{path}: does not state what it reveals about its training data ({exc}).") from exc
    return entry


def _load_or_build_prior(
    config: Config, data: Dataset, progress: Callable[[int, int], None]
) -> tuple[str, dict[str, Any]]:
    """Return the file of weights built from random images of the data's shape, with its name and digest."""
    height, width, channels = data.train.images.shape[1:]
    assert config.model  # complete
    settings = dictionary.DictionarySettings(*at_side(config.model, (channels, height, width)))
    path = dictionary.load_or_compute(settings, home() / "priors", progress)
    name = f"{settings.model} of {settings.process}, seed {settings.seed}"
    return str(path), {"file": name, "digest": digest_file(path)}


def read_public_images(source: str, data: Dataset, private: set[bytes]) -> tuple[Split, dict[str, Any]]:
    """Read public images of the same classes and size, none of which may be among the private images."""
    height, width, channels = data.train.images.shape[1:]
    asked: dict[str, Any] = {"classes": list(data.classes), "task": data.task}
    images = load(source, size=(height, width), channels=channels, test_share=0, **asked).train
    require_every_class(images, data.classes, source, "Fix: add images of it")
    _, in_order, digests = identify(images)
    pixels = {d for s in (data.train, data.val, data.test) if s is not None for d in provenance.pixel_digests(s.images)}
    pairs = zip(digests, provenance.pixel_digests(images.images), strict=True)
    same = sum(digest in private or pixel in pixels for digest, pixel in pairs)
    if same:
        raise ConfigError(
            f"{source}: {same:,} of its images are also in the private data, pixel for pixel, so they are not public. "
            "Fix: use images that were made or collected without the private data."
        )
    note = provenance.read_card_provenance(source)
    if note:
        require_not_in_provenance(data, note, f"{source}: its images were synthesised by a model that learned from")
    return images, {"file": Path(source).name, "digest": in_order, "images": len(images)}


def require_every_class(split: Split, classes: Sequence[str], name: str, fix: str) -> None:
    """Require at least one image of every class, or with several labels one that has it."""
    labels = np.asarray(split.labels)
    counts = (labels == 1).sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=len(classes))
    empty = [str(label) for label, count in zip(classes, counts, strict=True) if not count]
    if empty:
        raise DataError(f"{name}: has no image of class {', '.join(empty)}, so it cannot be learned. {fix}.")
