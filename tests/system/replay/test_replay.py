"""No mechanism distinguishes neighbours by a sum or by anything public; and bugs of all kinds are detected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpvision.audit.recording import record
from dpvision.audit.replay import compare, first_difference
from dpvision.core import noise
from dpvision.core.events import Gaussian
from dpvision.core.keys import Key
from dpvision.errors import ConfigError
from tests.one_thread import one_thread
from tests.system.replay.mechanisms import CLASSES, MECHANISMS, RUNS, WIDTH, charged
from tests.system.replay.neighbours import KINDS, make_records, one_more
from tests.system.replay.pairs import pairs, replay_pairs
from tests.system.replay.quartets import ROUNDING, interaction, interactions

assert one_thread
KEY = Key.for_tests("own")
PAIRS, RUN_PAIRS = 8, 2  # pairs of a mechanism in the short form; whole runs take longer


@pytest.mark.parametrize("name", MECHANISMS)
def test_neighbours_are_indistinguishable(name: str) -> None:
    """A selection of all pairs, a different one for each mechanism."""
    mechanism, place = MECHANISMS[name], list(MECHANISMS).index(name)
    every = list(pairs(mechanism))
    wanted = RUN_PAIRS if name in RUNS else PAIRS
    selection = [every[(place + i * (len(every) // wanted + 1)) % len(every)] for i in range(wanted)]
    count, _, violations = replay_pairs(mechanism, selection)
    assert count == wanted and not violations


def test_the_short_form_has_hundreds_of_pairs() -> None:
    assert len(MECHANISMS) * PAIRS - len(RUNS) * (PAIRS - RUN_PAIRS) >= 400


@pytest.mark.slow
def test_neighbours_are_indistinguishable_in_5000_pairs() -> None:
    """All kinds, sizes and both directions; and no sensitivity is far above what a neighbour attains."""
    counts, moved, violations = {}, {}, []
    for name, mechanism in MECHANISMS.items():
        counts[name], moved[name], texts = replay_pairs(mechanism, pairs(mechanism, most_sizes=mechanism.most_sizes))
        violations += [f"{name}: {text}" for text in texts]
    print(f"{sum(counts.values())} pairs, largest move {max(moved.values())}")
    assert not violations
    assert sum(counts.values()) >= 5_000
    assert min(moved.values()) > 0.5 and max(moved.values()) <= 1 + noise.ARITHMETIC_SLACK


@pytest.mark.slow
def test_no_unit_changes_the_contribution_of_another() -> None:
    """Three quartets of every mechanism."""
    moved = {name: max(interactions(mechanism, turns=3)) for name, mechanism in MECHANISMS.items()}
    assert max(moved.values()) <= ROUNDING, moved


# Mechanisms written for these tests


def _clipped(rows: np.ndarray) -> np.ndarray:
    good = rows[np.isfinite(rows).all(axis=1)]
    with np.errstate(over="ignore"):  # a warning would be an error in these tests, and reveal the record
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


def _charged_differently(rows: np.ndarray) -> list[np.ndarray]:
    """The charged number of noise draws, but of another sigma."""
    charged(Gaussian(2.0))
    charged(Gaussian(50.0, 9))
    return [_noisy(_clipped(rows), step) for step in range(10)]


def _charged_by_another(rows: np.ndarray) -> np.ndarray:
    charged(Gaussian(50.0))
    first = _noisy(_clipped(rows))
    charged(Gaussian(2.0))
    return first


def _revealing_error(rows: np.ndarray) -> None:
    _sound(rows)
    raise ValueError(f"{len(rows)} rows are too few")


def _always_an_error(rows: np.ndarray) -> None:
    raise SystemExit("broken")


BUGS: dict[str, tuple[Callable[[np.ndarray], object], str]] = {
    "not clipped": (lambda rows: _noisy(np.nan_to_num(rows).sum(axis=0)), "sum"),
    "no guard against NaN": (lambda rows: _noisy(rows.sum(axis=0)), "error"),
    "divided by the number of records": (lambda rows: _noisy(_clipped(rows)) / len(rows), "output"),
    "the number of records is returned": (lambda rows: (_sound(rows), len(rows)), "output"),
    "no step on few records": (lambda rows: _sound(rows) if len(rows) > 3 else np.zeros(WIDTH), "noise draws"),
    "one step for each record": (lambda rows: [_noisy(_clipped(rows), i) for i in range(len(rows))], "noise draws"),
    "the same noise twice": (lambda rows: (_noisy(_clipped(rows)), _noisy(_clipped(rows[:2]))), "noise"),
    "sensitivity from the data": (
        lambda rows: _noisy(_clipped(rows), sensitivity=1 + len(rows)),
        "sensitivity",
    ),
    "sigma from the data": (lambda rows: _noisy(_clipped(rows), sigma=1 + len(rows)), "sigma"),
    "shape from the data": (lambda rows: _noisy(np.full(len(rows), 0.1)), "shape"),
    "charged afterwards": (_uncharged, "account"),
    "two releases, one charged": (_overspent, "account"),
    "another sigma than the one charged for most": (_charged_differently, "account"),
    "only another sigma is charged before": (_charged_by_another, "account"),
    "an error that reveals a record": (_revealing_error, "error"),
    "an error on any data": (_always_an_error, "error"),
}


def test_a_sound_mechanism_has_no_violation() -> None:
    records = make_records(3, (WIDTH,), classes=CLASSES)
    for kind in KINDS:
        more = one_more(records, kind, classes=CLASSES)
        assert not compare(_sound, records.x, more.x) and not compare(_sound, more.x, records.x)


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bugs_are_detected_and_named(name: str) -> None:
    mechanism, what = BUGS[name]
    records = make_records(3, (WIDTH,), classes=CLASSES)
    names = set()
    for kind in KINDS:
        names |= {
            violation.what for violation in compare(mechanism, records.x, one_more(records, kind, classes=CLASSES).x)
        }
    assert what in names


COUPLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "clipped to the median length": lambda rows: np.median(np.linalg.norm(rows, axis=1)) * rows,
    "scaled by the largest": lambda rows: 0.01 * rows / np.abs(rows).max(),
}


def _influence(shaped: Callable[[np.ndarray], np.ndarray]) -> float:
    """The influence of one row on the contribution of another, at lengths that are never clipped."""
    rows = make_records(4, (WIDTH,), classes=CLASSES).x / 100
    quartet = [rows.copy() for _ in range(4)]
    for number, changed in enumerate(((), (1,), (3,), (1, 3))):
        for place in changed:
            quartet[number][place] *= -3.0
    first = record(lambda x: _noisy(_clipped(shaped(x))), quartet[0])
    later = [record(lambda x: _noisy(_clipped(shaped(x))), x, like=first) for x in quartet[1:]]
    return interaction((first, later[0]), (later[1], later[2]))


def test_rows_that_influence_each_other_are_detected_even_if_nothing_is_clipped() -> None:
    assert _influence(lambda rows: rows) <= ROUNDING
    for name, shaped in COUPLED.items():
        assert _influence(shaped) > 100 * ROUNDING, name


def test_noise_from_the_stream_of_the_sampler_is_detected() -> None:
    def sampling_and_noise(rows: np.ndarray) -> np.ndarray:
        KEY.stream("sampling", step=0).words(len(rows))
        stream = KEY.stream("sampling", step=0)
        return noise.add_noise(_clipped(rows), stream, sensitivity=1.0, sigma=2.0)

    rows = make_records(3, (WIDTH,), classes=CLASSES).x
    assert {v.what for v in compare(sampling_and_noise, rows, rows[:2])} == {"noise"}


def test_noise_smaller_than_charged_is_detected() -> None:
    def fewer(rows: np.ndarray) -> np.ndarray:
        charged(Gaussian(2.0))
        return _noisy(_clipped(rows), sigma=1.0)

    rows = make_records(3, (WIDTH,), classes=CLASSES).x
    assert {v.what for v in compare(fewer, rows, rows[:2])} == {"account"}


def test_the_path_is_the_same_and_the_noise_is_real() -> None:
    rows = make_records(4, (WIDTH,), classes=CLASSES).x
    before = record(_sound, rows)
    after = record(_sound, rows[:3], like=before)
    assert first_difference(before.outcome, after.outcome) is None
    assert not np.array_equal(before.calls[0].total, after.calls[0].total)
    assert 0.1 < np.abs(before.calls[0].result - before.calls[0].total).max() < 20
    assert noise.add_noise.__module__ == "dpvision.core.noise" and Key.fresh().private, "all patches are removed"


def test_differences_are_found_at_any_depth() -> None:
    assert first_difference({"a": [1.0, float("nan")]}, {"a": [1.0, float("nan")]}) is None
    for other in ({"a": [1.0, 2.0]}, {"b": [1.0]}, {"a": [1.0]}, {"a": (1.0, 3.0)}, {"a": [np.zeros(1), 3.0]}):
        assert first_difference({"a": [1.0, 3.0]}, other)
    assert first_difference(np.zeros(3), np.zeros(3, np.float32)) and first_difference(np.zeros(1), -np.zeros(1))


def test_an_unknown_kind_of_record_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a kind of uint8"):
        one_more(make_records(2, (4, 4, 1), classes=3, dtype=np.uint8), "nan", classes=3)
