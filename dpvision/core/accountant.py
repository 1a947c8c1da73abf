"""How much an event reveals about any one record: dp-accounting's privacy loss distribution, always an upper bound.

Formal guarantee: for neighbouring data sets (one record, or person, more or less), whatever was released by the event
satisfies (epsilon(event, delta), delta)-differential privacy, for every delta at once. The discretisation is the
pessimistic one; delta is reduced by what rounding may hide before epsilon is read off. For a class schedule the
figure is that of the class that fares worst.

This accountant alone decides what a run may do and what a card states. settings/quick.py, the fast accountant of plans
and searches, takes the grid and the allowance for rounding from here; settings/cross_checks.py has other bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core.events import Capped, Event, Exposure, Kind, apart, exposures

Floats = NDArray[np.float64]

NAME = "dp-accounting PLD (connect-the-dots, pessimistic)"
# Width of the loss grid, in standard deviations of one step's loss. Connecting the dots adds a variance of about
# h^2/6 to a step of variance v, so epsilon is too high by a factor of about 1 + (h^2/v)/12: 3e-4 at 0.06.
GRID = 0.06
# The most grid points of one step and of a composed distribution; beyond, the grid is made wider: faster and more
# pessimistic, never less. Only rates below about 1e-4 at little noise get there.
MOST_STEP_POINTS = 1 << 17
MOST_POINTS = 1 << 20
# Points are on a grid at least this many times as fine as the largest of their epsilons.
POINT_GRID = 1024
# A step's losses are cut where Q and P have less mass than this on the far side; P's goes to infinite loss.
STEP_TAIL_SIGMAS = 10.5
# Losses above this are counted as infinite: no such guarantee means anything, and exp() of it is out of range.
MOST_LOSS = 600.0
# What the noise sampler's distance from the ideal law may add to delta. Its numbers are within 2^-100 each, jointly
# (core/noise.py), so N of them add N (1 + e^epsilon) 2^-100: this is enough for N (1 + e^epsilon) up to 2^60.
SAMPLER = 2.0**-40


def epsilon(event: Event, delta: float) -> float:
    """An upper bound on the least epsilon at `delta`."""
    if isinstance(event, Capped):
        return event.epsilon if delta >= event.delta else math.inf
    return max((_epsilon(kind, delta) for kind in exposures(event)), default=0.0)


def delta(event: Event, epsilon: float) -> float:
    """An upper bound on the least delta at `epsilon`."""
    return float(profile(event, [epsilon])[0])


def profile(event: Event, epsilons: Sequence[float]) -> Floats:
    """Upper bounds on delta at each of the epsilons, which ascend."""
    if isinstance(event, Capped):  # it satisfies one point, and nothing else is known
        over = np.maximum(0.0, -np.expm1(np.asarray(epsilons, dtype=np.float64) - event.epsilon))
        return np.asarray(event.delta + (1 - event.delta) * (over / (1 + math.exp(-event.epsilon))))
    worst = np.zeros(len(epsilons))
    for kind in exposures(event):
        if kind:
            deltas = np.asarray(_loss_distribution(kind).get_delta_for_epsilon(list(epsilons)))
            worst = np.maximum(worst, np.maximum(deltas, 0.0) + _hidden(kind))  # what seems 0 may be rounded too
    return np.minimum(worst, 1.0)


@lru_cache(maxsize=512)
def _epsilon(kind: Kind, delta: float) -> float:
    if not kind:
        return 0.0
    provable = delta - _hidden(kind)  # what rounding may hide is taken off delta before epsilon is read
    return float(_loss_distribution(kind).get_epsilon_for_delta(provable)) if provable > 0 else math.inf


def _hidden(kind: Kind) -> float:
    steps, points = apart(join_unsampled(kind))
    return hidden_by_rounding(sum(x.steps for x in steps) + len(points))


def hidden_by_rounding(steps: int) -> float:
    """The part of delta that arithmetic may hide: the noise sampler's distance from the ideal law, and rounding in the
    transforms, where a power of a spectrum loses about 2^-52 per factor.

    Measured against exact Gaussians composed 10^6 times: 5e-11, where this allows 9e-10.
    """
    return 1e-12 + SAMPLER + 2.0**-50 * steps


@lru_cache(maxsize=8)
def _loss_distribution(kind: Kind) -> Any:
    return compose_losses(kind, grid=GRID / 2, optimistic=False)


def compose_losses(kind: Kind, *, grid: float, optimistic: bool) -> Any:
    """dp-accounting's loss distribution of all that such a record meets, from above, or from below (`optimistic`)."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    kind = join_unsampled(kind)
    exposed, points = apart(kind)
    width = grid_width(kind) * grid / GRID
    parts = [
        pld.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            value_discretization_interval=width,
            use_connect_dots=not optimistic,
            pessimistic_estimate=not optimistic,
        ).self_compose(steps)
        for rate, sigma, steps in exposed
    ]
    parts += [
        pld.from_privacy_parameters(
            common.DifferentialPrivacyParameters(point.epsilon, point.delta), value_discretization_interval=width
        )
        for point in points
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return total


def join_unsampled(kind: Kind) -> Kind:
    """Gaussians that every record is in add up exactly: 1/sigma^2 = sum of n/sigma^2.

    A rate within 1e-9 of 1 counts as 1, which is never too little.
    """
    steps, points = apart(kind)
    precision = sum(n / sigma**2 for q, sigma, n in steps if q > 1 - 1e-9)
    sampled = tuple(x for x in steps if x.rate <= 1 - 1e-9)
    return (*sampled, *((Exposure(1.0, precision**-0.5, 1),) if precision else ()), *points)


def grid_width(kind: Kind) -> float:
    """The loss grid's width: a fixed share of a step's standard deviation, wider where the grid would be too long."""
    x = np.linspace(-STEP_TAIL_SIGMAS, STEP_TAIL_SIGMAS, 4001)
    w = np.exp(-(x**2) / 2)
    w /= w.sum()
    steps = variance = reach = 0.0
    exposed, points = apart(kind)
    for q, sigma, n in exposed:
        out, into = loss(x * sigma, q, sigma), loss(x * sigma + 1, q, sigma)
        mean = (1 - q) * (w @ out) + q * (w @ into)
        variance += n * float((1 - q) * (w @ (out - mean) ** 2) + q * (w @ (into - mean) ** 2))
        reach = max(reach, min(float(into[-1] - out[0]), 2 * MOST_LOSS))
        steps += n
    h = min(GRID * math.sqrt(variance / steps), 1.0) if steps else 1.0
    if any(point.epsilon > 0 for point in points):
        h = min(h, max(point.epsilon for point in points) / POINT_GRID)
        variance += sum(point.epsilon**2 for point in points)
    return max(h, reach / MOST_STEP_POINTS, 20 * math.sqrt(variance) / MOST_POINTS)


def loss(x: Floats, q: float, sigma: float) -> Floats:
    """log(dP/dQ)(x) of one step: P = (1-q) N(0, sigma^2) + q N(1, sigma^2) against Q = N(0, sigma^2)."""
    whole = (2 * x - 1) / (2 * sigma**2)
    return whole if q == 1.0 else np.logaddexp(math.log1p(-q), math.log(q) + whole)
