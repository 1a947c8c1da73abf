"""Events: what is done to private data, as immutable values that accountants and the ledger read.

An event is a number of sums of contributions, each of Euclidean norm at most 1 after scaling by the sensitivity,
released with Gaussian noise of standard deviation `sigma` (the noise multiplier). Events differ in who may take part.

Formal reading: two data sets are neighbours if one has one more record (or person). `exposures(event)` lists, for each
possible kind of record, the Poisson-subsampled Gaussian mechanisms that it is exposed to; the guarantee is that of the
worst kind. Nothing is averaged over classes, since a drawn class is visible in the release. A tuning counts as a
`Point`, the worst mechanism that satisfies its epsilon at its delta; a later event counts as what dominates it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from numbers import Real
from typing import Any, ClassVar, NamedTuple

from dpvision.errors import ConfigError

# Outside these bounds no event is meaningful, and the accountants' arithmetic would overflow.
MIN_SIGMA, MAX_SIGMA = 1e-3, 1e8
MAX_COUNT = 10_000_000
# Kinds of records to distinguish: the accountant needs some tenths of a second for every exposure of each. The class
# schedules of releases need few, since their classes have the same rate, or numbers of rows that differ by one.
MAX_KINDS = 8

_Bound = tuple[Callable[[Any], bool], str]
_RATE: _Bound = (lambda x: 0 <= x <= 1, "a sampling rate must be a number from 0 to 1 (batch divided by n)")
_COUNT: _Bound = (
    lambda x: isinstance(x, int) and 0 <= x <= MAX_COUNT,
    f"it must be a whole number from 0 to {MAX_COUNT:,}",
)
# For each field, a check that a number is within its bounds, and the message if it is not.
_BOUNDS: dict[str, _Bound] = {
    "sigma": (lambda x: MIN_SIGMA <= x <= MAX_SIGMA, f"the noise multiplier must be in [{MIN_SIGMA:g}, {MAX_SIGMA:g}]"),
    **dict.fromkeys(("rate", "rates"), _RATE),
    **dict.fromkeys(("count", "steps", "rows"), _COUNT),
    "eta": (lambda x: -1 < x < 100, "eta of a tuning run must be between -1 and 100"),
    "gamma": (lambda x: 0 < x < 1, "gamma of a tuning run must be between 0 and 1"),
    "leak": (lambda x: 0 <= x < 1, "the leak of a later event must be a probability"),
    "reserve": (lambda x: 0 <= x < 1, "the reserved part of delta must be a probability"),
    "epsilon": (lambda x: 0 < x <= sys.float_info.max, "it must be a finite number above 0, such as 3"),
    "delta": (
        lambda x: 1e-10 <= x < 1,
        "it must be below 1 and at least 1e-10, the smallest delta that the accountant can prove in double precision. "
        "It is usually below 1 / (number of records), such as 1e-5",
    ),
}


class _Bounded:
    """Base class of events that refuses numbers outside the bounds of their field."""

    _numbers: ClassVar[Any] = int | float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            within, must = _BOUNDS.get(name, (None, ""))
            for number in value if name in ("rates", "rows") else (value,):
                if within and (isinstance(number, bool) or not isinstance(number, self._numbers) or not within(number)):
                    raise ConfigError(f"{name} is {repr(number)[:40]}: {must}.")


@dataclass(frozen=True)
class Budget(_Bounded):
    """The privacy budget: the largest epsilon, at delta, that may be spent on any one record."""

    _numbers = Real  # accepts numpy's numbers too
    epsilon: float
    delta: float


class Exposure(NamedTuple):
    """Exposure of one record: `steps` Gaussian releases, taking part in each with probability `rate`."""

    rate: float
    sigma: float
    steps: int


class Point(NamedTuple):
    """Exposure of one record to a mechanism of which only (epsilon, delta) is known."""

    epsilon: float
    delta: float


Kind = tuple[Exposure | Point, ...]


@dataclass(frozen=True)
class Gaussian(_Bounded):
    """`count` releases in which every record takes part."""

    sigma: float
    count: int = 1


@dataclass(frozen=True)
class PoissonGaussian(_Bounded):
    """`steps` releases, in each of which every record takes part independently with probability `rate`."""

    rate: float
    sigma: float
    steps: int


@dataclass(frozen=True)
class ClassScheduled(_Bounded):
    """Releases by class: a record of class k may be in `rows[k]` of them, at the rate *within* its class, `rates[k]`.

    The class of a row counts as public, since released labels show it. So drawing the class does not amplify privacy,
    and rates over the whole data set must not be used here.
    """

    sigma: float
    rates: tuple[float, ...]
    rows: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rates or len(self.rates) != len(self.rows):
            raise ConfigError(
                f"a class schedule needs one rate and one number of rows per class; it has {len(self.rates)} rates "
                f"and {len(self.rows)} numbers of rows."
            )


@dataclass(frozen=True)
class Tuned(_Bounded):
    """The best of K runs, each of one uniformly drawn trial of `trials`; K is secret (private/training/stopping.py).

    K >= 1 is negative binomial with parameters `eta` and `gamma`. stopping.py proves `epsilon` at `delta`.
    """

    trials: tuple[Event, ...]
    eta: float
    gamma: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.trials or not all(isinstance(e, Gaussian | PoissonGaussian) for e in self.trials):
            raise ConfigError("a tuning run needs trials, each consisting of steps or releases with Gaussian noise.")


@dataclass(frozen=True)
class Composed:
    """All of `events`, in any order, with rates, noise and numbers of steps that were fixed before the first result.

    What an event computes (its gradients or queries) may depend on earlier results; which event it is may not.
    """

    events: tuple[Event, ...]


@dataclass(frozen=True)
class Later(_Bounded):
    """An event chosen after seeing results; dominated by a Gaussian release with noise multiplier `sigma` that reveals
    everything with probability `leak`."""

    event: Event
    sigma: float
    leak: float


@dataclass(frozen=True)
class Adaptive(_Bounded):
    """`first`, then each of `later`, chosen after seeing earlier results. Their leaks sum to at most `reserve`."""

    first: Event
    later: tuple[Later, ...]
    reserve: float

    def __post_init__(self) -> None:
        super().__post_init__()
        leaks = math.fsum(x.leak for x in self.later)
        if not leaks * (1 - 1e-9) <= self.reserve:
            raise ConfigError(f"later events leak {leaks:g}, but only {self.reserve!r} of delta is reserved for leaks.")


@dataclass(frozen=True)
class Capped(_Bounded):
    """`event`, whose extent depended on results, so that its own epsilon only measures what was spent.

    In any case it satisfies (epsilon, delta), the privacy budget of the account that it was charged to.
    """

    event: Event
    epsilon: float
    delta: float


Event = Gaussian | PoissonGaussian | ClassScheduled | Tuned | Composed | Adaptive | Capped
# The names of event types in JSON, in ledgers, cards and headers.
_TYPES: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "poisson-gaussian": PoissonGaussian,
    "class-scheduled": ClassScheduled,
    "tuned": Tuned,
    "composed": Composed,
    "adaptive": Adaptive,
    "capped": Capped,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def to_json(event: Event) -> dict[str, Any]:
    """Return the event as plain JSON, in which floats keep every bit."""
    if type(event) not in _NAMES:
        raise ConfigError(f"{type(event).__name__} is not an event.")
    return {"type": _NAMES[type(event)]} | {name: _encode(value) for name, value in vars(event).items()}


def _encode(value: Any) -> Any:
    match value:
        case tuple():
            return [_encode(item) for item in value]
        case Later():
            return {name: _encode(content) for name, content in vars(value).items()}
        case int() | float():
            return value
        case _:
            return to_json(value)


def from_json(value: Any) -> Event:
    """Return the event that `to_json` wrote, or raise a ConfigError that states what is wrong."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"an event must be a JSON object, not {type(value).__name__}.")
    kind = _TYPES.get(str(value.get("type")))
    if kind is None:
        raise ConfigError(f"{value.get('type')!r} is not a type of event.")
    try:
        return kind(**{name: _decode(name, content) for name, content in value.items() if name != "type"})
    except (TypeError, KeyError) as exc:
        raise ConfigError(f"an event of type {value['type']!r} has the wrong fields: {exc}.") from exc


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


