"""Features of other images, made as those of a released folder: by its encoder and its map, which are public.

A folder may come from anywhere, so nothing in it is believed before it was checked; none of it can run code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.core.rows import Preparation
from dpvision.data import Split, load
from dpvision.errors import ConfigError, DataError
from dpvision.private.features.encoders import Encoder, encoder, extract
from dpvision.private.statistics import Whitening
from dpvision.released.folder import HEADER, MOST_TEXT, read_arrays, read_schema

Progress = Callable[[str, int, int], None]


def features_of(
    folder: Path,
    source: str,
    *,
    split: str = "test",
    weights: Path | None = None,
    classes: int | Sequence[str] | None = None,
    progress: Progress = lambda *_: None,
) -> dict[str, NDArray[Any]]:
    """ "features" and "labels" of one split of a data set."""
    found = split_of(folder, source, split=split, classes=classes)
    encode, rule = made_by(folder, weights=weights, progress=progress)
    rows = extract(encode, found, lambda *done: progress("features", *done))
    return {"features": rule.apply(rows)[0], "labels": np.asarray(found.labels, dtype=np.int64)}


def split_of(folder: Path, source: str, *, split: str, classes: int | Sequence[str] | None = None) -> Split:
    """Images of one split, of the shape and the classes of the release."""
    schema, (height, width, channels) = read_schema(folder), _card(folder)["shape"]
    data = load(source, classes=classes or schema["classes"], size=(height, width), channels=channels)
    found: Split | None = getattr(data, split)
    if found is None:
        there = [name for name in ("train", "val", "test") if getattr(data, name) is not None]
        raise DataError(f"{source}: has no {split} split. Fix: --split {' or '.join(there)}.")
    return found


def made_by(
    folder: Path, *, weights: Path | None = None, progress: Progress = lambda *_: None
) -> tuple[Encoder, Preparation]:
    """The encoder of a release, and what was done to each row of its features."""
    schema, card = read_schema(folder), _card(folder)
    height, width, channels = card["shape"]
    encode = encoder(
        card["encoder"],
        (channels, height, width),
        weights,
        progress=lambda *done: progress("dictionary", *done),
    )
    if encode.weights != card["weights"]:
        raise ConfigError(
            f"the encoder {encode.name!r} has other weights than those of the release (digest {card['weights']}). Fix: "
            "--weights, the file that its card names."
        )
    rule = preparation(folder, card, encode.width, columns=schema["width"])
    columns = encode.width if rule.whitening is None else rule.whitening.width
    if columns != schema["width"]:
        raise DataError(f"{folder}: its rows have {schema['width']} columns, and its map makes {columns}.")
    return encode, rule


def preparation(folder: Path, card: dict[str, Any], width: int, *, columns: int) -> Preparation:
    """What the release did to each row of features, which it made `columns` numbers of, never more than they were."""
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


def _card(folder: Path) -> dict[str, Any]:
    path = folder / "card.json"
    try:
        found = json.loads(files.read(path, most=MOST_TEXT))
        features, config = found["features"], found["config"]
        shape = found["image_shape"]
        kinds = isinstance(features["encoder"], str) and isinstance(features["weights"], str | None)
        bound = config.get("bound")
        if len(shape) != 3 or not all(type(v) is int and v > 0 for v in shape) or not kinds:
            raise ValueError("features, image_shape or config are of another kind")
        if bound is not None and not (type(bound) in (int, float) and 0 < bound < math.inf):
            raise ValueError(f"bound is {bound!r}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise DataError(f"{path}: does not say how the features were made ({exc}).") from exc
    return {"encoder": features["encoder"], "weights": features["weights"], "shape": shape, "bound": bound}
