"""The public map of a release: whitening by features of random images, and the same features of other images.

The noise of a release is the same in every direction. All directions should therefore have the same variance, and those
in which images hardly differ should be left out. The covariance of dead-leaves images provides both. The map depends on
its settings and the encoder; private rows only pass through it (statistics/whitening.py). It is computed once, cached
and included in the release, because others need it for features of other images (`features_of`).

A released folder may come from anywhere, so its content is checked before it is used, and none of it can run code.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.core.rows import Preparation
from dpvision.data import Split, load
from dpvision.errors import ConfigError, DataError
from dpvision.models.device import CPU
from dpvision.models.featured import device_of
from dpvision.private.features import cache
from dpvision.private.features.encoders import Encoder, extract, load_encoder
from dpvision.private.statistics.whitening import Whitening
from dpvision.public import dictionary
from dpvision.released.folder import HEADER, MAX_TEXT, read_arrays, read_schema
from dpvision.storage import safetensors
from dpvision.storage.home import home

FORMAT = "dpvision-map-1"  # increase it with every change to what is drawn or computed
PROCESS, IMAGES, SEED, RIDGE = "dead-leaves-mixed", 4000, 1, 0.1
Progress = Callable[[str, int, int], None]


def load_or_compute_whitening(
    encoder: Encoder, *, rank: int, progress: Callable[[int, int], None] = lambda *_: None
) -> Whitening:
    """Return whitening by features of random images of the encoder's shape, to at most `rank` directions."""
    rank = min(rank, encoder.width)
    metadata = {
        "format": FORMAT,
        "encoder": f"{encoder.name} {encoder.shape} {cache.digest(encoder)} {cache.code_version()}",
        "random_images": f"{PROCESS} {IMAGES} {SEED} {RIDGE} {rank}",
    }
    name = hashlib.blake2b(json.dumps(metadata).encode(), digest_size=12).hexdigest()
    folder = home() / "priors"
    path = folder / f"map-{name}.safetensors"
    files.make_folder(folder)
    with files.locked(folder / f"map-{name}.lock"):
        if not path.exists():
            white = Whitening.of(_features_of_random_images(encoder, progress), ridge=RIDGE, rank=rank)
            tensors = {"mean": torch.from_numpy(white.mean.copy()), "matrix": torch.from_numpy(white.matrix.copy())}
            files.write(path, safetensors.dump(tensors, metadata))
    like = {
        "mean": torch.empty(encoder.width, dtype=torch.float64, device="meta"),
        "matrix": torch.empty(encoder.width, rank, dtype=torch.float64, device="meta"),
    }
    try:
        tensors, header = safetensors.load(path, like)
    except DataError as exc:
        raise DataError(f"{exc} Fix: remove the file; it is computed again from random images.") from exc
    if any(header.get(key) != value for key, value in metadata.items()):
        raise DataError(f"{path}: does not contain the map that its name identifies. Fix: remove the file.")
    return Whitening(tensors["matrix"].numpy(), tensors["mean"].numpy(), RIDGE)


def _features_of_random_images(encoder: Encoder, progress: Callable[[int, int], None]) -> NDArray[np.float32]:
    settings = dictionary.DictionarySettings(encoder.name, encoder.shape, process=PROCESS, images=IMAGES, seed=SEED)
    out = np.empty((IMAGES, encoder.width), dtype=np.float32)
    for part, images in dictionary.draw_images(settings, range(IMAGES)):
        with torch.no_grad():
            out[part.start : part.stop] = encoder.features(images.to(device_of(encoder))).float().cpu().numpy()
        progress(part.stop, IMAGES)
    return out


def features_of(
    folder: Path,
    source: str,
    *,
    split: str = "test",
    weights: Path | None = None,
    classes: int | Sequence[str] | None = None,
    progress: Progress = lambda *_: None,
    device: torch.device = CPU,
) -> dict[str, NDArray[Any]]:
    """Return the "features" and "labels" of one split, by the encoder and the map of a released folder.

    If the data names persons, their numbers are in "persons".
    """
    records = load_split(folder, source, split=split, classes=classes)
    encoder, preparation = load_released_encoder(folder, weights=weights, progress=progress, device=device)
    rows = extract(encoder, records, lambda *done: progress("features", *done))
    arrays: dict[str, NDArray[Any]] = {
        "features": preparation.apply(rows)[0],
        "labels": np.asarray(records.labels, dtype=np.int64),
    }
    if records.persons is not None:
        arrays["persons"] = np.asarray(records.persons, dtype=np.int64)
    return arrays


