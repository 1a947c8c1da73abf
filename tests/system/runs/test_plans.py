"""Planned runs on the command line: entered in the ledger first, then run in any order, composed tightly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpvision.core import accountant
from dpvision.core.events import Composed, from_json
from dpvision.released.report import guarantee
from tests.system.runs.commands import run, write_data


def _account(data: Path, home: Path) -> dict[str, object]:
    code, out, err = run("ledger", data, "--json", home=home)
    assert code == 0, err
    return json.loads(out)


def test_two_planned_runs_cost_what_they_cost_together(tmp_path: Path) -> None:
    data, home = write_data(tmp_path / "data.npz"), tmp_path / "home"
    one = ("train", data, "--epsilon", 1, "--budget", 2, "--steps", 20)
    two = ("release", data, "--epsilon", 0.5)
    code, out, err = run(*one, "--plan", home=home)
    assert code == 0 and "Nothing is charged yet" in out, err
    code, out, err = run(*two, "--plan", home=home)
    assert code == 0 and out.count("planned: ") == 2, err
    assert _account(data, home)["spent"] == 0.0
    for command, name in ((two, "release"), (one, "run")):
        code, _, err = run(*command, "--out", tmp_path / name, home=home)
        assert code == 0, err
        account = _account(data, home)
        assert account["composition"] == guarantee.PLANNED
    charges = account["charges"]
    assert isinstance(charges, list) and len(charges) == 2
    together = accountant.epsilon(Composed(tuple(from_json(c["event"]) for c in charges)), 1e-5)
    assert account["spent"] == pytest.approx(together, abs=1e-9)
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert card["data_set"]["composition"] == card["guarantee"]["composition"] == guarantee.PLANNED
    code, _, err = run(
        "release", data, "--epsilon", 0.5, "--recipe", "neuromix", "--out", tmp_path / "later", home=home
    )
    assert code == 0, err
    assert _account(data, home)["composition"] == guarantee.CHOSEN_LATER


def test_a_plan_is_dropped_on_request(tmp_path: Path) -> None:
    data, home = write_data(tmp_path / "data.npz"), tmp_path / "home"
    assert run("train", data, "--epsilon", 1, "--plan", home=home)[0] == 0
    code, out, _ = run("ledger", data, home=home)
    assert code == 0 and "planned, charged with the next run" in out
    code, out, _ = run("ledger", data, "--drop-plan", home=home)
    assert code == 0 and "planned" not in out
