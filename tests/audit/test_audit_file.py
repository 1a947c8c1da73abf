"""audit.json is accepted only as an audit writes it: it is released, and a card quotes it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dpvision.audit import audit_file
from dpvision.errors import DataError

BOTH = {"epsilon_proved": 3.0, "epsilon_at_least": 0.5, "delta": 1e-5, "confidence": 0.95, "canaries": 100, "refuted": False}  # fmt: skip
ONE_RUN = BOTH | {"guesses": 40, "right": 25}
MECHANISM = BOTH | {
    "epsilon_tested": 2.5,
    "mu": {"estimate": 0.4, "low": 0.3, "high": 0.5, "claimed": 0.45},
    "profile": {"refuted": False, "epsilon": 0.1, "claimed": 0.2, "shown": 0.1, "threshold": -1.5, "guess": "with", "confidence": 0.975},
}  # fmt: skip


def _write(folder: Path, whole: Any) -> None:
    (folder / "audit.json").write_text(whole if isinstance(whole, str) else json.dumps(whole))


def test_sections_are_read_as_written_and_do_not_replace_each_other(tmp_path: Path) -> None:
    assert audit_file.read_sections(tmp_path) == {}
    audit_file.write_section(tmp_path, "mechanism", MECHANISM)
    audit_file.write_section(tmp_path, "one_run", ONE_RUN)
    assert audit_file.read_sections(tmp_path) == {"mechanism": MECHANISM, "one_run": ONE_RUN}
    audit_file.write_section(tmp_path, "one_run", ONE_RUN | {"epsilon_proved": None})
    assert audit_file.read_sections(tmp_path)["mechanism"] == MECHANISM


@pytest.mark.parametrize("bound, refuted", [(2.4, False), (2.6, True), (3.5, True)])
def test_a_bound_above_the_proved_or_tested_epsilon_is_refuted_whatever_the_file_states(
    bound: float, refuted: bool, tmp_path: Path
) -> None:
    _write(tmp_path, {"format": audit_file.FORMAT, "mechanism": MECHANISM | {"epsilon_at_least": bound}})
    assert audit_file.read_sections(tmp_path)["mechanism"]["refuted"] is refuted


@pytest.mark.parametrize(
    "bound, proved, tested, refuted",
    [
        ((2.4, 2.9), 3.0, 2.5, (False, False)),
        ((2.6, 3.1), 3.0, 2.5, (True, True)),
        ((3.2, 2.9), 3.0, 9.0, (False, False)),  # more noise before the last settings, which were tested
        ((9.1, 2.9), 3.0, 9.0, (True, False)),
        ((50.0, 50.0), math.inf, math.inf, (False, False)),  # nothing is claimed
    ],
)
def test_a_bound_is_judged_by_the_claim_of_the_run(
    bound: tuple[float, float], proved: float, tested: float, refuted: tuple[bool, bool], tmp_path: Path
) -> None:
    proved_field = {"epsilon_proved": audit_file.finite_or_none(proved)}
    lenient = MECHANISM | proved_field | {"epsilon_at_least": bound[0], "epsilon_tested": 1e5}
    _write(
        tmp_path,
        {
            "format": audit_file.FORMAT,
            "mechanism": lenient,
            "one_run": ONE_RUN | proved_field | {"epsilon_at_least": bound[1]},
        },
    )
    sections = audit_file.read_and_judge(tmp_path, proved=proved, tested=tested, delta=1e-5)
    assert (sections["mechanism"]["refuted"], sections["one_run"]["refuted"]) == refuted


@pytest.mark.parametrize(
    "change",
    [{"epsilon_proved": None}, {"epsilon_proved": 60.0}, {"epsilon_proved": 2.9}, {"delta": 1e-9}, {"delta": 0.5}],
)
@pytest.mark.parametrize("name", ["mechanism", "one_run"])
def test_a_file_with_another_claim_belongs_to_another_run(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    both: dict[str, Any] = {"mechanism": MECHANISM, "one_run": ONE_RUN}
    of = {"proved": 3.0, "tested": 2.5, "delta": 1e-5}
    _write(tmp_path, {"format": audit_file.FORMAT, **both})
    assert audit_file.read_and_judge(tmp_path, **of) == both
    assert audit_file.read_and_judge(tmp_path, **of | {"proved": 3.002}) == both, "another version of the accountant"
    _write(tmp_path, {"format": audit_file.FORMAT, **both, name: both[name] | change})
    with pytest.raises(DataError, match=r"audit\.json: belongs to another run"):
        audit_file.read_and_judge(tmp_path, **of)
    with pytest.raises(DataError, match="belongs to another run"):
        audit_file.read_and_judge(tmp_path, **of | {"proved": math.inf})


HOSTILE: list[Any] = [
    "[]",
    "{",
    "{}",
    {"format": "other", "one_run": ONE_RUN},
    {"one_run": ONE_RUN},
    *({"format": audit_file.FORMAT, "one_run": one} for one in ([], "x", 3, {}, None)),
    {"format": audit_file.FORMAT, "one_run": ONE_RUN, "extra": "a name"},
    *(
        {"format": audit_file.FORMAT, "one_run": ONE_RUN | change}
        for change in (
            {"extra": "a name"},
            {"epsilon_at_least": True},
            {"epsilon_at_least": "٣"},
            {"epsilon_at_least": -0.1},
            {"epsilon_at_least": 1e300},
            {"epsilon_at_least": float("nan")},
            {"epsilon_at_least": 10**400},
            {"epsilon_proved": "3"},
            {"canaries": -5},
            {"canaries": 10**12},
            {"canaries": 3.0},
            {"refuted": "false"},
            {"refuted": 1},
            {"right": 41},
            {"right": -1},
            {"confidence": 1.0},
            {"delta": 0.0},
        )
    ),
    {"format": audit_file.FORMAT, "mechanism": MECHANISM | {"mu": []}},
    {"format": audit_file.FORMAT, "mechanism": MECHANISM | {"profile": {**MECHANISM["profile"], "guess": "a name"}}},  # type: ignore[dict-item]
]


@pytest.mark.parametrize("whole", HOSTILE)
def test_any_other_content_is_refused_and_left_unchanged(whole: Any, tmp_path: Path) -> None:
    _write(tmp_path, whole)
    before = (tmp_path / "audit.json").read_bytes()
    with pytest.raises(DataError, match=r"audit\.json"):
        audit_file.read_sections(tmp_path)
    with pytest.raises(DataError, match=r"audit\.json"):
        audit_file.write_section(tmp_path, "mechanism", MECHANISM)
    assert (tmp_path / "audit.json").read_bytes() == before