def parts(event: Event) -> tuple[Event, ...]:
    """Return the events that an event consists of, in their order; an elementary event consists of itself."""
    match event:
        case Composed(events):
            return events
        case Adaptive(first, later, _):
            return (*parts(first), *(x.event for x in later))
        case Capped(inside):
            return parts(inside)
        case _:
            return (event,)


def split_kind(kind: Kind) -> tuple[tuple[Exposure, ...], tuple[Point, ...]]:
    """Split a kind of record's exposures into steps and points."""
    return tuple(x for x in kind if isinstance(x, Exposure)), tuple(x for x in kind if isinstance(x, Point))


def fixed_delta(event: Event) -> float:
    """Return the part of delta that no epsilon can reduce: the deltas of the event's points."""
    return max((sum(point.delta for point in split_kind(kind)[1]) for kind in exposures(event)), default=0.0)


def exposures(event: Event) -> list[Kind]:
    """Return the exposures of each kind of record, with equal exposures merged, without kinds no worse than another.

    More than MAX_KINDS kinds are replaced by one with at least the exposures of each: an upper bound.
    """
    return sorted(_kinds(event))


def _kinds(event: Event, *, coarse: bool = False) -> set[Kind]:
    """Return the kinds of records; `coarse`: one kind that bounds all, with a schedule's highest rate and most rows."""
    kinds: set[Kind] = set()
    match event:
        case Gaussian(sigma, count):
            kinds = {(Exposure(1.0, sigma, count),)}
        case PoissonGaussian(rate, sigma, steps):
            kinds = {(Exposure(rate, sigma, steps),)}
        case Tuned() | Capped():
            kinds = {(Point(event.epsilon, event.delta),)}
        case ClassScheduled(sigma, rates, rows):
            # A class with no higher rate and no more rows than another is no worse.
            left = [(max(rates), max(rows))] if coarse else list[tuple[float, int]]()
            for rate, count in sorted(set(zip(rates, rows, strict=True)), reverse=True):
                if not left or count > left[-1][1]:
                    left.append((rate, count))
            kinds = {(Exposure(rate, sigma, count),) for rate, count in left}
        case Composed(events):
            # Class k of one schedule need not be class k of another: take every combination, which is an upper bound.
            kinds = {()}
            for part in events:
                combined = product(kinds, _kinds(part, coarse=coarse))
                kinds = {_merge((*kind, *more)) for kind, more in combined}
                kinds = {a for a in kinds if not any(a != b and _no_worse(a, than=b) for b in kinds)}
                if len(kinds) > MAX_KINDS:
                    break
        case Adaptive(first, later, reserve):
            chosen = (*(Exposure(1.0, x.sigma, 1) for x in later), *((Point(0.0, reserve),) if reserve > 0 else ()))
            kinds = {(*kind, *chosen) for kind in _kinds(first, coarse=coarse)}
    kinds = {_merge(kind) for kind in kinds}
    return kinds if len(kinds) <= MAX_KINDS else _kinds(event, coarse=True)


def _no_worse(kind: Kind, *, than: Kind) -> bool:
    """Whether each step of `kind` can be matched with a step of `than` with the same noise and no lower rate."""
    (ours, points), (theirs, other_points) = split_kind(kind), split_kind(than)

    def steps(exposed: tuple[Exposure, ...], rate: float, sigma: float) -> int:
        return sum(x.steps for x in exposed if x.sigma == sigma and x.rate >= rate)

    return points == other_points and all(
        steps(ours, rate, sigma) <= steps(theirs, rate, sigma) for rate, sigma, _ in ours
    )


def _merge(parts: Kind) -> Kind:
    """Return the kind in a standard form: equal steps are counted together, and impossible ones are dropped."""
    steps: dict[tuple[float, float], int] = {}
    exposed, points = split_kind(parts)
    for rate, sigma, count in exposed:
        if rate > 0 and count > 0:
            steps[rate, sigma] = steps.get((rate, sigma), 0) + count
    return (*sorted(Exposure(rate, sigma, count) for (rate, sigma), count in steps.items()), *sorted(points))
