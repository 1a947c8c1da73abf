"""What was done to the private data, as immutable values; who reads them (accountants, the ledger) is separate.

Every event is a sum of contributions, each of Euclidean norm at most 1 after scaling by the sensitivity, released
with Gaussian noise of standard deviation `sigma` (the noise multiplier). They differ in who could have taken part:

    Gaussian           every record, `count` times
    PoissonGaussian    each record by its own coin of probability `rate`, anew in each of `steps` steps
    ClassScheduled     only the records of one class, which everybody may know: a record of class k is in `rows[k]` of
                       the releases, in each of them by its own coin of probability `rates[k]`
    Tuned              one of `trials`, tried again and again a random number of times; the best alone is released
    Composed           all of the events listed, every one fixed before the first result was seen
    Adaptive           a first event, then others, each chosen after seeing the results of those before it
    Capped             one of those of which results decided how far it goes: all that holds is the budget

Formal reading: two data sets are neighbours when one has one record (or person) more. `exposures(event)` lists, for
each kind of record that there may be, the Poisson-subsampled Gaussians that it meets; the guarantee is that of the
kind that fares worst. Nothing here is averaged over classes: a class that is drawn is visible in what is released.
A tuning is not a sum of such steps. It is met as a `Point`: the worst there is that satisfies its epsilon at its delta.
What is chosen later is met as what dominates it, whatever was chosen (core/adaptive.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from dpvision.errors import ConfigError

# Outside of these no event makes sense, and the accountants' arithmetic would leave the range of numbers.
LEAST_SIGMA, MOST_SIGMA = 1e-3, 1e8
MOST_COUNT = 10_000_000
# Kinds of records that are told apart. Each takes the accountant some tenths of a second for each exposure, and the
# class schedules of releases hardly need any: their classes have the same rate, or the same number of rows but for one.
MOST_KINDS = 8


@dataclass(frozen=True)
class Budget:
    """The most that may be told about any one record: epsilon at delta."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon is {self.epsilon}: it must be a finite number above 0, such as 3.")
        if not 1e-10 <= self.delta < 1:
            raise ConfigError(
                f"delta is {self.delta}: it must be below 1 and at least 1e-10, the least that the accountant can "
                "prove in double precision. Usual: below one in the number of records, such as 1e-5."
            )


class Exposure(NamedTuple):
    """What one record meets: `steps` Gaussian releases, in each with probability `rate`."""

    rate: float
    sigma: float
    steps: int


class Point(NamedTuple):
    """What one record meets of something that satisfies (epsilon, delta), of which nothing else is used."""

    epsilon: float
    delta: float


Kind = tuple[Exposure | Point, ...]


@dataclass(frozen=True)
class Gaussian:
    """`count` releases that every record is in."""

    sigma: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        _check_count("count", self.count)


@dataclass(frozen=True)
class PoissonGaussian:
    """`steps` releases; in each, every record is in by its own coin of probability `rate`."""

    rate: float
    sigma: float
    steps: int

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        _check_rate(self.rate)
        _check_count("steps", self.steps)


@dataclass(frozen=True)
class ClassScheduled:
    """Releases by class: a record of class k meets `rows[k]` of them, at the rate *inside* its class, `rates[k]`.

    Which class a row is about is taken as public, for the released labels show it. So there is no amplification from
    the choice of the class, and rates over the whole data set must not be put here.
    """

    sigma: float
    rates: tuple[float, ...]
    rows: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        if not self.rates or len(self.rates) != len(self.rows):
            raise ConfigError(
                f"a class schedule needs one rate and one number of rows per class; it has {len(self.rates)} rates "
                f"and {len(self.rows)} numbers of rows."
            )
        for rate, rows in zip(self.rates, self.rows, strict=True):
            _check_rate(rate)
            _check_count("rows", rows)


@dataclass(frozen=True)
class Tuned:
    """The best of K trials, each one of `trials` by a fair coin, K drawn anew and in secret (stopping.py).

    K is negative binomial with `eta` and `gamma`, 1 at least. `epsilon` at `delta` is what `tuning.tuned` proves.
    """

    trials: tuple[Event, ...]
    eta: float
    gamma: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.trials or not all(isinstance(e, Gaussian | PoissonGaussian) for e in self.trials):
            raise ConfigError("a tuning needs trials, each of them steps or releases with Gaussian noise.")
        for name, least, most in (("eta", -1.0, 100.0), ("gamma", 0.0, 1.0), ("epsilon", 0.0, math.inf)):
            value = getattr(self, name)
            if not _is_number(value) or not least < value < most:
                raise ConfigError(f"{name} is {value!r}: that of a tuning is between {least:g} and {most:g}.")
        Budget(self.epsilon, self.delta)


