"""Averages over released rows, from which ridge regression and the discriminant are made; read in blocks, once.

Rows x~ = x + N(0, s_x^2) and labels y~ = y + N(0, s_y^2), with noise that is independent of all else, have

    mean x~ x~^T = mean x x^T + s_x^2 I,    mean y~ y~^T = mean y y^T + s_y^2 I,    mean x~ y~^T = mean x y^T

in expectation. What is known of the noise is taken off. What is left of it has a standard deviation of
s_x^2 sqrt(2/T) on the diagonal, and 1/sqrt(2) of that beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpvision.released.closed_form import Floats
from dpvision.released.learners.learner import AT_A_TIME


@dataclass(frozen=True, eq=False)
class Averages:
    """Of T rows; the noise is still in."""

    rows: int
    x: Floats  # (d,)
    y: Floats  # (K,)
    xx: Floats  # (d, d)
    xy: Floats  # (d, K)
    yy: Floats  # (K, K)

    @staticmethod
    def of(x: NDArray[np.float32], y: NDArray[np.float32]) -> Averages:
        """Products in float32 for a few rows at a time, around the mean row, added up in float64."""
        count, width = x.shape
        mean = x.mean(axis=0, dtype=np.float64)
        shift = mean.astype(np.float32)
        xx, xy, yy = np.zeros((width, width)), np.zeros((width, y.shape[1])), np.zeros((y.shape[1],) * 2)
        for start in range(0, count, AT_A_TIME):
            labels = y[start : start + AT_A_TIME].astype(np.float64)
            part = x[start : start + AT_A_TIME] - shift
            xx += part.T @ part
            xy += part.T @ labels.astype(np.float32)
            yy += labels.T @ labels
        own = y.mean(axis=0, dtype=np.float64)
        left = mean - shift  # what rounding the mean to float32 left in every row
        xx = xx / count + np.outer(mean, mean) - np.outer(left, left)
        return Averages(count, mean, own, xx, xy / count + np.outer(shift.astype(np.float64), own), yy / count)
