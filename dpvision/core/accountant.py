"""How much an event tells about any one record: dp-accounting's privacy loss distribution, always an upper bound.

Formal guarantee: for neighbouring data sets (one record, or person, more or less), whatever was released by the event
satisfies (epsilon(event, delta), delta)-differential privacy, for every delta at once. The discretisation is the
pessimistic one; delta is reduced by what rounding may hide before epsilon is read off. For a class schedule the
figure is that of the class that fares worst.

    epsilon, delta, profile, mu    the truth, from the privacy loss distribution (PLD)
    rdp_epsilon                    Rényi cross-check: another upper bound, looser
    gdp.central_limit_mu           approximate, never used to decide
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core import gdp, quick
from dpvision.core.events import Capped, Event, Kind, apart, exposures

NAME = "dp-accounting PLD (connect-the-dots, pessimistic)"

# Whole orders only: the series for fractional ones does not always converge, and leaving them out is still a bound.
RDP_ORDERS = [*range(2, 65), *range(72, 257, 8), 320, 512, 1024]


def epsilon(event: Event, delta: float) -> float:
    """The least epsilon at `delta`, from above."""
    if isinstance(event, Capped):
        return event.epsilon if delta >= event.delta else math.inf
    return max((_epsilon(kind, delta) for kind in exposures(event)), default=0.0)


def delta(event: Event, epsilon: float) -> float:
    """The least delta at `epsilon`, from above."""
    return float(profile(event, [epsilon])[0])


def profile(event: Event, epsilons: Sequence[float]) -> NDArray[np.float64]:
    """delta(epsilon) at each of the given, ascending, epsilons."""
    if isinstance(event, Capped):
        return point_profile(event.epsilon, event.delta, epsilons)
    worst = np.zeros(len(epsilons))
    for kind in exposures(event):
        if kind:
            deltas = np.asarray(_loss_distribution(kind).get_delta_for_epsilon(list(epsilons)))
            worst = np.maximum(worst, np.maximum(deltas, 0.0) + _hidden(kind))  # what seems 0 may be rounded too
    return np.minimum(worst, 1.0)


def point_profile(epsilon: float, delta: float, epsilons: Sequence[float]) -> NDArray[np.float64]:
    """delta at each epsilon of whatever satisfies the one point, and of which nothing else is known."""
    over = np.maximum(0.0, -np.expm1(np.asarray(epsilons, dtype=np.float64) - epsilon)) / (1 + math.exp(-epsilon))
    return np.asarray(delta + (1 - delta) * over)


def mu(event: Event, delta: float) -> float:
    """The least mu such that mu-GDP implies the whole profile from delta up: a sound one-number summary."""
    return gdp.mu_of_curve(lambda at: profile(event, at).tolist(), epsilon(event, delta))


def rdp_epsilon(event: Event, delta: float) -> float:
    """The Rényi bound: independent of the discretisation, so a truth above it would show a mistake."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    worst = 0.0
    for kind in exposures(event):
        exposed, points = apart(kind)
        if points:  # with chance delta all is told, so no Rényi divergence is finite
            return math.inf
        accountant = RdpAccountant(RDP_ORDERS)
        for rate, sigma, steps in exposed:
            step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
            accountant.compose(step, steps)
        worst = max(worst, float(accountant.get_epsilon(delta)))
    return worst


def lower_bound(event: Event, delta: float) -> float:
    """dp-accounting's optimistic epsilon: the truth lies between this and `epsilon`. For tests and reports.

    Of a tuning nothing is known from below, so it counts as nothing here.
    """
    kinds: list[Kind] = [steps for kind in exposures(event) if (steps := apart(kind)[0])]
    return max(
        (float(_compose(k, grid=quick.GRID / 8, optimistic=True).get_epsilon_for_delta(delta)) for k in kinds),
        default=0.0,
    )


@lru_cache(maxsize=512)
def _epsilon(kind: Kind, delta: float) -> float:
    if not kind:
        return 0.0
    provable = delta - _hidden(kind)  # what rounding may hide is taken off delta before epsilon is read
    return float(_loss_distribution(kind).get_epsilon_for_delta(provable)) if provable > 0 else math.inf


def _hidden(kind: Kind) -> float:
    return quick.hidden_by_rounding(quick.count(kind))


@lru_cache(maxsize=8)
def _loss_distribution(kind: Kind) -> Any:
    return _compose(kind, grid=quick.GRID / 2, optimistic=False)


def _compose(kind: Kind, *, grid: float, optimistic: bool) -> Any:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    kind = quick.join_unsampled(kind)
    exposed, points = apart(kind)
    width = quick.grid_width(kind) * grid / quick.GRID
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
