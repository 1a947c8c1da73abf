"""No neighbour of any mechanism is told apart by a sum, or by anything public; and faults of all kinds are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpvision.audit.recording import record
from dpvision.audit.replay import compare, first_difference, interaction
from dpvision.core import noise
from dpvision.core.events import Gaussian
from dpvision.core.keys import Key
from dpvision.errors import ConfigError
from tests.one_thread import one_thread
from tests.system.replay.mechanisms import CLASSES, MECHANISMS, RUNS, WIDTH, charged
from tests.system.replay.neighbours import KINDS, one_more, some_records
from tests.system.replay.pairs import pairs, replayed
from tests.system.replay.quartets import LEAST, interactions

assert one_thread
KEY = Key.for_tests("own")
EACH, OF_A_RUN = 8, 2  # pairs of a mechanism in the short form; whole runs take longer


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_neighbour_is_told_apart(name: str) -> None:
    """A few of all pairs, other ones for each mechanism."""
    mechanism, place = MECHANISMS[name], list(MECHANISMS).index(name)
    every = list(pairs(mechanism))
    wanted = OF_A_RUN if name in RUNS else EACH
    some = [every[(place + i * (len(every) // wanted + 1)) % len(every)] for i in range(wanted)]
    count, _, found = replayed(mechanism, some)
    assert count == wanted and not found


def test_the_short_form_has_hundreds_of_pairs() -> None:
    assert len(MECHANISMS) * EACH - len(RUNS) * (EACH - OF_A_RUN) >= 400


@pytest.mark.slow
def test_no_neighbour_is_told_apart_in_5000_pairs() -> None:
    """All kinds, sizes, both directions; and no claim is far above what some neighbour attains."""
    counts, moved, found = {}, {}, []
    for name, mechanism in MECHANISMS.items():
        counts[name], moved[name], alarms = replayed(mechanism, pairs(mechanism, most_sizes=mechanism.most_sizes))
        found += [f"{name}: {alarm}" for alarm in alarms]
    print(f"{sum(counts.values())} pairs, largest move {max(moved.values())}")
    assert not found
    assert sum(counts.values()) >= 5_000
    assert min(moved.values()) > 0.5 and max(moved.values()) <= 1 + noise.ARITHMETIC_SLACK


@pytest.mark.slow
def test_no_unit_changes_what_another_contributes() -> None:
    """Of every mechanism, three quartets."""
    moved = {name: max(interactions(mechanism, turns=3)) for name, mechanism in MECHANISMS.items()}
    assert max(moved.values()) <= LEAST, moved


# Mechanisms of one's own


def _clipped(rows: np.ndarray) -> np.ndarray:
    good = rows[np.isfinite(rows).all(axis=1)]
    with np.errstate(over="ignore"):  # a warning would be an error in these tests, and tell
        return (good / np.maximum(1.0, np.linalg.norm(good, axis=1, keepdims=True))).sum(axis=0)


def _noisy(total: np.ndarray, step: int = 0, *, sensitivity: float = 1.0, sigma: float = 2.0) -> np.ndarray:
    return noise.add_noise(total, KEY.stream("noise", step=step), sensitivity=sensitivity, sigma=sigma)


def _sound(rows: np.ndarray) -> np.ndarray:
    return _noisy(_clipped(rows)) / 10


def _uncharged(rows: np.ndarray) -> np.ndarray:
    first = _noisy(_clipped(rows))
    charged(Gaussian(2.0))
    return first


def _overspent(rows: np.ndarray) -> list[np.ndarray]:
    charged(Gaussian(2.0))
    return [_noisy(_clipped(rows), step) for step in range(2)]


def _charged_otherwise(rows: np.ndarray) -> list[np.ndarray]:
    """As many as were charged, but not of the sigma that was."""
    charged(Gaussian(2.0))
    charged(Gaussian(50.0, 9))
    return [_noisy(_clipped(rows), step) for step in range(10)]


def _charged_by_another(rows: np.ndarray) -> np.ndarray:
    charged(Gaussian(50.0))
    first = _noisy(_clipped(rows))
    charged(Gaussian(2.0))
    return first


def _error_that_tells(rows: np.ndarray) -> None:
    _sound(rows)
    raise ValueError(f"{len(rows)} rows are too few")


def _always_an_error(rows: np.ndarray) -> None:
    raise SystemExit("broken")


FAULTS: dict[str, tuple[Callable[[np.ndarray], object], str]] = {
    "not clipped": (lambda rows: _noisy(np.nan_to_num(rows).sum(axis=0)), "sum"),
    "no guard for what is no number": (lambda rows: _noisy(rows.sum(axis=0)), "error"),
    "divided by how many there are": (lambda rows: _noisy(_clipped(rows)) / len(rows), "output"),
    "told how many there are": (lambda rows: (_sound(rows), len(rows)), "output"),
    "no step where nobody is": (lambda rows: _sound(rows) if len(rows) > 3 else np.zeros(WIDTH), "noise draws"),
    "one step for each": (lambda rows: [_noisy(_clipped(rows), i) for i in range(len(rows))], "noise draws"),
    "the same noise twice": (lambda rows: (_noisy(_clipped(rows)), _noisy(_clipped(rows[:2]))), "noise"),
    "sensitivity from the data": (
        lambda rows: _noisy(_clipped(rows), sensitivity=1 + len(rows)),
        "sensitivity",
    ),
    "sigma from the data": (lambda rows: _noisy(_clipped(rows), sigma=1 + len(rows)), "sigma"),
    "shape from the data": (lambda rows: _noisy(np.full(len(rows), 0.1)), "shape"),
    "charged afterwards": (_uncharged, "account"),
    "two releases, one charged": (_overspent, "account"),
    "another sigma than most were charged for": (_charged_otherwise, "account"),
    "only another one is charged before": (_charged_by_another, "account"),
    "an error that tells": (_error_that_tells, "error"),
    "an error on any data": (_always_an_error, "error"),
}


def test_a_sound_mechanism_of_ones_own() -> None:
    records = some_records(3, (WIDTH,), classes=CLASSES)
    for kind in KINDS:
        more = one_more(records, kind, classes=CLASSES)
        assert not compare(_sound, records.x, more.x) and not compare(_sound, more.x, records.x)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_faults_are_found_and_named(name: str) -> None:
    mechanism, what = FAULTS[name]
    records = some_records(3, (WIDTH,), classes=CLASSES)
    found = set()
    for kind in KINDS:
        found |= {
            violation.what for violation in compare(mechanism, records.x, one_more(records, kind, classes=CLASSES).x)
        }
    assert what in found


BY_OTHERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "clipped to the median length": lambda rows: np.median(np.linalg.norm(rows, axis=1)) * rows,
    "scaled by the largest": lambda rows: 0.01 * rows / np.abs(rows).max(),
}


def _influence(shaped: Callable[[np.ndarray], np.ndarray]) -> float:
    """Of one row on the contribution of another, with lengths that are never clipped."""
    rows = some_records(4, (WIDTH,), classes=CLASSES).x / 100
    quartet = [rows.copy() for _ in range(4)]
    for number, changed in enumerate(((), (1,), (3,), (1, 3))):
        for place in changed:
            quartet[number][place] *= -3.0
    first = record(lambda x: _noisy(_clipped(shaped(x))), quartet[0])
    later = [record(lambda x: _noisy(_clipped(shaped(x))), x, like=first) for x in quartet[1:]]
    return interaction((first, later[0]), (later[1], later[2]))


def test_rows_that_shape_each_other_are_found_where_nothing_is_clipped() -> None:
    assert _influence(lambda rows: rows) <= LEAST
    for name, shaped in BY_OTHERS.items():
        assert _influence(shaped) > 100 * LEAST, name


def test_noise_from_a_stream_that_something_else_is_drawn_from() -> None:
    def coins_and_noise(rows: np.ndarray) -> np.ndarray:
        KEY.stream("sampling", step=0).words(len(rows))
        stream = KEY.stream("sampling", step=0)
        return noise.add_noise(_clipped(rows), stream, sensitivity=1.0, sigma=2.0)

    rows = some_records(3, (WIDTH,), classes=CLASSES).x
    assert {v.what for v in compare(coins_and_noise, rows, rows[:2])} == {"noise"}


def test_noise_that_is_too_small_for_what_was_charged() -> None:
    def fewer(rows: np.ndarray) -> np.ndarray:
        charged(Gaussian(2.0))
        return _noisy(_clipped(rows), sigma=1.0)

    rows = some_records(3, (WIDTH,), classes=CLASSES).x
    assert {v.what for v in compare(fewer, rows, rows[:2])} == {"account"}


def test_the_path_is_the_same_one_and_the_noise_is_real() -> None:
    rows = some_records(4, (WIDTH,), classes=CLASSES).x
    before = record(_sound, rows)
    after = record(_sound, rows[:3], like=before)
    assert first_difference(before.outcome, after.outcome) is None
    assert not np.array_equal(before.calls[0].total, after.calls[0].total)
    assert 0.1 < np.abs(before.calls[0].result - before.calls[0].total).max() < 20
    assert noise.add_noise.__module__ == "dpvision.core.noise" and Key.fresh().private, "all is as before"


def test_differences_are_found_wherever_they_are() -> None:
    assert first_difference({"a": [1.0, float("nan")]}, {"a": [1.0, float("nan")]}) is None
    for other in ({"a": [1.0, 2.0]}, {"b": [1.0]}, {"a": [1.0]}, {"a": (1.0, 3.0)}, {"a": [np.zeros(1), 3.0]}):
        assert first_difference({"a": [1.0, 3.0]}, other)
    assert first_difference(np.zeros(3), np.zeros(3, np.float32)) and first_difference(np.zeros(1), -np.zeros(1))


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(ConfigError, match="no kind of uint8"):
        one_more(some_records(2, (4, 4, 1), classes=3, dtype=np.uint8), "nan", classes=3)
