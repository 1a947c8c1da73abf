"""Replay a mechanism on pairs of neighbours: number of pairs, violations, and how far the sums moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dpvision.audit.recording import Recording, record
from dpvision.audit.replay import Violation, compare_recordings, distance, is_by_rows, matched_calls
from tests.system.replay.mechanisms import CLASSES, Mechanism
from tests.system.replay.neighbours import Records, one_more

Pair = tuple[str, Records, Records]


def pairs(
    mechanism: Mechanism, *, sizes: Sequence[int] = (), seed: int = 0, most_sizes: int | None = None
) -> Iterator[Pair]:
    """(description, data, neighbour) for every kind and size, or `most_sizes` sizes for each kind; unit added and removed."""
    sizes = sizes or mechanism.sizes
    for number, kind in enumerate(mechanism.kinds):
        for turn in range(len(sizes) if most_sizes is None else most_sizes):
            size = sizes[(number + 2 * turn) % len(sizes)]
            fewer = mechanism.records(size, seed + number)
            at = (number + turn) % (len(fewer) + 1) if mechanism.anywhere else None
            more = one_more(fewer, kind, classes=CLASSES, seed=seed + number, at=at)
            yield f"{kind} added to {size}, seed {seed}", fewer, more
            yield f"{kind} removed from {size + 1}, seed {seed}", more, fewer


def replay_pairs(mechanism: Mechanism, selection: Iterable[Pair]) -> tuple[int, float, list[str]]:
    """The number of pairs, the largest move of a sum as a share of the sensitivity, and the violations as text."""
    count, largest, texts = 0, 0.0, []
    for what, data, neighbour in selection:
        before = record(mechanism.run, data)
        after = record(mechanism.run, neighbour, like=before)
        violations: list[Violation | str] = [*compare_recordings(before, after)]
        if before.error is None and not before.calls:
            violations.append("no noise was drawn")
        if before.error is None and not before.charges:
            violations.append("nothing was charged")
        texts += [f"{what}: {violation}" for violation in violations]
        count, largest = count + 1, max(largest, largest_distance(before, after))
    return count, largest, texts


def largest_distance(before: Recording, after: Recording) -> float:
    """The largest distance between two sums as a share of the sensitivity: the noise hides 1."""
    pairs = [(a, b) for a, b in matched_calls(before, after) if a.total.shape == b.total.shape]
    return max((distance(a, b, by_rows=is_by_rows(before, a)) / a.sensitivity for a, b in pairs), default=0.0)
