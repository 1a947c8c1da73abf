"""Other bounds on what an event reveals, to compare with the accountant's. They decide nothing."""

from __future__ import annotations

import math

from dpvision.core.accountant import GRID, compose_losses
from dpvision.core.events import Event, Kind, apart, exposures

# Whole orders only: the series for fractional ones does not always converge, and leaving them out is still a bound.
RDP_ORDERS = [*range(2, 65), *range(72, 257, 8), 320, 512, 1024]


def rdp_epsilon(event: Event, delta: float) -> float:
    """Epsilon by Rényi DP. It depends on no discretisation, so an accountant's answer above it shows a mistake."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    worst = 0.0
    for kind in exposures(event):
        exposed, points = apart(kind)
        if points:  # with probability delta all is revealed, so no Rényi divergence is finite
            return math.inf
        accountant = RdpAccountant(RDP_ORDERS)
        for rate, sigma, steps in exposed:
            step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
            accountant.compose(step, steps)
        worst = max(worst, float(accountant.get_epsilon(delta)))
    return worst


def lower_bound(event: Event, delta: float) -> float:
    """dp-accounting's optimistic epsilon: the true epsilon is between this and `accountant.epsilon`.

    No lower bound is known for a tuning, so it counts as 0.
    """
    kinds: list[Kind] = [steps for kind in exposures(event) if (steps := apart(kind)[0])]
    return max(
        (float(compose_losses(k, grid=GRID / 8, optimistic=True).get_epsilon_for_delta(delta)) for k in kinds),
        default=0.0,
    )