@dataclass(frozen=True)
class Composed:
    """All of `events`, whatever their order. Rates, noise and numbers of steps were fixed before the first result.

    What an event computes (its gradients, its queries) may depend on earlier results; which event it is may not.
    """

    events: tuple[Event, ...]


@dataclass(frozen=True)
class Later:
    """An event that was chosen after seeing results. It reveals no more than a Gaussian release of noise `sigma`, but
    for a probability of `leak` with which everything is revealed."""

    event: Event
    sigma: float
    leak: float

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        if not _is_number(self.leak) or not 0 <= self.leak < 1:
            raise ConfigError(f"the leak of a later event is {self.leak!r}: it must be a probability.")


@dataclass(frozen=True)
class Adaptive:
    """`first`, then each of `later`, chosen after seeing what came before. Their leaks add up to `reserve` at most."""

    first: Event
    later: tuple[Later, ...]
    reserve: float

    def __post_init__(self) -> None:
        leaks = math.fsum(x.leak for x in self.later)
        if not _is_number(self.reserve) or not leaks * (1 - 1e-9) <= self.reserve < 1:
            raise ConfigError(f"later events leak {leaks:g}, and {self.reserve!r} of delta is reserved for it.")


@dataclass(frozen=True)
class Capped:
    """`event`, of which somebody decided by results how far it goes, so that its own figures are a meter only.

    Whatever was decided, it satisfies (epsilon, delta): the budget of the account that it was charged to.
    """

    event: Event
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)


Event = Gaussian | PoissonGaussian | ClassScheduled | Tuned | Composed | Adaptive | Capped


def parts(event: Event) -> tuple[Event, ...]:
    """The events that it lists, in their order; the event itself where it lists none."""
    match event:
        case Composed(events):
            return events
        case Adaptive(first, later, _):
            return (*parts(first), *(x.event for x in later))
        case Capped(inside):
            return parts(inside)
        case _:
            return (event,)


def exposures(event: Event) -> list[Kind]:
    """For each kind of record, what it meets; equal exposures are merged, and no kind fares surely better than another.

    Where more than MOST_KINDS are left, there is one that meets the most of everything: never too little.
    """
    return sorted(_kinds(event))


def apart(kind: Kind) -> tuple[tuple[Exposure, ...], tuple[Point, ...]]:
    """The steps that such a record meets, and the points."""
    return tuple(x for x in kind if isinstance(x, Exposure)), tuple(x for x in kind if isinstance(x, Point))


def given_up(event: Event) -> float:
    """The delta that no epsilon makes less: that of its points."""
    return max((sum(point.delta for point in apart(kind)[1]) for kind in exposures(event)), default=0.0)


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON; floats keep every bit."""
    match event:
        case Gaussian(sigma, count):
            return {"type": "gaussian", "sigma": sigma, "count": count}
        case PoissonGaussian(rate, sigma, steps):
            return {"type": "poisson-gaussian", "rate": rate, "sigma": sigma, "steps": steps}
        case ClassScheduled(sigma, rates, rows):
            return {"type": "class-scheduled", "sigma": sigma, "rates": list(rates), "rows": list(rows)}
        case Tuned(trials, eta, gamma, epsilon, delta):
            numbers = {"eta": eta, "gamma": gamma, "epsilon": epsilon, "delta": delta}
            return {"type": "tuned", "trials": [to_json(e) for e in trials], **numbers}
        case Composed(events):
            return {"type": "composed", "events": [to_json(e) for e in events]}
        case Adaptive(first, later, reserve):
            chosen = [{"event": to_json(x.event), "sigma": x.sigma, "leak": x.leak} for x in later]
            return {"type": "adaptive", "first": to_json(first), "later": chosen, "reserve": reserve}
        case Capped(inside, epsilon, delta):
            return {"type": "capped", "event": to_json(inside), "epsilon": epsilon, "delta": delta}


def from_json(value: Any) -> Event:
    """The event that `to_json` wrote. Anything else is a ConfigError that says what is wrong."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"an event must be a JSON object, not {type(value).__name__}.")
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k != "type"}
    try:
        match value.get("type"):
            case "gaussian":
                return Gaussian(**fields)
            case "poisson-gaussian":
                return PoissonGaussian(**fields)
            case "class-scheduled":
                return ClassScheduled(**fields)
            case "tuned":
                return Tuned(**{**fields, "trials": tuple(from_json(e) for e in fields["trials"])})
            case "composed":
                return Composed(tuple(from_json(e) for e in fields["events"]))
            case "adaptive":
                later = tuple(Later(**{**x, "event": from_json(x["event"])}) for x in fields["later"])
                return Adaptive(**{**fields, "first": from_json(fields["first"]), "later": later})
            case "capped":
                return Capped(**{**fields, "event": from_json(fields["event"])})
    except (TypeError, KeyError) as exc:
        raise ConfigError(f"the event of type {value['type']!r} does not have the fields it needs: {exc}.") from exc
    raise ConfigError(f"there is no event of type {value.get('type')!r}.")


