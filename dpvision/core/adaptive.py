"""Sound composition of events that were chosen one after the other, each after seeing the results of those before it.

Privacy loss distributions compose for events whose rates, noise and steps were fixed beforehand. Where the next event
is chosen by what the last one revealed, adding them up until a budget is reached proves nothing: two runs alone can
reach 2.2 times delta. So the first event is taken by its own distribution, and all that is later by a Gaussian filter:

  1. A later event with the privacy profile delta_i is dominated by a Gaussian mechanism N(0, 1) against N(mu_i, 1) and
     a leak of probability leak_i, where for every epsilon >= 0, a record added as well as removed,

         delta_i(epsilon) <= leak_i + (1 - leak_i) * delta_of_Gaussian(mu_i, epsilon).

     By Blackwell's theorem the event can then be simulated from that Gaussian and that leak.
  2. Gaussians whose mu_i are chosen one after the other, with sum mu_i^2 <= mu^2 whatever happens, are increments of
     one Brownian path with drift, over times mu_i^2: all that they reveal is a function of the path up to time mu^2,
     whose end, one Gaussian of mu, is sufficient. Leaks that add up to `reserve` at most, whatever happens, are
     simulated by one uniform number that is at most `reserve`.
  3. So the first event and everything later reveal no more than: the first event, one Gaussian of mu, and one leak of
     `reserve`. The ledger lets an event pass only if that, with sum mu_i^2 for mu^2, is within the budget (epsilon,
     delta). `reserve` is a function of delta alone. Nothing in the bound depends on a result, so it holds for every
     way of choosing. (Gaussian filters: Koskela, Tobaben and Honkela 2022; Smith and Thakurta 2022.)

What holds for all runs together is the *budget*, fixed before the first result; the epsilon spent so far is a meter
that decides what else may run. Whoever raises the budget after seeing results has the guarantee of the largest one
that might have been set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dpvision.core import accountant
from dpvision.core.events import (
    MAX_SIGMA,
    MIN_SIGMA,
    Adaptive,
    Capped,
    Composed,
    Event,
    Later,
    apart,
    exposures,
    given_up,
)

# Of the budget's delta, kept for the leaks of later events. Between 2% and 10% nothing changes by more than 0.3%.
RESERVE = 0.05
MIN_RESERVE = 2e-10  # at tiny deltas a later event needs a leak above what the accountant's rounding may hide
PLACES = 2048  # at which an event's profile is compared with the Gaussian's


def compose(events: Sequence[Event], delta: float) -> Event:
    """One event of all these, each chosen after seeing the results of those before it."""
    real = [part for event in events for part in _in_order(event) if any(exposures(part))]
    if len(real) < 2:
        return Composed(tuple(real))
    return join(real[0], [dominate_later(e, delta=delta, number=i) for i, e in enumerate(real[1:], 1)], delta=delta)


def _in_order(event: Event) -> tuple[Event, ...]:
    """Its parts that were each fixed at one time, in the order in which they were chosen."""
    match event:
        case Capped(inside):
            return _in_order(inside)
        case Adaptive(first, chosen, _):
            return (*_in_order(first), *(x.event for x in chosen))
        case _:
            return (event,)


def join(first: Event, chosen: Sequence[Later], *, delta: float) -> Event:
    """The first event and those chosen later, as one event."""
    if not chosen:
        return first
    return Adaptive(first, tuple(chosen), max(reserve(delta), math.fsum(x.leak for x in chosen)))


def reserve(delta: float) -> float:
    """The part of delta that is kept for leaks: a function of delta alone, so that no result decides on it."""
    return max(RESERVE * delta, min(delta / 2, MIN_RESERVE))


def dominate_later(event: Event, *, delta: float, number: int) -> Later:
    """The Gaussian and the leak that dominate an event that is the `number`-th to be chosen after the first.

    Half of the reserve is shared out by 1 / (number (number + 1)); the other half is for events that leak by
    themselves, such as tunings.
    """
    return _dominate(event, given_up(event) + reserve(delta) / (2 * number * (number + 1)))


@lru_cache(maxsize=256)
def _dominate(event: Event, leak: float) -> Later:
    """The Gaussian with the most noise that dominates the event but for `leak`."""
    kinds = exposures(event)
    if not any(kinds):
        return Later(event, MAX_SIGMA, 0.0)
    steps, points = apart(kinds[0])
    if len(kinds) == 1 and not points and all(x.rate == 1 for x in steps):
        precision = math.fsum(x.steps / x.sigma**2 for x in steps)  # Gaussian already: no leak
        return Later(event, max(math.nextafter(precision**-0.5, 0.0), MIN_SIGMA), 0.0)
    top = accountant.epsilon(event, leak)
    if not math.isfinite(top):
        return Later(event, MIN_SIGMA, leak)
    places = np.linspace(0.0, max(top, 1e-6), PLACES + 1).tolist()
    # Both curves fall: between two places the event's is at most its left end, the Gaussian's at least its right end.
    profile = ((accountant.profile(event, places) - leak) / (1 - leak)).tolist()
    above = [(e, d) for e, d in zip(places[1:], profile[:-1], strict=True) if d > 0]
    mu = find_least(lambda x: all(gaussian_delta(x, e) >= d for e, d in reversed(above)), start=1.0)
    return Later(event, min(max(math.nextafter(1 / mu, 0.0), MIN_SIGMA), MAX_SIGMA), leak)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of mu-GDP: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    if mu <= 0:
        return 0.0
    scaled = math.exp(epsilon) * _phi(-epsilon / mu - mu / 2) if epsilon < 700 else 0.0
    return max(0.0, _phi(-epsilon / mu + mu / 2) - scaled)


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def find_least(holds: Callable[[float], bool], *, start: float, rounds: int = 48) -> float:
    """The least x > 0 at which a monotone condition holds, by doubling and halving; the end returned satisfies it."""
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
