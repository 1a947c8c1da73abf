"""Labels of released rows as (T, K) numbers: soft ones as they are, classes as 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError


def soft_labels(y: Any, *, classes: int | None, rows: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """(T, K) float32, and the names of the K classes.

    y                       classes       names
    (T, K) numbers          None or K     0 to K - 1; numbers below 0 and above 1 are fine
    (T,) whole numbers      K             0 to K - 1, whether or not there are rows of each
    (T,) anything           None          those that are there, sorted
    """
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int) or classes < 2):
        raise ConfigError(f"classes is {classes!r}: the number of classes is a whole number above 1, or None.")
    if y is None:
        raise ConfigError("y is None: a learner requires y to be passed, soft labels (T, K) or classes (T,).")
    found = np.asarray(y)
    if found.shape[:1] != (rows,):
        raise ConfigError(f"y has shape {found.shape}, but there are {rows} rows: there must be as many labels.")
    if found.ndim == 2:
        return _soft(found, classes)
    if found.ndim != 1:
        raise ConfigError(f"y has shape {found.shape}: it must be soft labels (T, K) or classes (T,).")
    if classes is not None:
        if found.dtype.kind not in "iu" or not (found.min() >= 0 and found.max() < classes):
            raise ConfigError(f"y must be whole numbers from 0 to {classes - 1}, as classes={classes} was given.")
        names = np.arange(classes)
        return np.eye(classes, dtype=np.float32)[found], names
    if found.dtype.kind == "f" and not (np.isfinite(found).all() and (found == np.trunc(found)).all()):
        raise ConfigError("Unknown label type: y has numbers that are not whole. Fix: classes, or labels (T, K).")
    names, places = np.unique(found, return_inverse=True)
    if len(names) < 2:
        raise ConfigError(f"y has one class only ({names[0]!r}). Fix: classes=, where others were possible.")
    return np.eye(len(names), dtype=np.float32)[places], names


def _soft(found: NDArray[Any], classes: int | None) -> tuple[NDArray[np.float32], NDArray[Any]]:
    if found.shape[1] < 2 or found.dtype.kind not in "fiu":
        raise ConfigError(f"y is {found.dtype} of shape {found.shape}: soft labels need a column for each class.")
    if classes not in (None, found.shape[1]):
        raise ConfigError(f"y has {found.shape[1]} columns, but classes={classes} was given.")
    soft = found.astype(np.float32, copy=False)
    if not np.isfinite(soft).all():
        raise ConfigError("y has numbers that are not finite. Fix: leave those rows out.")
    return soft, np.arange(found.shape[1])
