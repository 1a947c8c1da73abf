"""Features and labels as numpy has them, or a refusal that names them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError

Floats = NDArray[np.float64]


def as_matrix(features: Any, name: str) -> NDArray[Any]:
    """An (N, d) array or tensor of floats."""
    found = _as_array(features, name)
    if found.ndim != 2 or found.shape[1] == 0 or found.dtype.kind != "f":
        raise ConfigError(
            f"{name} must be a matrix of floats with a row for each image, not {found.dtype} of shape {found.shape}."
        )
    return found


def as_classes(labels: Any, name: str, *, classes: int) -> NDArray[np.int64]:
    """Whole numbers from 0 to classes - 1. How many classes there are is public, and never taken from the labels."""
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise ConfigError(f"classes is {classes!r}: the number of classes is public, and a whole number above 1.")
    found = _as_array(labels, name)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ConfigError(f"{name} must be a list of whole numbers, not {found.dtype} of shape {found.shape}.")
    if len(found) and not (found.min() >= 0 and found.max() < classes):
        raise ConfigError(f"{name} must be from 0 to {classes - 1}, as there are {classes} classes; some are not.")
    return found.astype(np.int64)


def _as_array(values: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{name} can not be read as an array ({exc}).") from exc
