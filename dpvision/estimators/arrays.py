"""Arrays as a data set: images by public bounds, each alone; labels by classes, declared, or read off and said so.

    X   (n, H, W) or (n, H, W, C) images, or (n, features) rows, which become images of one line
        uint8, or numbers in [0, 1]; with `bounds` any numbers: cut to the bounds, then brought to [0, 1]

Nothing is scaled by what the images hold: a mean, or a largest value, would tell of them. X that can not be used is
refused with ValueError, as scikit-learn has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from dpvision.data import Dataset, Split
from dpvision.errors import ConfigError, PrivacyWarning
from dpvision.public.provenance import pixel_digests

Bounds = tuple[float, float] | None


def images_of(estimator: BaseEstimator, X: Any, bounds: Bounds, *, reset: bool) -> NDArray[Any]:
    """(n, H, W, C), uint8 or float32 in [0, 1]; the shape is kept at a fit and asked for afterwards."""
    x = np.asarray(validate_data(estimator, X, reset=reset, allow_nd=True, dtype="numeric"))
    shape = x.shape[1:]
    if reset:
        estimator.shape_ = shape
    elif shape != estimator.shape_:
        raise ValueError(f"images are of shape {shape}, and those of the fit were of {estimator.shape_}.")
    if x.ndim == 2:
        x = x[:, None, :, None]
    elif x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or x.shape[3] not in (1, 3):
        raise ValueError(
            f"X is of shape {(len(x), *shape)}: images are (n, height, width) or (n, height, width, 1 or 3). Fix: "
            "reshape it."
        )
    return _scaled(x, bounds)


def raw_digests(X: Any) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Digests of rows as they came, in each way that another type, shape or other bounds may show them.

    Three lists with one digest per row: as float32, as 8 bits of 0 to 255 and as 8 bits of 0 to 1; b"" where a row is
    outside of these. Each row by itself: what one image is like must not rename the others.
    """
    x = np.asarray(X)
    found: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    for start in range(0, len(x), 1024):
        rows = x[start : start + 1024].reshape(len(x[start : start + 1024]), -1).astype(np.float64)
        found[0].extend(pixel_digests(np.ascontiguousarray(rows, dtype=np.float32).view(np.uint8)))
        least, most = rows.min(axis=1), rows.max(axis=1)
        for kind, top in ((1, 255), (2, 1)):
            within = (least >= 0) & (most <= top)
            digests = iter(pixel_digests(np.round(rows[within] * (255 / top)).astype(np.uint8)))
            found[kind].extend(next(digests) if inside else b"" for inside in within)
    return found


def _scaled(x: NDArray[Any], bounds: Bounds) -> NDArray[Any]:
    if bounds is not None:
        low, high = _checked(bounds)
        return ((np.clip(x.astype(np.float64), low, high) - low) / (high - low)).astype(np.float32)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise ValueError(
            "X has values outside of [0, 1] and is not uint8. Fix: give `bounds`, the least and the largest value that "
            "there may be, as public knowledge: it is not read off the data."
        )
    return x.astype(np.float32)


def _checked(bounds: Any) -> tuple[float, float]:
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise ConfigError(f"bounds is {bounds!r}: it must be two numbers, such as (0, 255).") from None
    if not (np.isfinite([low, high]).all() and low < high):
        raise ConfigError(f"bounds is {bounds!r}: the first must be below the second, and both finite.")
    return low, high


def labels_of(y: Any, images: NDArray[Any], classes: Sequence[Any] | int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """The classes, sorted, and each label's place among them. Where they are read off y, a warning says so."""
    y = column_or_1d(y, warn=True)
    check_consistent_length(images, y)
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    if classes is None:
        known = np.unique(y)
        warnings.warn(
            "the classes were read off y and are treated as public: a class that only one image has would show it, and "
            "epsilon does not cover that. Fix: declare them, classes=[...].",
            PrivacyWarning,
            stacklevel=3,
        )
    else:
        known = np.arange(classes) if isinstance(classes, int) else np.unique(np.asarray(classes))
    if len(known) < 2:
        raise ValueError(f"there is {len(known)} class: a classifier needs two classes or more.")
    strange = ~np.isin(y, known)
    if strange.any():
        raise ValueError(f"y has a label that is none of the declared classes {known.tolist()!r}.")
    return known, np.searchsorted(known, y).astype(np.int64)


def data_set(
    name: str, images: NDArray[Any], labels: NDArray[Any], classes: NDArray[Any], *, declared: bool
) -> Dataset:
    """What the rest of the package takes."""
    names = tuple(str(c) for c in classes.tolist())
    inferred = () if declared else ("classes",)
    return Dataset(name, names, Split(images, labels, None), None, None, inferred)


def plain(value: Any) -> Any:
    """A number of numpy, such as a search gives, as Python's own."""
    return value.item() if isinstance(value, np.generic) else value
