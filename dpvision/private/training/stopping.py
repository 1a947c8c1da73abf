"""Random stopping: the privacy loss of choosing the best of a random number of trials.

The mechanism (Liu and Talwar 2019; Papernot and Steinke 2022): draw K in secret; K times, draw one of the candidates
uniformly, train it privately and score it with public data; release the best trial, but neither K nor the other trials.
K is negative binomial, truncated to K >= 1, with public eta > -1 and 0 < gamma < 1:

    P[K = k] = (1 - gamma)^k / (gamma^-eta - 1) * product over l < k of (l + eta) / (l + 1)        eta != 0
    P[K = k] = (1 - gamma)^k / (k log(1 / gamma))                                                  eta = 0, logarithmic

eta = 1 is the geometric distribution. A smaller eta costs less, but makes K = 1 more likely.

Formal guarantee. Let delta_Q be the curve of one trial: for every epsilon, its distributions on two neighbouring data
sets satisfy (epsilon, delta_Q(epsilon)) in both directions. Then for every delta and every a >= 0, the tuning satisfies

    epsilon = epsilon_Q(delta / E[K]) + (1 + eta) log(e^a + (1 - gamma) / gamma * delta_Q(a))      at delta

and `epsilon` uses the best a. This is the bound of Koskela, Redberg and Wang 2024 (arXiv 2402.06701). Proof: with ties
broken at random, the results of trials are totally ordered. Let q and q' be the probabilities that a trial ranks below
y on the two data sets, and Q and Q' the densities. With f(x) = E[x^K], the best of K trials has density f'(q) Q(y).
Here f'(x) is a constant times (1 - (1 - gamma) x)^-(eta + 1), which increases up to f'(1) = E[K]. Ranking above y is an
event, so 1 - q' <= e^a (1 - q) + delta_Q(a), and therefore

    1 - (1 - gamma) q' = gamma + (1 - gamma)(1 - q') <= e^a (1 - (1 - gamma) q) + (1 - gamma) delta_Q(a)

and, since 1 - (1 - gamma) q >= gamma, f'(q) <= r f'(q') with r = (e^a + (1 - gamma) / gamma * delta_Q(a))^(1 + eta). So
f'(q) Q - e^epsilon f'(q') Q' <= f'(q) (Q - e^epsilon / r Q') <= E[K] (Q - e^epsilon / r Q') wherever that is positive;
the integral over all y is at most E[K] delta_Q(epsilon - log r).

The number of a candidate may be published with the result, so delta_Q is the maximum of the candidates' curves.
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

# Share of the budget's delta; the rest is left for events that the ledger composes with the tuning.
SHARE_OF_DELTA = 0.5
MAX_MEAN = 1000.0
# Number of values of `a` that are searched; any value gives a valid bound.
VALUES = 201
# The search for a trial's epsilon: its rounds, and the size of its final, conservative steps.
ROUNDS, PRECISION = 4, 5e-4


@dataclass(frozen=True)
class Stopping:
    """The distribution of K, the number of trials."""

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (-0.9 <= self.eta <= 10 and 0 < self.gamma < 1):
            raise ConfigError(
                f"eta is {self.eta} and gamma {self.gamma}: -0.9 <= eta <= 10, 0 < gamma < 1 is required."
            )
        if 0 < abs(self.eta) < 1e-6:
            raise ConfigError(f"eta is {self.eta}: too close to 0 for accurate arithmetic. Fix: use 0.")

    @property
    def mean(self) -> float:
        """The expected number of trials, E[K]."""
        if self.eta == 0:
            return (1 / self.gamma - 1) / math.log(1 / self.gamma)
        return self.eta * (1 / self.gamma - 1) / -math.expm1(self.eta * math.log(self.gamma))

    @property
    def _first(self) -> float:
        """The probability of a single trial, P[K = 1]."""
        if self.eta == 0:
            return (1 - self.gamma) / math.log(1 / self.gamma)
        return self.eta * (1 - self.gamma) / math.expm1(-self.eta * math.log(self.gamma))

    def probabilities(self, most: int) -> list[float]:
        """Return P[K = 1] to P[K = most]."""
        values = [self._first]
        for k in range(1, most):
            values.append(values[-1] * (1 - self.gamma) * (k + self.eta) / (k + 1))
        return values

    def draw(self) -> int:
        """Draw K from the operating system's entropy: 64 bits, so values of probability below 1e-19 never occur."""
        left, k, probability = (secrets.randbits(64) + 0.5) / 2.0**64, 1, self._first
        while left > probability and probability > 0:
            left -= probability
            probability *= (1 - self.gamma) * (k + self.eta) / (k + 1)
            k += 1
        return k