def origin_of(folder: Path) -> str:
    """The encoder of a release with its source and licence, as its card states them, for a file of features."""
    card = _read_card(folder)
    return f"{card['encoder']}: {card['origin']}"


def load_split(folder: Path, source: str, *, split: str, classes: int | Sequence[str] | None = None) -> Split:
    """Read the images of one split of `source`, in the shape and the classes of the release."""
    schema, card = read_schema(folder), _read_card(folder)
    height, width, channels = card["shape"]
    data = load(
        source, classes=classes or schema["classes"], size=(height, width), channels=channels, **card["reading"]
    )
    records: Split | None = getattr(data, split)
    if records is None:
        available = [name for name in ("train", "val", "test") if getattr(data, name) is not None]
        raise DataError(f"{source}: has no {split} split. Fix: use --split {' or '.join(available)}.")
    return records


def load_released_encoder(
    folder: Path, *, weights: Path | None = None, progress: Progress = lambda *_: None, device: torch.device = CPU
) -> tuple[Encoder, Preparation]:
    """Return the encoder of a release, and what was done to each row of its features."""
    schema, card = read_schema(folder), _read_card(folder)
    height, width, channels = card["shape"]
    encoder = load_encoder(
        card["encoder"],
        (channels, height, width),
        weights,
        progress=lambda *done: progress("dictionary", *done),
        device=device,
    )
    if encoder.weights != card["weights"]:
        raise ConfigError(
            f"the encoder {encoder.name!r} does not have the weights of the release (digest {card['weights']}). "
            "Fix: use --weights with the file that its card names."
        )
    preparation = read_preparation(folder, card, encoder.width, columns=schema["width"])
    columns = encoder.width if preparation.whitening is None else preparation.whitening.width
    if columns != schema["width"]:
        raise DataError(f"{folder}: its rows have {schema['width']} columns, but its map produces {columns}.")
    return encoder, preparation


def read_preparation(folder: Path, card: dict[str, Any], width: int, *, columns: int) -> Preparation:
    """Return what the release did to each row of `width` features. A map produces `columns` numbers, at most
    `width`."""
    path = folder / "map.safetensors"
    if path.exists():
        arrays = read_arrays(path, most=8 * width * (1 + min(columns, width)) + HEADER)
        mean, matrix = arrays.get("mean"), arrays.get("matrix")
        if (
            mean is None
            or matrix is None
            or mean.shape != (width,)
            or matrix.ndim != 2
            or len(matrix) != width
            or not (np.isfinite(mean).all() and np.isfinite(matrix).all())
        ):
            raise DataError(f"{path}: is not a map of {width} features. Fix: copy it again.")
        return Preparation(whitening=Whitening(matrix.astype(np.float64), mean.astype(np.float64), 0.0))
    return Preparation(unit=True) if card["bound"] is None else Preparation(bound=card["bound"])


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / "card.json"
    try:
        card = json.loads(files.read(path, most=MAX_TEXT))
        features, config, shape = card["features"], card["config"], card["image_shape"]
        kinds = isinstance(features["encoder"], str) and isinstance(features["weights"], str | None)
        bound = config.get("bound")
        reading = {name: config.get(name) for name in ("test_share", "window", "columns")}
        reading["rule"] = features.get("reading_rule", 1)
        texts = isinstance(reading["window"], str | None) and isinstance(reading["columns"], str | None)
        if not texts or type(reading["rule"]) is not int:
            raise ValueError("window, columns or reading_rule have an unexpected type")
        if len(shape) != 3 or not all(type(v) is int and v > 0 for v in shape) or not kinds:
            raise ValueError("features, image_shape or config have an unexpected type")
        if bound is not None and not (type(bound) in (int, float) and 0 < bound < math.inf):
            raise ValueError(f"bound is {bound!r}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise DataError(f"{path}: does not state how the features were computed ({exc}).") from exc
    origin = str(features.get("origin", "of unknown origin"))
    return {
        "encoder": features["encoder"],
        "weights": features["weights"],
        "shape": shape,
        "bound": bound,
        "origin": origin,
        "reading": reading,
    }