def describe(event: Event) -> str:
    """The event in words, for tables."""
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


def _kinds(event: Event) -> set[Kind]:
    match event:
        case ClassScheduled(sigma, rates, rows):
            # A class with no higher rate and no more rows than another fares no worse.
            left: list[tuple[float, int]] = []
            for rate, count in sorted(set(zip(rates, rows, strict=True)), reverse=True):
                if not left or count > left[-1][1]:
                    left.append((rate, count))
            kinds = {_merge((Exposure(rate, sigma, count),)) for rate, count in left}
            return kinds if len(kinds) <= MOST_KINDS else {_merge(_most(event))}
        case Composed(events):
            # Class k of one schedule need not be class k of another, so every combination is taken: never too little.
            kinds = {()}
            for part in events:
                kinds = _worst({_merge((*met, *more)) for met, more in product(kinds, _kinds(part))})
                if len(kinds) > MOST_KINDS:
                    return {_merge(_most(event))}
            return kinds
        case Adaptive(first, later, reserve):
            return {_merge((*met, *_dominating(later, reserve))) for met in _kinds(first)}
        case _:
            return {_merge(_most(event))}


def _dominating(later: tuple[Later, ...], reserve: float) -> Kind:
    """What a record meets at most of all that was chosen later."""
    leak = (Point(0.0, reserve),) if reserve > 0 else ()
    return (*(Exposure(1.0, x.sigma, 1) for x in later), *leak)


def _most(event: Event) -> Kind:
    """What nobody meets more of: of each schedule the highest rate in the most rows."""
    match event:
        case Gaussian(sigma, count):
            return (Exposure(1.0, sigma, count),)
        case PoissonGaussian(rate, sigma, steps):
            return (Exposure(rate, sigma, steps),)
        case ClassScheduled(sigma, rates, rows):
            return (Exposure(max(rates), sigma, max(rows)),)
        case Tuned() | Capped():
            return (Point(event.epsilon, event.delta),)
        case Composed(events):
            return tuple(exposure for part in events for exposure in _most(part))
        case Adaptive(first, later, reserve):
            return (*_most(first), *_dominating(later, reserve))


def _worst(kinds: set[Kind]) -> set[Kind]:
    """Without those that fare no worse than another one."""
    return {kind for kind in kinds if not any(kind != other and _no_worse(kind, than=other) for other in kinds)}


def _no_worse(kind: Kind, *, than: Kind) -> bool:
    """Whether each step of `kind` can be laid beside another one of `than`, with as much noise and no lower rate."""

    (ours, points), (theirs, other_points) = apart(kind), apart(than)

    def steps(met: tuple[Exposure, ...], rate: float, sigma: float) -> int:
        return sum(x.steps for x in met if x.sigma == sigma and x.rate >= rate)

    return points == other_points and all(
        steps(ours, rate, sigma) <= steps(theirs, rate, sigma) for rate, sigma, _ in ours
    )


def _merge(parts: Kind) -> Kind:
    steps: dict[tuple[float, float], int] = {}
    exposed, points = apart(parts)
    for rate, sigma, count in exposed:
        if rate > 0 and count > 0:
            steps[rate, sigma] = steps.get((rate, sigma), 0) + count
    return (*sorted(Exposure(rate, sigma, count) for (rate, sigma), count in steps.items()), *sorted(points))


def _check_sigma(sigma: Any) -> None:
    if not _is_number(sigma) or not LEAST_SIGMA <= sigma <= MOST_SIGMA:
        raise ConfigError(
            f"sigma is {sigma!r}: the noise multiplier must be between {LEAST_SIGMA:g} and {MOST_SIGMA:g}."
        )


def _check_rate(rate: Any) -> None:
    if not _is_number(rate) or not 0 <= rate <= 1:
        raise ConfigError(f"the sample rate is {rate!r}: it must be a number from 0 to 1 (batch divided by n).")


def _check_count(name: str, count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_COUNT:
        raise ConfigError(f"{name} is {count!r}: it must be a whole number from 0 to {MOST_COUNT:,}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