def stopping(mean: float, eta: float = 0.0) -> Stopping:
    """Return the distribution with this mean number of trials."""
    if not 1 < mean <= MAX_MEAN:
        raise ConfigError(f"the expected number of trials is {mean:g}: it must be above 1 and at most {MAX_MEAN:g}.")
    low, high = math.log(1e-12), math.log1p(-1e-12)  # E[K] falls as gamma grows
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if Stopping(eta, math.exp(middle)).mean < mean else (middle, high)
    distribution = Stopping(eta, math.exp(high))
    if not 0.99 * mean <= distribution.mean <= 1.01 * mean:
        raise ConfigError(
            f"with eta {eta:g}, the number of trials cannot have mean {mean:g}. Fix: use an eta of 0 or 1."
        )
    return distribution


def bound(
    stop: Stopping,
    delta: float,
    *,
    epsilon_of: Callable[[float], float],
    deltas_of: Callable[[Sequence[float]], Sequence[float]],
) -> float:
    """Bound epsilon of the tuning at `delta`, given a trial's epsilon at a delta and its deltas at epsilons."""
    reached = epsilon_of(delta / stop.mean)
    if not math.isfinite(reached):
        return math.inf
    values = np.linspace(0.0, reached, VALUES)
    factors = np.exp(values) + (1 - stop.gamma) / stop.gamma * np.asarray(deltas_of(values.tolist()))
    return reached + (1 + stop.eta) * math.log(float(factors.min()))


def epsilon(trials: Sequence[Event], stop: Stopping, delta: float) -> float:
    """Return an upper bound on epsilon of the tuning at `delta`, from dp-accounting's curves of the trials."""
    kinds = tuple(dict.fromkeys(trials))
    return bound(
        stop,
        delta,
        epsilon_of=lambda d: max(accountant.epsilon(e, d) for e in kinds),
        deltas_of=lambda at: np.max([accountant.profile(e, at) for e in kinds], axis=0).tolist(),
    )


def tuned(trials: Sequence[Event], stop: Stopping, delta: float) -> Tuned:
    """Return the event of a tuning run whose candidates are `trials`."""
    return Tuned(tuple(trials), stop.eta, stop.gamma, epsilon(trials, stop, delta), delta)


def require_proven(event: Tuned) -> None:
    """Require that the trials and the distribution of their number prove the epsilon that the event states."""
    if event.epsilon < epsilon(event.trials, Stopping(event.eta, event.gamma), event.delta):
        raise ConfigError(f"the tuning states epsilon {event.epsilon:g}, which its trials do not prove.")


def calibrate_tuning(budget: Budget, steps: Sequence[tuple[float, int]], stop: Stopping) -> Tuned:
    """Return the tuning with the least noise within the budget; a candidate is a rate and a number of steps.

    All candidates have the same individual epsilon, so candidates with more steps have more noise in each step.
    """
    delta = SHARE_OF_DELTA * budget.delta

    def trials(alone: float) -> list[Event]:
        target = Budget(alone, delta)
        sigmas = {x: calibrate.sigma(target, rate=x[0], steps=x[1], confirm=False) for x in dict.fromkeys(steps)}
        return [PoissonGaussian(x[0], sigmas[x], x[1]) for x in steps]

    def quickly(alone: float) -> float:
        kinds = tuple(dict.fromkeys(trials(alone)))
        return bound(
            stop,
            delta,
            epsilon_of=lambda d: max(quick.epsilon(e, d) for e in kinds),
            deltas_of=lambda at: np.max([quick.profile(e, at) for e in kinds], axis=0).tolist(),
        )

    alone = budget.epsilon / (2 + stop.eta)
    for _ in range(ROUNDS):  # the epsilon of the tuning is nearly proportional to that of a trial
        whole = quickly(alone)
        alone *= budget.epsilon / whole if math.isfinite(whole) else 0.5
    for _ in range(40):  # dp-accounting has the last word
        event = tuned(trials(alone), stop, delta)
        if accountant.epsilon(event, budget.delta) <= budget.epsilon:
            return event
        alone *= 1 - PRECISION
    raise ConfigError(
        f"no noise keeps {stop.mean:.3g} expected trials within epsilon {budget.epsilon:g} at delta {budget.delta:g}. "
        "Fix: use fewer trials, or a larger epsilon."
    )
