"""What choosing the best of many trials tells: their number is drawn at random, and the bound covers the choice.

The mechanism (Liu and Talwar 2019; Papernot and Steinke 2022): draw K in secret; K times, toss a fair coin for one of
the candidates, train it privately, and score it by something public; release the best one, and neither K nor the
others. K is negative binomial, 1 at least, with public eta > -1 and 0 < gamma < 1:

    P[K = k] = (1 - gamma)^k / (gamma^-eta - 1) * product over l < k of (l + eta) / (l + 1)        eta != 0
    P[K = k] = (1 - gamma)^k / (k log(1 / gamma))                                                  eta = 0, logarithmic

eta = 1 is geometric. Less of eta costs less, and K is more often 1.

Formal guarantee. Let delta_Q be the curve of one trial: for every epsilon its distributions on two neighbouring data
sets satisfy (epsilon, delta_Q(epsilon)), either way round. Then for every delta and every a >= 0 the whole satisfies

    epsilon = epsilon_Q(delta / E[K]) + (1 + eta) log(e^a + (1 - gamma) / gamma * delta_Q(a))      at delta

and `epsilon` takes the best a. This is the bound of Koskela, Redberg and Wang 2024 (arXiv 2402.06701). Why it holds:
with ties broken by a coin, a trial's result has a place in one order, so let q be the chance that a trial is below y on
the one data set, q' on the other, and Q, Q' their densities. With f(x) = E[x^K] the best of K has the density
f'(q) Q(y). Here f'(x) is a constant times (1 - (1 - gamma) x)^-(eta + 1): it grows, up to f'(1) = E[K]. Being above y
is an event, so 1 - q' <= e^a (1 - q) + delta_Q(a), hence

    1 - (1 - gamma) q' = gamma + (1 - gamma)(1 - q') <= e^a (1 - (1 - gamma) q) + (1 - gamma) delta_Q(a)

and, since 1 - (1 - gamma) q >= gamma, f'(q) <= r f'(q') with r = (e^a + (1 - gamma) / gamma * delta_Q(a))^(1 + eta). So
f'(q) Q - e^epsilon f'(q') Q' <= f'(q) (Q - e^epsilon / r Q') <= E[K] (Q - e^epsilon / r Q') where that is above 0; over
all y it adds up to E[K] delta_Q(epsilon - log r) at most.

A candidate's number may be told with the result, so delta_Q is at most the largest of the candidates' curves.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpvision.core import accountant
from dpvision.core.events import Budget, Event, PoissonGaussian, Tuned
from dpvision.errors import ConfigError
from dpvision.settings import calibrate, quick

# Of the budget's delta; the rest is room for what else the ledger composes with it.
SHARE_OF_DELTA = 0.5
MOST_MEAN = 1000.0
# Places at which the best `a` is looked for; any place gives a bound.
PLACES = 201
# Of the search for a trial's epsilon, and its last steps to the safe side.
ROUNDS, PRECISION = 4, 5e-4


@dataclass(frozen=True)
class Stopping:
    """The distribution of K."""

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (-0.9 <= self.eta <= 10 and 0 < self.gamma < 1):
            raise ConfigError(f"eta is {self.eta} and gamma {self.gamma}: -0.9 <= eta <= 10, 0 < gamma < 1 are needed.")
        if 0 < abs(self.eta) < 1e-6:
            raise ConfigError(f"eta is {self.eta}: too near to 0 for its arithmetic. Fix: 0.")

    @property
    def mean(self) -> float:
        """E[K]."""
        if self.eta == 0:
            return (1 / self.gamma - 1) / math.log(1 / self.gamma)
        return self.eta * (1 / self.gamma - 1) / -math.expm1(self.eta * math.log(self.gamma))

    @property
    def _first(self) -> float:
        """P[K = 1]."""
        if self.eta == 0:
            return (1 - self.gamma) / math.log(1 / self.gamma)
        return self.eta * (1 - self.gamma) / math.expm1(-self.eta * math.log(self.gamma))

    def chances(self, most: int) -> list[float]:
        """P[K = 1] to P[K = most]."""
        found = [self._first]
        for k in range(1, most):
            found.append(found[-1] * (1 - self.gamma) * (k + self.eta) / (k + 1))
        return found

    def draw(self) -> int:
        """K, by the operating system's entropy: 64 bits, so a K of less than 1e-19 in chance never comes."""
        left, k, chance = (secrets.randbits(64) + 0.5) / 2.0**64, 1, self._first
        while left > chance and chance > 0:
            left -= chance
            chance *= (1 - self.gamma) * (k + self.eta) / (k + 1)
            k += 1
        return k


