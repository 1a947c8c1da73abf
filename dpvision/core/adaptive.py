"""Adaptive composition: events that are chosen one by one, each after seeing the results of those before it.

Privacy loss distributions compose for events whose rates, noise and steps were fixed beforehand. If an event is chosen
based on earlier results, adding up losses until a budget is reached proves nothing: two runs alone can reach 2.2 times
delta. So the first event counts with its own distribution, and all later ones pass through a Gaussian filter:

  1. A later event with privacy profile delta_i is dominated by a Gaussian mechanism, N(0, 1) against N(mu_i, 1), and a
     leak of probability leak_i if for every epsilon >= 0, for adding a record as well as for removing one,

         delta_i(epsilon) <= leak_i + (1 - leak_i) * delta_of_Gaussian(mu_i, epsilon).

     By Blackwell's theorem the event can then be simulated from that Gaussian and that leak.
  2. Gaussians whose mu_i are chosen adaptively, with sum mu_i^2 <= mu^2 in every case, are increments of one Brownian
     path with drift, over times mu_i^2: everything they reveal is a function of the path up to time mu^2, for which its
     end point, one Gaussian with mu, is sufficient. Leaks that always sum to at most `reserve` are simulated by the
     event that one uniform number is at most `reserve`.
  3. So the first event and all later ones reveal no more than the first event, one Gaussian with mu, and one leak of
     `reserve`. The ledger admits an event only if these, with mu^2 = sum mu_i^2, are within the budget (epsilon,
     delta). `reserve` depends on delta alone. Nothing in the bound depends on a result, so it holds for every adaptive
     choice. (Gaussian filters: Koskela, Tobaben and Honkela 2022; Smith and Thakurta 2022.)

The guarantee for all runs together is the *budget*, fixed before the first result; the epsilon spent so far only
decides what else may run. If the budget is raised after seeing results, the guarantee is that of the largest budget
that might have been set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dpvision.core import accountant, events
from dpvision.core.events import Adaptive, Capped, Composed, Event, Later, exposures, fixed_delta, split_kind

# The share of the budget's delta that is reserved for leaks. From 2% to 10% nothing changes by more than 0.3%.
RESERVE = 0.05
MIN_RESERVE = 2e-10  # at tiny deltas a later event needs a leak above the accountant's allowance for rounding
POINTS = 2048  # number of epsilons at which an event's profile is compared with the Gaussian's


def compose(parts: Sequence[Event], delta: float) -> Event:
    """Compose events, each chosen after seeing the results of those before it, into one."""
    real = [part for event in parts for part in _in_order(event) if any(exposures(part))]
    if len(real) < 2:
        return Composed(tuple(real))
    return join(real[0], [dominate_later(e, delta=delta, number=i) for i, e in enumerate(real[1:], 1)], delta=delta)


def _in_order(event: Event) -> tuple[Event, ...]:
    """Return the parts of an event that were each fixed at once, in the order in which they were chosen."""
    match event:
        case Capped(inside):
            return _in_order(inside)
        case Adaptive(first, chosen, _):
            return (*_in_order(first), *(x.event for x in chosen))
        case _:
            return (event,)


def join(first: Event, chosen: Sequence[Later], *, delta: float) -> Event:
    """Combine the first event and those chosen later into one event."""
    if not chosen:
        return first
    return Adaptive(first, tuple(chosen), max(reserve(delta), math.fsum(x.leak for x in chosen)))


def reserve(delta: float) -> float:
    """Return the part of delta reserved for leaks: a function of delta alone, so that no result can change it."""
    return max(RESERVE * delta, min(delta / 2, MIN_RESERVE))


def dominate_later(event: Event, *, delta: float, number: int) -> Later:
    """Return the Gaussian and the leak that dominate an event, the `number`-th to be chosen after the first.

    It gets 1 / (number (number + 1)) of half of the reserve; the other half is for events with leaks of their own,
    such as tuning runs.
    """
    return _dominate(event, fixed_delta(event) + reserve(delta) / (2 * number * (number + 1)))


@lru_cache(maxsize=256)
def _dominate(event: Event, leak: float) -> Later:
    """Return the Gaussian with the most noise that, together with `leak`, dominates the event."""
    kinds = exposures(event)
    if not any(kinds):
        return Later(event, events.MAX_SIGMA, 0.0)
    steps, points = split_kind(kinds[0])
    if len(kinds) == 1 and not points and all(x.rate == 1 for x in steps):
        precision = math.fsum(x.steps / x.sigma**2 for x in steps)  # Gaussian already: no leak
        return Later(event, max(math.nextafter(precision**-0.5, 0.0), events.MIN_SIGMA), 0.0)
    top = accountant.epsilon(event, leak)
    if not math.isfinite(top):
        return Later(event, events.MIN_SIGMA, leak)
    grid = np.linspace(0.0, max(top, 1e-6), POINTS + 1).tolist()
    # Both curves decrease: in each interval the event's is at most its left end, the Gaussian's at least its right end.
    profile = ((accountant.profile(event, grid) - leak) / (1 - leak)).tolist()
    above = [(e, d) for e, d in zip(grid[1:], profile[:-1], strict=True) if d > 0]
    mu = find_least(lambda x: all(gaussian_delta(x, e) >= d for e, d in reversed(above)), start=1.0)
    return Later(event, min(max(math.nextafter(1 / mu, 0.0), events.MIN_SIGMA), events.MAX_SIGMA), leak)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta(epsilon) of mu-GDP: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    if mu <= 0:
        return 0.0
    scaled = math.exp(epsilon) * _phi(-epsilon / mu - mu / 2) if epsilon < 700 else 0.0
    return max(0.0, _phi(-epsilon / mu + mu / 2) - scaled)


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def find_least(holds: Callable[[float], bool], *, start: float, rounds: int = 48) -> float:
    """Find the least x > 0 at which a monotone condition holds, by bisection; the result satisfies it."""
    high = start
    while not holds(high):
        high *= 2
        if high > 1e6:
            return math.inf
    low = high / 2
    while low > 1e-12 and holds(low):
        high, low = low, low / 2
    for _ in range(rounds):
        mid = (low + high) / 2
        low, high = (low, mid) if holds(mid) else (mid, high)
    return high
