"""Format figures and events for people: upper bounds are rounded up, lower bounds and remaining budgets down."""

from __future__ import annotations

import math

from dpvision.core.events import Adaptive, Capped, ClassScheduled, Composed, Event, Gaussian, PoissonGaussian, Tuned

# Tolerance for rounding errors: 3.0000000000000004 is shown as 3.00, not as 3.01.
ARITHMETIC = 1e-9


def upper(value: float | None, digits: int = 2) -> str:
    """Format an upper bound, such as epsilon, rounded up to two decimal places, or below 0.1 to two digits."""
    if value is None:
        return "none"
    if math.isinf(value):
        return _infinite(value)
    digits = _digits(value, digits)
    return f"{math.ceil(value * 10**digits - ARITHMETIC) / 10**digits:.{digits}f}"


def round_down(value: float) -> float:
    """Round a positive number down to the digits that `upper` shows."""
    scale = 10.0 ** _digits(value, 2)
    return math.floor(value * scale + ARITHMETIC) / scale


def lower(value: float, digits: int = 2) -> str:
    """Format a lower bound, such as a remaining budget, rounded down."""
    if math.isinf(value):
        return _infinite(value)
    return f"{math.floor(value * 10**digits + ARITHMETIC) / 10**digits:.{digits}f}"


def _digits(value: float, digits: int) -> int:
    return max(digits, 1 - math.floor(math.log10(value))) if 0 < value < 0.1 else digits


def _infinite(value: float) -> str:
    return "infinite" if value > 0 else "-infinite"


def describe(event: Event) -> str:
    """Describe an event in words, for tables and messages."""
    match event:
        case Gaussian(sigma, count):
            return f"{count:,} noisy sum{'s' if count > 1 else ''} over all records, sigma {sigma:.4g}"
        case PoissonGaussian(rate, sigma, steps):
            return f"{steps:,} steps at sampling rate {rate:.4g}, sigma {sigma:.4g}"
        case ClassScheduled(sigma, rates, rows):
            return f"up to {max(rows):,} rows of a class, at sampling rate up to {max(rates):.4g}, sigma {sigma:.4g}"
        case Tuned(trials, eta, gamma, epsilon, delta):
            trial = "; or ".join(describe(e) for e in dict.fromkeys(trials))
            number = f"a random number of trials (eta {eta:g}, gamma {gamma:.4g})"
            return f"the best of {number}, each with {trial}; epsilon {epsilon:.4g} at delta {delta:.2g}"
        case Composed(events):
            return "; ".join(describe(e) for e in events) or "nothing"
        case Adaptive(first, later, _):
            return "; ".join([describe(first), *(f"then, chosen later: {describe(x.event)}" for x in later)])
        case Capped(inside, epsilon, delta):
            return f"{describe(inside)}; at most epsilon {epsilon:g} at delta {delta:g}, whatever was chosen"
