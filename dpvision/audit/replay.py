"""Replay: a mechanism on data and on a neighbour, with the same coins and noisy results, compared call by call.

Formal reading: the Gaussian mechanism hides one record if (1) the sums that reach the noise differ by at most the
sensitivity that the noise is scaled to, and (2) nothing else depends on the data. Along one path of noisy results both
can be seen without any statistics. `compare` runs the mechanism on both data sets (recording.py) and reports

    the sum            that differs by more than the sensitivity, or is not finite
    the public part    shapes, sensitivity, sigma, number of noise draws, what is charged, what comes out, and public
                       gradients that shape contributions
    the error          of one of them, or another text; also where both end with the same one: nothing else was seen
    the noise          drawn twice from one stream, or from one that something else is drawn from
    the account        releases of a sigma that was not charged by then, or more of them than were

An empty list is no proof: it speaks of this pair, these coins and this path. Rates of sampling and the law of the noise
are not seen here (sampler_checks.py, noise_checks.py). After Cebere et al. 2026 (arXiv 2602.17454).

    def mean(rows):                                     # a mechanism of one's own, in five lines
        total = np.sum([r / max(1, np.linalg.norm(r)) for r in rows], axis=0)
        stream = key.stream("noise", step=0)
        noisy = noise.release(total, stream, sensitivity=1.0, sigma=2.0)
        return noisy / len(rows)                        # len(rows) is not public: found as "what comes out"

    for violation in compare(mean, rows, rows[:-1]):
        print(violation)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from dpvision.audit.recording import Asked, Recording, Use, record
from dpvision.core.events import (
    Adaptive,
    Capped,
    ClassScheduled,
    Composed,
    Event,
    Gaussian,
    PoissonGaussian,
    Tuned,
    parts,
)
from dpvision.core.noise import ARITHMETIC_SLACK

Data = TypeVar("Data")
# What float64 arithmetic of this comparison may add, as a share of the sensitivity.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Violation:
    """Something that tells two neighbours apart beyond what the noise hides."""

    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


def compare(
    mechanism: Callable[[Data], object], data: Data, neighbour: Data, *, slack: float = ARITHMETIC_SLACK
) -> list[Violation]:
    """What tells the neighbour from the data. `slack` is the share of the sensitivity that arithmetic may add."""
    before = record(mechanism, data)
    return differences(before, record(mechanism, neighbour, like=before), slack=slack)


def differences(before: Recording, after: Recording, *, slack: float = ARITHMETIC_SLACK) -> list[Violation]:
    """Of two recordings, the second of which was made like the first."""
    found = [*unaccounted(before), *unaccounted(after), *drawn_twice(before), *drawn_twice(after)]
    if _named(before.error) != _named(after.error):
        found.append(Violation("the error", f"{_named(before.error)}; of the neighbour {_named(after.error)}"))
    elif before.error is not None:
        found.append(Violation("the error", f"{_named(before.error)} of both, so what comes after it was not seen"))
    if before.charges != after.charges:
        found.append(Violation("what is charged", f"{before.charges}; of the neighbour {after.charges}"))
    if [a.use for a in before.asked] != [a.use for a in after.asked]:
        found.append(Violation("noise draws", f"{len(before.asked)}; of the neighbour {len(after.asked)}"))
    if before.error is None and after.error is None and (at := difference(before.public, after.public, where="public")):
        found.append(Violation("what assists", at))
    for one, other in _same_use(before, after):
        found += _of_a_release(one, other, slack=slack, by_rows=_by_rows(before, one))
    where = difference(before.outcome, after.outcome)
    if before.error is None and after.error is None and where:
        found.append(Violation("what comes out", where))
    return found


def largest_move(before: Recording, after: Recording) -> float:
    """How far the sums are apart at most, as a share of the sensitivity: 1 is what the noise hides."""
    pairs = [(a, b) for a, b in _same_use(before, after) if a.total.shape == b.total.shape]
    return max((_distance(a, b, by_rows=_by_rows(before, a)) / a.sensitivity for a, b in pairs), default=0.0)


def interaction(of_two: tuple[Recording, Recording], of_two_others: tuple[Recording, Recording]) -> float:
    """How much one unit changes what another contributes, as a share of the sensitivity: the largest of all sums.

    The recordings are of ((x, y), (x', y)) and ((x, y'), (x', y')): the same data, in which two units stand at two
    places, each in two versions. Where a sum adds up what each unit contributes by itself, both differences are equal.
    Whether contributions are clipped does not matter: an influence that clipping bounds is one, too.
    """
    (one, changed), (other, both) = of_two, of_two_others
    later = [{asked.use: asked.total for asked in each.asked} for each in (changed, other, both)]
    largest = 0.0
    for asked in one.asked:
        totals = [asked.total, *(each[asked.use] for each in later if asked.use in each)]
        if len(totals) < 4 or len({total.shape for total in totals}) > 1:
            return math.inf
        moved = np.abs(totals[0] - totals[1] - totals[2] + totals[3]).max(initial=0.0) / asked.sensitivity
        largest = max(largest, float(moved) if math.isfinite(moved) else math.inf)
    return largest


def unaccounted(recording: Recording) -> list[Violation]:
    """Releases that the events charged do not speak of. A mechanism that charges nothing is not looked at."""
    if not recording.charges:
        return []
    found, done = [], Counter[float]()
    for asked in recording.asked:
        paid = _paid(recording.charges[: asked.charged])
        done[asked.sigma] += len(asked.total) if _by_rows(recording, asked) else 1
        if not paid:
            found.append(Violation("the account", "noise was drawn before anything was charged"))
        elif asked.sigma not in paid:
            found.append(Violation("the account", f"noise of sigma {asked.sigma}, but charged was {sorted(paid)}"))
        elif done[asked.sigma] > paid[asked.sigma]:
            told = f"{done[asked.sigma]} releases of sigma {asked.sigma}, of which {paid[asked.sigma]:g} were charged"
            found.append(Violation("the account", told))
    return found


def _paid(charges: list[Event]) -> Counter[float]:
    """How many releases of each sigma; of a class schedule any number, as its rows may be of no class."""
    found = Counter[float]()
    for event in _parts(charges):
        match event:
            case Gaussian():
                found[event.sigma] += event.count
            case PoissonGaussian():
                found[event.sigma] += event.steps
            case ClassScheduled():
                found[event.sigma] += math.inf  # type: ignore[assignment]
    return found


def drawn_twice(recording: Recording) -> list[Violation]:
    """The same noise on two sums shows their difference, and noise from a stream of coins shows the coins."""
    uses = Counter(asked.use for asked in recording.asked)
    often = {use: max(times, recording.streams[use]) for use, times in uses.items()}
    return [Violation("the noise", f"{use} is drawn from twice") for use, times in often.items() if times > 1]


def difference(one: Any, other: Any, *, where: str = "it") -> str | None:
    """Where two values first differ, bit by bit; None where they are equal."""
    if type(one) is not type(other):
        return f"{where} is {type(one).__name__}, of the neighbour {type(other).__name__}"
    if isinstance(one, torch.Tensor):
        one, other = one.detach().cpu().numpy(), other.detach().cpu().numpy()
    if isinstance(one, np.ndarray):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{where} is {one.dtype} {one.shape}, of the neighbour {other.dtype} {other.shape}"
        return None if one.tobytes() == other.tobytes() else f"{where} has other numbers"
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{where} has {list(one)}, of the neighbour {list(other)}"
        pairs = [(f"{where}[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{where} has {len(one)} parts, of the neighbour {len(other)}"
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    elif is_dataclass(one) and not isinstance(one, type):
        pairs = [(f"{where}.{f.name}", getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    else:
        return None if one == other or (one != one and other != other) else f"{where} is {one!r}, not {other!r}"
    return next((found for place, a, b in pairs if (found := difference(a, b, where=place))), None)


def _of_a_release(one: Asked, other: Asked, *, slack: float, by_rows: bool) -> list[Violation]:
    found = []
    for name in ("sensitivity", "sigma"):
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            found.append(Violation(name, f"{a} at {one.use}, of the neighbour {b}"))
    if one.total.shape != other.total.shape:
        found.append(Violation("shapes", f"{one.total.shape} at {one.use}, of the neighbour {other.total.shape}"))
        return found
    moved, most = _distance(one, other, by_rows=by_rows), one.sensitivity * (1 + ROUNDING + slack)
    if not moved <= most:  # also where it is not a number
        found.append(Violation("the sum", f"moved by {moved:.9g} at {one.use}, with a sensitivity of {most:.9g}"))
    return found


def _distance(one: Asked, other: Asked, *, by_rows: bool) -> float:
    moved = one.total - other.total
    return float(np.linalg.norm(moved, axis=1).max(initial=0.0) if by_rows else np.linalg.norm(moved))


def _by_rows(recording: Recording, asked: Asked) -> bool:
    """Whether each row is a release of its own: a matrix that was charged as rows drawn by coins."""
    sampled = any(isinstance(event, PoissonGaussian | ClassScheduled) for event in _parts(recording.charges))
    return sampled and asked.total.ndim == 2


def _same_use(before: Recording, after: Recording) -> list[tuple[Asked, Asked]]:
    later: dict[Use, list[Asked]] = {}
    for asked in after.asked:
        later.setdefault(asked.use, []).append(asked)
    return [(asked, later[asked.use].pop(0)) for asked in before.asked if later.get(asked.use)]


def _parts(events: list[Event]) -> list[Gaussian | PoissonGaussian | ClassScheduled]:
    found: list[Gaussian | PoissonGaussian | ClassScheduled] = []
    for event in events:
        if isinstance(event, Composed | Adaptive | Capped):
            found += _parts(list(parts(event)))
        elif isinstance(event, Tuned):
            found += _parts(list(event.trials))
        else:
            found.append(event)
    return found


def _named(error: BaseException | None) -> str:
    return "none" if error is None else f"{type(error).__name__} ({error})"
