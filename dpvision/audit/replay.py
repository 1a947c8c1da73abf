"""Replay: run a mechanism on data and on a neighbour with the same random draws and noisy results; compare every call.

The Gaussian mechanism hides one record if (1) the sums that reach the noise differ by at most the sensitivity to which
the noise is scaled, and (2) nothing else depends on the data. Along one path of noisy results, both can be observed
without statistics (Cebere et al. 2026, arXiv 2602.17454). `compare` runs the mechanism on both data sets (recording.py)
and reports:

    sum                 a sum differs by more than the sensitivity, or is not finite
    shape, sensitivity, sigma, noise draws, charges, public gradients, output
                        these differ, although they are public
    error               one run fails, or both fail with different messages; also if both fail with the same message,
                        because nothing after the error was observed
    noise               noise was drawn twice from one stream, or from a stream that is also used for something else
    account             noise has a sigma that was not charged before, or more noise was drawn than was charged

An empty list is not a proof: it covers this pair, these random draws and this path. Sampling rates and the distribution
of the noise are not tested.

    def mean(rows):                                     # a mechanism of your own
        total = np.sum([r / max(1, np.linalg.norm(r)) for r in rows], axis=0)
        stream = key.stream("noise", step=0)
        noisy = noise.add_noise(total, stream, sensitivity=1.0, sigma=2.0)
        return noisy / len(rows)                        # len(rows) is not public: reported as "output"

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

from dpvision.audit.recording import NoiseCall, Recording, Use, record
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
# Rounding error of the float64 arithmetic in this comparison, as a share of the sensitivity.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Violation:
    """A difference between the runs on two neighbours that the noise does not hide."""

    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}"


def compare(
    mechanism: Callable[[Data], object], data: Data, neighbour: Data, *, slack: float = ARITHMETIC_SLACK
) -> list[Violation]:
    """List everything that distinguishes the mechanism on the data from the mechanism on its neighbour.

    `slack` is the rounding error that is tolerated, as a share of the sensitivity.
    """
    before = record(mechanism, data)
    return compare_recordings(before, record(mechanism, neighbour, like=before), slack=slack)


def compare_recordings(before: Recording, after: Recording, *, slack: float = ARITHMETIC_SLACK) -> list[Violation]:
    """List everything that distinguishes two recordings. The second must have been made `like` the first."""
    violations = [*find_uncharged(before), *find_uncharged(after), *find_reused(before), *find_reused(after)]
    completed = before.error is None and after.error is None
    if _describe(before.error) != _describe(after.error):
        violations.append(Violation("error", f"{_describe(before.error)}; for the neighbour {_describe(after.error)}"))
    elif before.error is not None:
        violations.append(Violation("error", f"{_describe(before.error)} for both, so nothing after it was observed"))
    if before.charges != after.charges:
        violations.append(Violation("charges", f"{before.charges}; for the neighbour {after.charges}"))
    if [call.use for call in before.calls] != [call.use for call in after.calls]:
        violations.append(Violation("noise draws", f"{len(before.calls)}; for the neighbour {len(after.calls)}"))
    if completed and (where := first_difference(before.public, after.public, where="public")):
        violations.append(Violation("public gradients", where))
    for one, other in matched_calls(before, after):
        violations += _compare_calls(one, other, slack=slack, by_rows=is_by_rows(before, one))
    if completed and (where := first_difference(before.outcome, after.outcome)):
        violations.append(Violation("output", where))
    return violations


def find_uncharged(recording: Recording) -> list[Violation]:
    """List noise draws that the charged events do not cover. A mechanism that charges nothing is not checked."""
    if not recording.charges:
        return []
    violations, done = [], Counter[float]()
    for call in recording.calls:
        paid = _paid(recording.charges[: call.charged])
        done[call.sigma] += len(call.total) if is_by_rows(recording, call) else 1
        if not paid:
            violations.append(Violation("account", "noise was drawn before anything was charged"))
        elif call.sigma not in paid:
            violations.append(Violation("account", f"noise of sigma {call.sigma}, but {sorted(paid)} was charged"))
        elif done[call.sigma] > paid[call.sigma]:
            detail = f"{done[call.sigma]} noise draws of sigma {call.sigma}, but {paid[call.sigma]:g} were charged"
            violations.append(Violation("account", detail))
    return violations


def _paid(charges: list[Event]) -> Counter[float]:
    """Count the noise draws charged for each sigma; unlimited for a class schedule, whose rows may have no class."""
    paid = Counter[float]()
    for event in _parts(charges):
        match event:
            case Gaussian():
                paid[event.sigma] += event.count
            case PoissonGaussian():
                paid[event.sigma] += event.steps
            case ClassScheduled():
                paid[event.sigma] += math.inf  # type: ignore[assignment]
    return paid


def find_reused(recording: Recording) -> list[Violation]:
    """List streams that were used twice.

    The same noise on two sums reveals their difference, and noise from a sampling stream reveals the sample.
    """
    uses = Counter(call.use for call in recording.calls)
    often = {use: max(times, recording.streams[use]) for use, times in uses.items()}
    return [Violation("noise", f"{use} is used twice") for use, times in often.items() if times > 1]


def first_difference(one: Any, other: Any, *, where: str = "it") -> str | None:
    """Describe where two values first differ, bit by bit; None if they are equal."""
    if type(one) is not type(other):
        return f"{where} is {type(one).__name__}, for the neighbour {type(other).__name__}"
    if isinstance(one, torch.Tensor):
        one, other = one.detach().cpu().numpy(), other.detach().cpu().numpy()
    if isinstance(one, np.ndarray):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"{where} is {one.dtype} {one.shape}, for the neighbour {other.dtype} {other.shape}"
        return None if one.tobytes() == other.tobytes() else f"{where} has different numbers"
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{where} has {list(one)}, for the neighbour {list(other)}"
        pairs = [(f"{where}[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{where} has {len(one)} parts, for the neighbour {len(other)}"
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    elif is_dataclass(one) and not isinstance(one, type):
        pairs = [(f"{where}.{f.name}", getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    else:
        return None if one == other or (one != one and other != other) else f"{where} is {one!r}, not {other!r}"
    return next((text for place, a, b in pairs if (text := first_difference(a, b, where=place))), None)


def _compare_calls(one: NoiseCall, other: NoiseCall, *, slack: float, by_rows: bool) -> list[Violation]:
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in ("sensitivity", "sigma")]
    violations = [Violation(name, f"{a} at {one.use}, for the neighbour {b}") for name, a, b in pairs if a != b]
    if one.total.shape != other.total.shape:
        violations.append(Violation("shape", f"{one.total.shape} at {one.use}, for the neighbour {other.total.shape}"))
        return violations
    moved, limit = distance(one, other, by_rows=by_rows), one.sensitivity * (1 + ROUNDING + slack)
    if not moved <= limit:  # including NaN
        violations.append(Violation("sum", f"moved by {moved:.9g} at {one.use}, with a sensitivity of {limit:.9g}"))
    return violations


def distance(one: NoiseCall, other: NoiseCall, *, by_rows: bool) -> float:
    """Return the Euclidean distance of two sums, or the largest one of their rows if each has its own sensitivity."""
    moved = one.total - other.total
    return float(np.linalg.norm(moved, axis=1).max(initial=0.0) if by_rows else np.linalg.norm(moved))


def is_by_rows(recording: Recording, call: NoiseCall) -> bool:
    """Return whether each row has its own sensitivity, because the rows were charged as sampled independently."""
    sampled = any(isinstance(event, PoissonGaussian | ClassScheduled) for event in _parts(recording.charges))
    return sampled and call.total.ndim == 2


def matched_calls(before: Recording, after: Recording) -> list[tuple[NoiseCall, NoiseCall]]:
    """Return the pairs of calls that draw their noise from the same stream."""
    later: dict[Use, list[NoiseCall]] = {}
    for call in after.calls:
        later.setdefault(call.use, []).append(call)
    return [(call, later[call.use].pop(0)) for call in before.calls if later.get(call.use)]


def _parts(events: list[Event]) -> list[Gaussian | PoissonGaussian | ClassScheduled]:
    flat: list[Gaussian | PoissonGaussian | ClassScheduled] = []
    for event in events:
        if isinstance(event, Composed | Adaptive | Capped):
            flat += _parts(list(parts(event)))
        elif isinstance(event, Tuned):
            flat += _parts(list(event.trials))
        else:
            flat.append(event)
    return flat


def _describe(error: BaseException | None) -> str:
    return "none" if error is None else f"{type(error).__name__} ({error})"
