"""What is done to private data, as immutable values. Accountants and the ledger, which read them, are separate.

Every event is a number of sums of contributions, each of Euclidean norm at most 1 after scaling by the sensitivity,
released with Gaussian noise of standard deviation `sigma` (the noise multiplier). Events differ in who could have
taken part.

Formal reading: two data sets are neighbours when one has one record (or person) more. `exposures(event)` lists, for
each kind of record that there may be, the Poisson-subsampled Gaussians that it meets; the guarantee is that of the
worst kind. Nothing is averaged over classes: a class that is drawn is visible in what is released. A tuning counts as
a `Point`, the worst mechanism that satisfies its epsilon at its delta, and what is chosen later as what dominates it.
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

# Outside of these bounds no event makes sense, and the accountants' arithmetic would overflow.
MIN_SIGMA, MAX_SIGMA = 1e-3, 1e8
MAX_COUNT = 10_000_000
# Kinds of records that are distinguished. Each takes the accountant some tenths of a second for each exposure, and the
# class schedules of releases need few: their classes have the same rate, or numbers of rows that differ by one.
MAX_KINDS = 8

_Bound = tuple[Callable[[Any], bool], str]
_RATE: _Bound = (lambda x: 0 <= x <= 1, "a sampling rate must be a number from 0 to 1 (batch divided by n)")
_COUNT: _Bound = (
    lambda x: isinstance(x, int) and 0 <= x <= MAX_COUNT,
    f"it must be a whole number from 0 to {MAX_COUNT:,}",
)
# Field -> whether a number is within its bounds, and what it must be.
_BOUNDS: dict[str, _Bound] = {
    "sigma": (lambda x: MIN_SIGMA <= x <= MAX_SIGMA, f"the noise multiplier must be in [{MIN_SIGMA:g}, {MAX_SIGMA:g}]"),
    **dict.fromkeys(("rate", "rates"), _RATE),
    **dict.fromkeys(("count", "steps", "rows"), _COUNT),
    "eta": (lambda x: -1 < x < 100, "that of a tuning must be between -1 and 100"),
    "gamma": (lambda x: 0 < x < 1, "that of a tuning must be between 0 and 1"),
    "leak": (lambda x: 0 <= x < 1, "the leak of a later event must be a probability"),
    "reserve": (lambda x: 0 <= x < 1, "what is reserved of delta must be a probability"),
    "epsilon": (lambda x: 0 < x <= sys.float_info.max, "it must be a finite number above 0, such as 3"),
    "delta": (
        lambda x: 1e-10 <= x < 1,
        "it must be below 1 and at least 1e-10, the least that the accountant can prove in double precision. Usual: "
        "below one in the number of records, such as 1e-5",
    ),
}


class _Bounded:
    """Refuses numbers outside of the bounds of their field, which events have in common."""

    _numbers: ClassVar[Any] = int | float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            within, must = _BOUNDS.get(name, (None, ""))
            for number in value if name in ("rates", "rows") else (value,):
                if within and (isinstance(number, bool) or not isinstance(number, self._numbers) or not within(number)):
                    raise ConfigError(f"{name} is {repr(number)[:40]}: {must}.")


@dataclass(frozen=True)
class Budget(_Bounded):
    """The most that may be revealed about any one record: epsilon at delta."""

    _numbers = Real  # also numpy's
    epsilon: float
    delta: float


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
class Gaussian(_Bounded):
    """`count` releases, each of them of every record."""

    sigma: float
    count: int = 1


@dataclass(frozen=True)
class PoissonGaussian(_Bounded):
    """`steps` releases, each record in each of them independently with probability `rate`."""

    rate: float
    sigma: float
    steps: int


@dataclass(frozen=True)
class ClassScheduled(_Bounded):
    """Releases by class: a record of class k meets `rows[k]` of them, at the rate *inside* its class, `rates[k]`.

    Which class a row is about counts as public, since the released labels show it. So the choice of the class does not
    amplify privacy, and rates over the whole data set must not be used here.
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
    """The best of K runs, each of one of `trials` drawn uniformly; K is drawn in secret (private/training/stopping.py).

    K is negative binomial with `eta` and `gamma`, at least 1. `epsilon` at `delta` is what stopping.py proves.
    """

    trials: tuple[Event, ...]
    eta: float
    gamma: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.trials or not all(isinstance(e, Gaussian | PoissonGaussian) for e in self.trials):
            raise ConfigError("a tuning needs trials, each of them steps or releases with Gaussian noise.")