def stopping(mean: float, eta: float = 0.0) -> Stopping:
    """With this many trials on the average."""
    if not 1 < mean <= MOST_MEAN:
        raise ConfigError(f"the expected number of trials is {mean:g}: it must be above 1 and at most {MOST_MEAN:g}.")
    low, high = math.log(1e-12), math.log1p(-1e-12)  # E[K] falls as gamma grows
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if Stopping(eta, math.exp(middle)).mean < mean else (middle, high)
    found = Stopping(eta, math.exp(high))
    if not 0.99 * mean <= found.mean <= 1.01 * mean:
        raise ConfigError(f"with eta {eta:g} no number of trials has the mean {mean:g}. Fix: an eta of 0 or 1.")
    return found


def bound(
    stop: Stopping,
    delta: float,
    *,
    epsilon_of: Callable[[float], float],
    deltas_of: Callable[[Sequence[float]], Sequence[float]],
) -> float:
    """Epsilon of the whole at `delta`, from the curve of a trial: epsilon at a delta, and deltas at epsilons."""
    reached = epsilon_of(delta / stop.mean)
    if not math.isfinite(reached):
        return math.inf
    places = np.linspace(0.0, reached, PLACES)
    told = np.exp(places) + (1 - stop.gamma) / stop.gamma * np.asarray(deltas_of(places.tolist()))
    return reached + (1 + stop.eta) * math.log(float(told.min()))


def epsilon(trials: Sequence[Event], stop: Stopping, delta: float) -> float:
    """Epsilon of the whole at `delta`, from above, by dp-accounting's curves of the trials."""
    kinds = tuple(dict.fromkeys(trials))
    return bound(
        stop,
        delta,
        epsilon_of=lambda d: max(accountant.epsilon(e, d) for e in kinds),
        deltas_of=lambda at: np.max([accountant.profile(e, at) for e in kinds], axis=0).tolist(),
    )


def tuned(trials: Sequence[Event], stop: Stopping, delta: float) -> Tuned:
    """The event of a tuning whose candidates are `trials`."""
    return Tuned(tuple(trials), stop.eta, stop.gamma, epsilon(trials, stop, delta), delta)


def require_proven(event: Tuned) -> None:
    """The epsilon of the event is what its trials and its coins prove."""
    if event.epsilon < epsilon(event.trials, Stopping(event.eta, event.gamma), event.delta):
        raise ConfigError(f"a tuning says that its epsilon is {event.epsilon:g}, which its trials do not prove.")


def calibrated(budget: Budget, steps: Sequence[tuple[float, int]], stop: Stopping) -> Tuned:
    """The tuning with the least noise that stays within the budget; a candidate is its rate and number of steps.

    All candidates tell the same epsilon by themselves, so more steps mean more noise in each.
    """
    delta = SHARE_OF_DELTA * budget.delta

    def trials(alone: float) -> list[Event]:
        each = {
            x: calibrate.sigma(Budget(alone, delta), rate=x[0], steps=x[1], confirm=False) for x in dict.fromkeys(steps)
        }
        return [PoissonGaussian(x[0], each[x], x[1]) for x in steps]

    def quickly(alone: float) -> float:
        kinds = tuple(dict.fromkeys(trials(alone)))
        return bound(
            stop,
            delta,
            epsilon_of=lambda d: max(quick.epsilon(e, d) for e in kinds),
            deltas_of=lambda at: np.max([quick.profile(e, at) for e in kinds], axis=0).tolist(),
        )

    alone = budget.epsilon / (2 + stop.eta)
    for _ in range(ROUNDS):  # the whole grows nearly in proportion to a trial
        told = quickly(alone)
        alone *= budget.epsilon / told if math.isfinite(told) else 0.5
    for _ in range(40):  # dp-accounting has the last word
        found = tuned(trials(alone), stop, delta)
        if accountant.epsilon(found, budget.delta) <= budget.epsilon:
            return found
        alone *= 1 - PRECISION
    raise ConfigError(
        f"no noise keeps about {stop.mean:.3g} trials within epsilon {budget.epsilon:g} at delta {budget.delta:g}. "
        "Fix: fewer trials, or a larger epsilon."
    )
