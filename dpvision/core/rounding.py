"""Figures as people read them: a bound is rounded up, never down; what is left of a budget, down."""

from __future__ import annotations

import math

# Keeps 3.0000000000000004, which is 3 after some arithmetic, from being shown as 3.01.
ARITHMETIC = 1e-9


def upper(value: float | None, digits: int = 2) -> str:
    """A bound from above, such as epsilon."""
    if value is None:
        return "none"
    if math.isinf(value):
        return _infinite(value)
    return f"{math.ceil(value * 10**digits - ARITHMETIC) / 10**digits:.{digits}f}"


def lower(value: float, digits: int = 2) -> str:
    """A bound from below, such as what is left of a budget."""
    if math.isinf(value):
        return _infinite(value)
    return f"{math.floor(value * 10**digits + ARITHMETIC) / 10**digits:.{digits}f}"


def _infinite(value: float) -> str:
    """Where nothing is proved, epsilon has no digits."""
    return "infinite" if value > 0 else "-infinite"
