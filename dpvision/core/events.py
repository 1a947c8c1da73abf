"""What is done to private data, as immutable values. Accountants and the ledger, which read them, are separate.

Every event is a sum of contributions, each of Euclidean norm at most 1 after scaling by the sensitivity, released
with Gaussian noise of standard deviation `sigma` (the noise multiplier). They differ in who could have taken part:

    Gaussian           every record, `count` times
    PoissonGaussian    each record independently with probability `rate` in each of `steps` steps
    ClassScheduled     only the records of one class, which is public: a record of class k may be in `rows[k]` of the
                       releases, in each of them independently with probability `rates[k]`
    Tuned              one of `trials`, run a random number of times; the best alone is released
    Composed           all of the events listed, every one fixed before the first result was seen
    Adaptive           a first event, then others, each chosen after seeing the results of those before it
    Capped             an event whose extent was decided by results: all that holds is the budget

Formal reading: two data sets are neighbours when one has one record (or person) more. `exposures(event)` lists, for
each kind of record that there may be, the Poisson-subsampled Gaussians that it meets; the guarantee is that of the
worst kind. Nothing here is averaged over classes: a class that is drawn is visible in what is released. A tuning is
not a sum of such steps. It counts as a `Point`: the worst mechanism that satisfies its epsilon at its delta. What is
chosen later counts as what dominates it, whatever was chosen (core/adaptive.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import product
from typing import Any, NamedTuple

from dpvision.errors import ConfigError

# Outside of these bounds no event makes sense, and the accountants' arithmetic would overflow.
LEAST_SIGMA, MOST_SIGMA = 1e-3, 1e8
MOST_COUNT = 10_000_000
# Kinds of records that are distinguished. Each takes the accountant some tenths of a second for each exposure, and the
# class schedules of releases need few: their classes have the same rate, or numbers of rows that differ by one.
MOST_KINDS = 8


@dataclass(frozen=True)
class Budget:
    """The most that may be revealed about any one record: epsilon at delta."""

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
    """What one record meets of a mechanism of which only its (epsilon, delta) is used."""

    epsilon: float
    delta: float


Kind = tuple[Exposure | Point, ...]


@dataclass(frozen=True)
class Gaussian:
    """`count` releases, each of them of every record."""

    sigma: float
    count: int = 1

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        _check_count("count", self.count)


@dataclass(frozen=True)
class PoissonGaussian:
    """`steps` releases, each record in each of them independently with probability `rate`."""

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

    Which class a row is about counts as public, since the released labels show it. So the choice of the class does not
    amplify privacy, and rates over the whole data set must not be used here.
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
    """The best of K runs, each of one of `trials` drawn uniformly; K is drawn in secret (private/training/stopping.py).

    K is negative binomial with `eta` and `gamma`, at least 1. `epsilon` at `delta` is what stopping.py proves.
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
    """All of `events`, in any order. Rates, noise and numbers of steps were fixed before the first result.

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
    """`event`, whose extent somebody decided by results, so that its own epsilon is only a meter.

    Whatever was decided, it satisfies (epsilon, delta): the budget of the account that it was charged to.
    """

    event: Event
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)


Event = Gaussian | PoissonGaussian | ClassScheduled | Tuned | Composed | Adaptive | Capped


def parts(event: Event) -> tuple[Event, ...]:
    """The events that an event lists, in their order; the event itself where it lists none."""
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
    """What each kind of record meets. Equal exposures are merged, and kinds no worse than another one are left out.

    Where more than MOST_KINDS remain, they are replaced by one that meets the most of everything: never too little.
    """
    return sorted(_kinds(event))


def apart(kind: Kind) -> tuple[tuple[Exposure, ...], tuple[Point, ...]]:
    """The steps and the points that such a record meets."""
    return tuple(x for x in kind if isinstance(x, Exposure)), tuple(x for x in kind if isinstance(x, Point))


def given_up(event: Event) -> float:
    """The part of delta that no epsilon reduces: that of the event's points."""
    return max((sum(point.delta for point in apart(kind)[1]) for kind in exposures(event)), default=0.0)


# The name of each kind of event in JSON. Ledgers, cards and headers hold events under these names.
_TYPES: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "poisson-gaussian": PoissonGaussian,
    "class-scheduled": ClassScheduled,
    "tuned": Tuned,
    "composed": Composed,
    "adaptive": Adaptive,
    "capped": Capped,
}


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON; floats keep every bit."""
    name = next((name for name, kind in _TYPES.items() if kind is type(event)), None)
    if name is None:
        raise ConfigError(f"{type(event).__name__} is not an event.")
    return {"type": name, **_encode_fields(event)}


def _encode_fields(event: Event | Later) -> dict[str, Any]:
    return {field.name: _encode(getattr(event, field.name)) for field in fields(event)}


def _encode(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Later):
        return _encode_fields(value)
    return to_json(value) if is_dataclass(value) else value  # type: ignore[arg-type]


def from_json(value: Any) -> Event:
    """The event that `to_json` wrote. Anything else is a ConfigError that states what is wrong."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"an event must be a JSON object, not {type(value).__name__}.")
    kind = next((kind for name, kind in _TYPES.items() if name == value.get("type")), None)
    if kind is None:
        raise ConfigError(f"there is no event of type {value.get('type')!r}.")
    try:
        return kind(**{name: _decode(name, content) for name, content in value.items() if name != "type"})
    except (TypeError, KeyError) as exc:
        raise ConfigError(f"the event of type {value['type']!r} does not have the fields it needs: {exc}.") from exc


def _decode(name: str, content: Any) -> Any:
    match name:
        case "event" | "first":
            return from_json(content)
        case "trials" | "events":
            return tuple(from_json(item) for item in content)
        case "later":
            return tuple(Later(**{**item, "event": from_json(item["event"])}) for item in content)
        case _:
            return tuple(content) if isinstance(content, list) else content


def _kinds(event: Event) -> set[Kind]:
    match event:
        case ClassScheduled(sigma, rates, rows):
            # A class with no higher rate and no more rows than another is no worse.
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
    """At least what any record meets: of each schedule the highest rate in the most rows."""
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
    """The kinds, without those that are no worse than another one."""
    return {kind for kind in kinds if not any(kind != other and _no_worse(kind, than=other) for other in kinds)}


def _no_worse(kind: Kind, *, than: Kind) -> bool:
    """Whether each step of `kind` can be matched with one of `than` that has the same noise and no lower rate."""

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
        raise ConfigError(f"the sampling rate is {rate!r}: it must be a number from 0 to 1 (batch divided by n).")


def _check_count(name: str, count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_COUNT:
        raise ConfigError(f"{name} is {count!r}: it must be a whole number from 0 to {MOST_COUNT:,}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
