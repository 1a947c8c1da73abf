"""A public linear map that gives features of public images the same variance in all directions.

    x -> W (x - m),    W = (C + q tr(C)/d I)^(-1/2),    m and C the mean and the covariance of the public features

With a `rank`, only the directions in which public features vary most are kept, as one coordinate each:

    x -> (E + q tr(C)/d)^(-1/2) V^T (x - m)             V and E the first `rank` eigenvectors and eigenvalues of C

Formal guarantee: none is needed here. The map is computed from public features alone, for instance those of random
images, and is therefore a public function of each private row. Rows are scaled to norm 1 after the map (rows.py), so it
changes no sensitivity. Computing it from private features would break the guarantee, and nothing here can detect
that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpvision.core.rows import Floats, as_matrix
from dpvision.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Whitening:
    """The map x -> W (x - m): `matrix` is W^T, `mean` is m, `ridge` is q."""

    matrix: Floats
    mean: Floats
    ridge: float

    @staticmethod
    def of(public_features: Any, *, ridge: float = 0.1, rank: int | None = None) -> Whitening:
        """Compute the whitening of public features; `ridge` times the mean variance is added to each variance."""
        x = as_matrix(public_features, "public_features").astype(np.float64)
        if len(x) < 2 or not np.isfinite(x).all():
            raise ConfigError("public_features must have at least 2 rows and only finite numbers.")
        if not (isinstance(ridge, int | float) and 0 < ridge < math.inf):
            raise ConfigError(f"ridge is {ridge!r}: it must be a finite number above 0, such as 0.1.")
        mean = x.mean(axis=0)
        values, vectors = np.linalg.eigh(add_ridge(covariance(x), ridge))
        if rank is None:
            return Whitening(vectors / np.sqrt(values) @ vectors.T, mean, ridge)
        if not 1 <= rank <= x.shape[1]:
            raise ConfigError(f"rank is {rank}: it must be from 1 to {x.shape[1]}, the number of features.")
        return Whitening((vectors / np.sqrt(values))[:, : -rank - 1 : -1], mean, ridge)

    @property
    def width(self) -> int:
        """The number of columns of whitened rows."""
        return self.matrix.shape[1]

    def apply(self, x: Floats) -> Floats:
        return (x - self.mean) @ self.matrix

    def __repr__(self) -> str:
        return f"Whitening({len(self.mean)} features to {self.width}, ridge={self.ridge:g})"


def covariance(x: Floats) -> Floats:
    """Return the covariance matrix of the rows, the mean of (x - m)(x - m)^T."""
    centred = x - x.mean(axis=0)
    return np.asarray(centred.T @ centred / len(x))


def add_ridge(c: Floats, q: float) -> Floats:
    """Return C + q tr(C)/d I."""
    d = len(c)
    if not np.trace(c) > 0:
        raise ConfigError("the public features are all the same, so they have no directions to learn.")
    return c + q * np.trace(c) / d * np.eye(d)
