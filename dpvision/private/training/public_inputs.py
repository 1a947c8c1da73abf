"""Public inputs of private training: weights to start from and synthetic images, each named by its digest.

None of them may be private data in disguise: images that are in the private data, and weights or generators that were
trained on them without privacy, are refused. Weights from private training bring their event, which is counted.
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
from dpvision.models import digest_file
from dpvision.private.accounts.accounts import require_not_in_provenance
from dpvision.public import dictionary, provenance
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from dpvision.storage.home import home


@dataclass(frozen=True)
class PublicInputs:
    """Public inputs by name: file and digest of each, the images, and the file of weights to start from."""

    names: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: Split | None = None
    images_from: str | None = None  # the file or folder of the images
    weights: str | None = None

    def read_provenance(self) -> str:
        """Return digests of the images that these were trained on without privacy, as far as they state them."""
        weights = provenance.read_provenance(Path(self.weights)) if self.weights else ""
        images = provenance.read_card_provenance(self.images_from) if self.images_from else ""
        return provenance.merge_provenance((weights, images))

    @property
    def weights_digest(self) -> str:
        """The digest of the weights to start from."""
        return str(self.names["prior" if "prior" in self.names else "pretrained"]["digest"])

    @property
    def earlier_events(self) -> tuple[Event, ...]:
        """What the weights to start from reveal already, counted whether or not it is about the same units."""
        event = self.names.get("pretrained", {}).get("event")
        return () if event is None else (from_json(event),)


def read_public_inputs(
    config: Config, data: Dataset, digests: Sequence[bytes], progress: Callable[[int, int], None]
) -> PublicInputs:
    """Read and check the public inputs that complete settings name; a prior is built unless it is cached."""
    names: dict[str, dict[str, Any]] = {}
    images, weights = None, config.pretrained
    if config.synthetic:
        images, names["synthetic"] = read_public_images(config.synthetic, data, set(digests))
    if config.prior:
        weights, names["prior"] = _load_or_build_prior(config, data, progress)
    elif config.pretrained:
        names["pretrained"] = read_pretrained(Path(config.pretrained), data, unit=config.unit)
    return PublicInputs(names, images, config.synthetic, weights)


def read_pretrained(path: Path, data: Dataset, *, unit: str) -> dict[str, Any]:
    """Return file and digest of weights to start from; those from private training also have an event.

    The event must be about the same kind of unit: what is revealed of one image and of one person does not add up. If
    the weights state which images they were trained on without privacy, none of these may be private.
    """
    entry: dict[str, Any] = {"file": path.name, "digest": digest_file(path)}
    header = safetensors.verified_header(path)
    if "learned_from" in header:
        entry["learned_from"] = "noted"
        require_not_in_provenance(data, header["learned_from"], f"{path}: was trained without privacy on")
    if header.get("private", "yes") != "yes":
        raise DataError(
            f"{path}: is not private ({header['private']}), and a model that starts from it would not be. Fix: other "
            "weights."
        )
    if "event" in header:
        if header.get("unit") != unit:
            raise ConfigError(
                f"{path}: was trained privately for each {header.get('unit', 'unit that it does not name')}, which "
                f"cannot be counted for each {unit}. Fix: --unit {header.get('unit', 'image')}, or other weights."
            )
        try:
            entry["event"] = to_json(from_json(json.loads(safetensors.read(path).header["event"])))
        except (ConfigError, ValueError, RecursionError) as exc:
            raise DataError(f"{path}: does not state what it reveals about its training data ({exc}).") from exc
    return entry


def _load_or_build_prior(
    config: Config, data: Dataset, progress: Callable[[int, int], None]
) -> tuple[str, dict[str, Any]]:
    """Return the file of weights that were built from random images of the data's shape, and its name and digest."""
    height, width, channels = data.train.images.shape[1:]
    assert config.model  # complete
    settings = dictionary.DictionarySettings(config.model, (channels, height, width))
    path = dictionary.load_or_compute(settings, home() / "priors", progress)
    name = f"{settings.model} of {settings.process}, seed {settings.seed}"
    return str(path), {"file": name, "digest": digest_file(path)}


def read_public_images(source: str, data: Dataset, private: set[bytes]) -> tuple[Split, dict[str, Any]]:
    """Read public images of the same classes and size, none of which may be among the private ones."""
    height, width, channels = data.train.images.shape[1:]
    images = load(source, classes=list(data.classes), size=(height, width), channels=channels, test_share=0).train
    require_every_class(images, data.classes, source, "Fix: add images of it")
    _, in_order, digests = identify(images)
    pixels = {d for s in (data.train, data.val, data.test) if s is not None for d in provenance.pixel_digests(s.images)}
    pairs = zip(digests, provenance.pixel_digests(images.images), strict=True)
    same = sum(digest in private or pixel in pixels for digest, pixel in pairs)
    if same:
        raise ConfigError(
            f"{source}: {same:,} of its images are, pixel for pixel, in the private data too, so they are not public. "
            "Fix: give images that were made or collected without the private data."
        )
    note = provenance.read_card_provenance(source)
    if note:
        require_not_in_provenance(data, note, f"{source}: its images were synthesised by a model that learned from")
    return images, {"file": Path(source).name, "digest": in_order, "images": len(images)}


def require_every_class(split: Split, classes: Sequence[str], name: str, fix: str) -> None:
    """Require at least one image of every class."""
    counts = np.bincount(np.asarray(split.labels), minlength=len(classes))
    empty = [str(label) for label, count in zip(classes, counts, strict=True) if not count]
    if empty:
        raise DataError(f"{name}: no image is of class {', '.join(empty)}, so it could not be learned. {fix}.")
