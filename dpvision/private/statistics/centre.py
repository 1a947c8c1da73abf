"""Rows less their mean: what all images share says nothing about classes, and takes up most of a row's length.

    m = (sum_i x_i + noise) / n,    x_i <- (x_i - m) / |x_i - m|

Formal guarantee: the sum moves by at most 1 with one row more or less (rows are of length at most 1, rows.py); what is
done with the noisy mean m afterwards is a function of m and of each row on its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpvision.core.rows import AT_A_TIME, SHORTER, BoundedSum, Floats, Rows, lengths


def sum_of_rows(rows: Rows) -> BoundedSum:
    total = np.zeros(rows.width)
    for x, _ in rows.blocks():
        total += x.sum(axis=0)
    return BoundedSum(total, 1.0)


def around(rows: Rows, centre: Floats) -> Rows:
    """The same rows seen from the centre; one that is in no sum stays zero."""
    x = less(rows.x, centre)
    return replace(rows, x=np.where(rows.counted[:, None], x, np.float32(0)))


def less(x: NDArray[np.float32], centre: Floats) -> NDArray[np.float32]:
    """(x - m) / |x - m|, a few rows at a time."""
    out = np.zeros_like(x)
    for start in range(0, len(x), AT_A_TIME):
        part = slice(start, start + AT_A_TIME)
        moved = x[part].astype(np.float64) - centre
        length = lengths(moved)
        unit = np.divide(moved, length, out=np.zeros_like(moved), where=length > 0)
        out[part] = unit / np.maximum(1.0, lengths(unit)) * SHORTER
    return out
