"""Figures and events as people read them: an upper bound is rounded up; a lower bound, or what is left, down."""

from __future__ import annotations

import math

from dpvision.core.events import Adaptive, Capped, ClassScheduled, Composed, Event, Gaussian, PoissonGaussian, Tuned

# Keeps 3.0000000000000004, which is 3 after some arithmetic, from being shown as 3.01.
ARITHMETIC = 1e-9


def upper(value: float | None, digits: int = 2) -> str:
    """Format an upper bound, such as epsilon, rounded up: with two decimal places, below 0.1 with two digits."""
    if value is None:
        return "none"
    if math.isinf(value):
        return _infinite(value)
    if 0 < value < 0.1:
        digits = max(digits, 1 - math.floor(math.log10(value)))
    return f"{math.ceil(value * 10**digits - ARITHMETIC) / 10**digits:.{digits}f}"


def lower(value: float, digits: int = 2) -> str:
    """Format a lower bound, such as what remains of a budget, rounded down."""
    if math.isinf(value):
        return _infinite(value)
    return f"{math.floor(value * 10**digits + ARITHMETIC) / 10**digits:.{digits}f}"


def _infinite(value: float) -> str:
    return "infinite" if value > 0 else "-infinite"


def describe(event: Event) -> str:
    """Describe the event in words, for tables and messages."""
    match event:
        case Gaussian(sigma, count):
            return f"{count:,} release{'s' if count > 1 else ''} of every record, sigma {sigma:.4g}"
        case PoissonGaussian(rate, sigma, steps):
            return f"{steps:,} steps, each record in a step with probability {rate:.4g}, sigma {sigma:.4g}"
        case ClassScheduled(sigma, rates, rows):
            inside = f"each record in a row of its class with probability up to {max(rates):.4g}"
            return f"up to {max(rows):,} rows of a class, {inside}, sigma {sigma:.4g}"
        case Tuned(trials, eta, gamma, epsilon, delta):
            each = "; or ".join(describe(e) for e in dict.fromkeys(trials))
            stop = f"random stopping, eta {eta:g}, gamma {gamma:.4g}"
            return f"the best of a random number of trials ({stop}), each: {each}; epsilon {epsilon:.4g} at {delta:.2g}"
        case Composed(events):
            return "; ".join(describe(e) for e in events) or "nothing"
        case Adaptive(first, later, _):
            return "; ".join([describe(first), *(f"then, chosen later: {describe(x.event)}" for x in later)])
        case Capped(inside, epsilon, delta):
            return f"{describe(inside)}; within epsilon {epsilon:g} at {delta:g} whatever was chosen"
