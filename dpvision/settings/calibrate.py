"""Solve for the noise multiplier, the number of steps or the sampling rate that uses the budget without exceeding it.

Each search brackets the solution on a monotone function and returns the end of the bracket that satisfies the budget.
It uses the quick accountant, which is itself an upper bound. With `confirm` (the default), dp-accounting checks the
answer, which is moved further to the safe side until both accountants agree that the budget holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpvision.core.events import MAX_COUNT, Budget, Composed, Event, PoissonGaussian, exposures, split_kind
from dpvision.errors import ConfigError
from dpvision.settings import gdp, quick
from dpvision.settings.figures import describe
from dpvision.settings.meaning import attack_success

MIN_SIGMA, MAX_SIGMA = 0.05, 1e6
MAX_STEPS = MAX_COUNT
# Relative precision of sigma and rate: the answer is on the safe side of the exact one, at most this far from it.
PRECISION = 1e-5
MAX_GUESSES = 8  # of the point at which a budget ends


def sigma(budget: Budget, *, rate: float, steps: int, before: tuple[Event, ...] = (), confirm: bool = True) -> float:
    """Return the smallest noise multiplier that keeps `steps` steps at `rate`, after `before`, within the budget."""
    return sigma_of(budget, lambda x: PoissonGaussian(rate, x, steps), before=before, confirm=confirm)


def sigma_of(
    budget: Budget, event: Callable[[float], Event], *, before: tuple[Event, ...] = (), confirm: bool = True
) -> float:
    """Return the least noise multiplier whose event, after `before`, stays within the budget."""
    kinds = [exposure for kind in exposures(event(1.0)) for exposure in split_kind(kind)[0]]
    if not kinds:
        raise ConfigError("there is no noise to calibrate: the number of steps and the sampling rate must be above 0.")
    _require_remaining_budget(budget, before)
    # The central limit is not a bound but a good first guess.
    mu = gdp.mu_of_point(budget.epsilon, budget.delta)
    start = max(gdp.central_limit_sigma(mu, rate=rate, steps=steps) for rate, _, steps in kinds)
    value = _least_sigma(lambda x: _over(budget, event(x), before), start=start)
    if value is None:
        raise ConfigError(
            f"no noise multiplier keeps this within epsilon {budget.epsilon:g} at delta {budget.delta:g}: "
            f"{describe(event(MAX_SIGMA))}. Fix: use fewer steps, or a larger epsilon or delta."
        )
    return _confirm(value, budget, event, before, 1 + PRECISION, confirm=confirm)


def sigma_for_attack(success: float, *, chance: float, rate: float, steps: int) -> float:
    """Return the smallest noise multiplier with which no attack with this chance has more success."""
    from scipy.stats import norm

    def over(sigma: float) -> float:
        return float(attack_success(PoissonGaussian(rate, sigma, steps), [chance], by=quick)[0]) - success

    mu = max(float(norm.ppf(success) - norm.ppf(chance)), 1e-6)
    value = _least_sigma(over, start=gdp.central_limit_sigma(mu, rate=rate, steps=steps))
    if value is None:
        raise ConfigError(
            f"no noise multiplier keeps the success of attacks at {success:g} for a chance of {chance:g} over "
            f"{steps:,} steps. Fix: use fewer steps, or a larger success."
        )
    return value


def _least_sigma(over: Callable[[float], float], *, start: float) -> float | None:
    """Return the least noise multiplier at which a falling function is at most 0, on the safe side; None if never.

    The bracket grows from `start` until it has the answer.
    """
    high = min(max(start, MIN_SIGMA), MAX_SIGMA)
    low, step = high, 1.02
    while not over(high) <= 0:
        low, high, step = high, high * step, step * step
        if high > MAX_SIGMA:
            return None
    while low == high or over(low) <= 0:
        if low == MIN_SIGMA:
            return MIN_SIGMA
        low, high, step = max(low / step, MIN_SIGMA), low, step * step
    return math.exp(_bisect(math.log(low), math.log(high), lambda x: over(math.exp(x))))


def rate(budget: Budget, *, sigma: float, steps: int, before: tuple[Event, ...] = (), confirm: bool = True) -> float:
    """Return the largest sampling rate with which `steps` steps at `sigma`, after `before`, stay within the budget."""

    def event(x: float) -> Event:
        return PoissonGaussian(min(x, 1.0), sigma, steps)

    _require_remaining_budget(budget, before)
    if _within(budget, event(1.0), before):
        return _confirm(1.0, budget, event, before, 1 - PRECISION, confirm=confirm)
    low = 0.5
    while not _within(budget, event(low), before):
        low /= 2
        if low < 1e-12:
            raise ConfigError(
                f"no sampling rate keeps {steps:,} steps at sigma {sigma:g} within epsilon {budget.epsilon:g} at delta "
                f"{budget.delta:g}. Fix: use more noise, or fewer steps."
            )
    value = -_bisect(-math.log(2 * low), -math.log(low), lambda x: _over(budget, event(math.exp(-x)), before))
    return _confirm(math.exp(value), budget, event, before, 1 - PRECISION, confirm=confirm)


def steps(budget: Budget, *, sigma: float, rate: float, before: tuple[Event, ...] = (), confirm: bool = True) -> int:
    """Return the largest number of steps at `sigma` and `rate`, after `before`, that stay within the budget."""

    def event(x: float) -> Event:
        return PoissonGaussian(rate, sigma, int(x))

    _require_remaining_budget(budget, before)
    if not _within(budget, event(1), before):
        raise ConfigError(
            f"even one step at sigma {sigma:g} and rate {rate:g} exceeds epsilon {budget.epsilon:g} at delta "
            f"{budget.delta:g}. Fix: use more noise, or a larger epsilon."
        )
    low, high = 1, 2
    while _within(budget, event(high), before):
        low, high = high, high * 2
        if high > MAX_STEPS:
            return low
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if _within(budget, event(mid), before) else (low, mid)
    while confirm and low > 1 and not _truly_within(budget, event(low), before):
        low -= max(1, low // 10_000)
    return low


def _bisect(bad: float, good: float, excess: Callable[[float], float]) -> float:
    """Halve the interval (bad, good) until it is at most PRECISION, and return its good end.

    `excess` falls, and is above 0 on the bad side alone. The points of the halving are fixed, but guesses by the method
    of false position (Illinois) first narrow the interval, so that few of these points have to be evaluated.
    """
    left, right, of_left, of_right = bad, good, excess(bad), excess(good)

    def fails(x: float) -> bool:
        """Whether x is on the bad side; evaluates it if that is not known yet."""
        nonlocal left, right, of_left, of_right
        if left < x < right:
            value = excess(x)
            if not value <= 0:
                left, of_left, of_right = x, value, of_right / (2 if of_left == last else 1)
            else:
                right, of_right, of_left = x, value, of_left / (2 if of_right == last else 1)
        return x <= left

    last = math.nan  # the value at the end that the guess before replaced
    for _ in range(MAX_GUESSES):
        if right - left <= PRECISION or not -math.inf < of_right < of_left < math.inf:
            break
        guess = right - of_right * (right - left) / (of_right - of_left)
        # Aim a little past the end, on the side that is further away, so that the interval shrinks from both sides.
        guess += PRECISION / 8 if guess - left < right - guess else -PRECISION / 8
        last = of_left if fails(guess) else of_right
    while good - bad > PRECISION:
        mid = (bad + good) / 2
        bad, good = (mid, good) if fails(mid) else (bad, mid)
    return good


def _within(budget: Budget, event: Event, before: tuple[Event, ...]) -> bool:
    return _over(budget, event, before) <= 0


def _over(budget: Budget, event: Event, before: tuple[Event, ...]) -> float:
    """Return by how much the epsilon of an event after others exceeds the budget's."""
    return quick.epsilon(Composed((*before, event)), budget.delta) - budget.epsilon


def _truly_within(budget: Budget, event: Event, before: tuple[Event, ...]) -> bool:
    from dpvision.core import accountant

    return accountant.epsilon(Composed((*before, event)), budget.delta) <= budget.epsilon


def _confirm(
    value: float,
    budget: Budget,
    event: Callable[[float], Event],
    before: tuple[Event, ...],
    factor: float,
    *,
    confirm: bool,
) -> float:
    holds = _truly_within if confirm else _within
    for _ in range(40):
        if holds(budget, event(value), before):
            return value
        value *= factor
        factor *= factor  # take larger steps each time; a tiny one is usually enough
    raise ConfigError(
        f"dp-accounting cannot confirm epsilon {budget.epsilon:g} at delta {budget.delta:g} for this many steps: "
        "its rounding error exceeds the budget. Fix: use fewer steps, or a larger delta."
    )


def _require_remaining_budget(budget: Budget, before: tuple[Event, ...]) -> None:
    if before and quick.epsilon(Composed(before), budget.delta) >= budget.epsilon:
        raise ConfigError(
            f"earlier runs have already spent epsilon {budget.epsilon:g} at delta {budget.delta:g}. Fix: use a larger "
            "epsilon, or other data."
        )