@dataclass(frozen=True)
class Composed:
    """All of `events`, in any order. Rates, noise and numbers of steps were fixed before the first result.

    What an event computes (its gradients, its queries) may depend on earlier results; which event it is may not.
    """

    events: tuple[Event, ...]


@dataclass(frozen=True)
class Later(_Bounded):
    """An event that was chosen after seeing results. It reveals no more than a Gaussian release of noise `sigma`, but
    for a probability of `leak` with which everything is revealed."""

    event: Event
    sigma: float
    leak: float


@dataclass(frozen=True)
class Adaptive(_Bounded):
    """`first`, then each of `later`, chosen after seeing what came before. Their leaks add up to `reserve` at most."""

    first: Event
    later: tuple[Later, ...]
    reserve: float

    def __post_init__(self) -> None:
        super().__post_init__()
        leaks = math.fsum(x.leak for x in self.later)
        if not leaks * (1 - 1e-9) <= self.reserve:
            raise ConfigError(f"later events leak {leaks:g}, and {self.reserve!r} of delta is reserved for it.")


@dataclass(frozen=True)
class Capped(_Bounded):
    """`event`, whose extent somebody decided by results, so that its own epsilon is only a meter.

    Whatever was decided, it satisfies (epsilon, delta): the budget of the account that it was charged to.
    """

    event: Event
    epsilon: float
    delta: float


Event = Gaussian | PoissonGaussian | ClassScheduled | Tuned | Composed | Adaptive | Capped
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
_NAMES = {kind: name for name, kind in _TYPES.items()}


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON; floats keep every bit."""
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
    """The event that `to_json` wrote. Anything else is a ConfigError that states what is wrong."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"an event must be a JSON object, not {type(value).__name__}.")
    kind = _TYPES.get(str(value.get("type")))
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


def apart(kind: Kind) -> tuple[tuple[Exposure, ...], tuple[Point, ...]]:
    """The steps and the points that such a record meets."""
    return tuple(x for x in kind if isinstance(x, Exposure)), tuple(x for x in kind if isinstance(x, Point))


def given_up(event: Event) -> float:
    """The part of delta that no epsilon reduces: that of the event's points."""
    return max((sum(point.delta for point in apart(kind)[1]) for kind in exposures(event)), default=0.0)


def exposures(event: Event) -> list[Kind]:
    """What each kind of record meets. Equal exposures are merged, and kinds no worse than another one are left out.

    Where more than MAX_KINDS remain, they are replaced by one that meets the most of everything: never too little.
    """
    return sorted(_kinds(event))


def _kinds(event: Event, *, coarse: bool = False) -> set[Kind]:
    """The kinds; or, `coarse`, one that meets at least what any meets: of a schedule the highest rate in most rows."""
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
            # Class k of one schedule need not be class k of another, so every combination is taken: never too little.
            kinds = {()}
            for part in events:
                every = product(kinds, _kinds(part, coarse=coarse))
                kinds = _worst({_merge((*met, *more)) for met, more in every})
                if len(kinds) > MAX_KINDS:
                    break
        case Adaptive(first, later, reserve):
            chosen = (*(Exposure(1.0, x.sigma, 1) for x in later), *((Point(0.0, reserve),) if reserve > 0 else ()))
            kinds = {(*met, *chosen) for met in _kinds(first, coarse=coarse)}
    kinds = {_merge(kind) for kind in kinds}
    return kinds if len(kinds) <= MAX_KINDS else _kinds(event, coarse=True)


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
    """The kind in a standard form: equal steps are counted together, and those that nobody meets are left out."""
    steps: dict[tuple[float, float], int] = {}
    exposed, points = apart(parts)
    for rate, sigma, count in exposed:
        if rate > 0 and count > 0:
            steps[rate, sigma] = steps.get((rate, sigma), 0) + count
    return (*sorted(Exposure(rate, sigma, count) for (rate, sigma), count in steps.items()), *sorted(points))
