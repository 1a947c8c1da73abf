"""Upper bounds on the privacy loss of an event, by dp-accounting's privacy loss distributions (PLDs).

Formal guarantee: under add/remove adjacency (of one record, or of one person), everything the event releases satisfies
(epsilon(event, delta), delta)-differential privacy, for every delta simultaneously. The discretisation is pessimistic,
and an allowance for numerical errors is subtracted from delta before it is converted to epsilon. The result holds for
the worst-off kind of record. This accountant alone decides what a run may do and what a card states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core.events import Capped, Event, Exposure, Kind, exposures, split_kind

Floats = NDArray[np.float64]

NAME = "dp-accounting PLD (connect-the-dots, pessimistic)"
# Spacing of the loss grid, in standard deviations of one step's loss. Connect-the-dots on a grid of spacing h adds a
# variance of about h^2/6 to a step of variance v, so it overestimates epsilon by about (h^2/v)/12: by 3e-4 at 0.06.
GRID = 0.06
# Maximum number of grid points for one step and for a composed distribution; above it, a coarser grid is used, which
# can only be more pessimistic. Only sampling rates below about 1e-4 with little noise reach it.
MAX_STEP_POINTS, MAX_POINTS = 1 << 17, 1 << 20
POINT_GRID = 1024  # with (epsilon, delta) points, the grid spacing is at most their largest epsilon divided by this
# A step's losses are truncated this many standard deviations into the tails of P and Q; P's tail gets infinite loss.
STEP_TAIL_SIGMAS = 10.5
MAX_LOSS = 600.0  # larger losses count as infinite: the guarantee would be meaningless, and exp() would soon overflow
# What the noise sampler's distance from the ideal distribution can add to delta. N samples are jointly within total
# variation distance N 2^-100 (core/noise.py), so they add N (1 + e^epsilon) 2^-100: covered where that is below 2^-40.
SAMPLER = 2.0**-40


def epsilon(event: Event, delta: float) -> float:
    """Return an upper bound on the smallest epsilon at `delta`."""
    if isinstance(event, Capped):
        return event.epsilon if delta >= event.delta else math.inf
    return max((_epsilon(kind, delta) for kind in exposures(event)), default=0.0)


def delta(event: Event, epsilon: float) -> float:
    """Return an upper bound on the smallest delta at `epsilon`."""
    return float(profile(event, [epsilon])[0])


def profile(event: Event, epsilons: Sequence[float]) -> Floats:
    """Return upper bounds on delta at each of the epsilons, which must be in ascending order."""
    if isinstance(event, Capped):  # only one (epsilon, delta) point is known
        over = np.maximum(0.0, -np.expm1(np.asarray(epsilons, dtype=np.float64) - event.epsilon))
        return np.asarray(event.delta + (1 - event.delta) * (over / (1 + math.exp(-event.epsilon))))
    worst = np.zeros(len(epsilons))
    for kind in exposures(event):
        if kind:
            deltas = np.asarray(_loss_distribution(kind).get_delta_for_epsilon(list(epsilons)))
            worst = np.maximum(worst, np.maximum(deltas, 0.0) + _hidden(kind))  # a 0 may be rounding error too
    return np.minimum(worst, 1.0)


@lru_cache(maxsize=512)
def _epsilon(kind: Kind, delta: float) -> float:
    if not kind:
        return 0.0
    provable = delta - _hidden(kind)  # subtract the numerical allowance before converting to epsilon
    return float(_loss_distribution(kind).get_epsilon_for_delta(provable)) if provable > 0 else math.inf


def _hidden(kind: Kind) -> float:
    steps, points = split_kind(join_unsampled(kind))
    return hidden_by_rounding(sum(x.steps for x in steps) + len(points))


def hidden_by_rounding(steps: int) -> float:
    """Return an allowance in delta for the noise sampler and for rounding in the FFTs, about 2^-52 per step.

    The error measured against the exact composition of 10^6 Gaussians is 5e-11; the allowance there is 9e-10.
    """
    return 1e-12 + SAMPLER + 2.0**-50 * steps


@lru_cache(maxsize=8)
def _loss_distribution(kind: Kind) -> Any:
    return compose_losses(kind, grid=GRID / 2, optimistic=False)


def compose_losses(kind: Kind, *, grid: float, optimistic: bool) -> Any:
    """Compose dp-accounting's PLDs of all exposures of a record: an upper bound, or a lower bound if `optimistic`."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    kind = join_unsampled(kind)
    exposed, points = split_kind(kind)
    width = grid_width(kind) * grid / GRID
    losses = [
        pld.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            value_discretization_interval=width,
            use_connect_dots=not optimistic,
            pessimistic_estimate=not optimistic,
        ).self_compose(steps)
        for rate, sigma, steps in exposed
    ]
    for point in points:
        parameters = common.DifferentialPrivacyParameters(point.epsilon, point.delta)
        losses.append(pld.from_privacy_parameters(parameters, value_discretization_interval=width))
    return reduce(lambda total, more: total.compose(more), losses)


def join_unsampled(kind: Kind) -> Kind:
    """Merge Gaussian mechanisms without subsampling, which compose exactly: 1/sigma^2 = sum of n/sigma^2.

    A sampling rate within 1e-9 of 1 is rounded up to 1, which never underestimates the loss.
    """
    steps, points = split_kind(kind)
    precision = sum(n / sigma**2 for q, sigma, n in steps if q > 1 - 1e-9)
    sampled = tuple(x for x in steps if x.rate <= 1 - 1e-9)
    return (*sampled, *((Exposure(1.0, precision**-0.5, 1),) if precision else ()), *points)


def grid_width(kind: Kind) -> float:
    """Return the loss grid's spacing: a fixed share of a step's standard deviation, or more to limit its size."""
    x = np.linspace(-STEP_TAIL_SIGMAS, STEP_TAIL_SIGMAS, 4001)
    w = np.exp(-(x**2) / 2)
    w /= w.sum()
    steps = variance = reach = 0.0
    exposed, points = split_kind(kind)
    for q, sigma, n in exposed:
        out, into = loss(x * sigma, q, sigma), loss(x * sigma + 1, q, sigma)
        mean = (1 - q) * (w @ out) + q * (w @ into)
        variance += n * float((1 - q) * (w @ (out - mean) ** 2) + q * (w @ (into - mean) ** 2))
        reach = max(reach, min(float(into[-1] - out[0]), 2 * MAX_LOSS))
        steps += n
    h = min(GRID * math.sqrt(variance / steps), 1.0) if steps else 1.0
    if any(point.epsilon > 0 for point in points):
        h = min(h, max(point.epsilon for point in points) / POINT_GRID)
        variance += sum(point.epsilon**2 for point in points)
    return max(h, reach / MAX_STEP_POINTS, 20 * math.sqrt(variance) / MAX_POINTS)


def loss(x: Floats, q: float, sigma: float) -> Floats:
    """Return log(dP/dQ)(x) of one step: P = (1-q) N(0, sigma^2) + q N(1, sigma^2) against Q = N(0, sigma^2)."""
    whole = (2 * x - 1) / (2 * sigma**2)
    return whole if q == 1.0 else np.logaddexp(math.log1p(-q), math.log(q) + whole)
