"""Every card fits the published schema; the Hub can read its head; weights carry it; phases and choices are stated."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from run_folder import DATA, EVENT, NAME, account, card_of, make, released, weigh

from dpvision.audit import audit_file
from dpvision.core import accountant, adaptive
from dpvision.core.events import Composed, Gaussian, PoissonGaussian, to_json
from dpvision.errors import DataError
from dpvision.released import evaluation
from dpvision.released.report import card, guarantee, on_weights, wording, write
from dpvision.settings.training import Config
from dpvision.storage.run_folder import Run
from tests.audit.test_audit_file import ONE_RUN

SCHEMA = json.loads((files("dpvision.released.report") / "card.schema.json").read_text("utf-8"))
ROOT = Path(__file__).parents[3]


def _errors(value: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(value)]


def test_the_published_schema_is_the_packaged_one() -> None:
    assert json.loads((ROOT / "docs" / "card.schema.json").read_text("utf-8")) == SCHEMA
    Draft202012Validator.check_schema(SCHEMA)


def test_every_card_fits_the_schema(tmp_path: Path, private_run: Run, fixed_key_run: Run) -> None:
    cards = [card_of(private_run), card_of(fixed_key_run)]
    before = Gaussian(9.0)
    both = to_json(Composed((before, EVENT)))
    public = {
        "pretrained": {"file": "w.safetensors", "digest": "d", "event": to_json(before), "learned_from": "noted"},
        "synthetic": {"file": "s.npz", "digest": "d", "images": 5},
    }
    config = {"unit": "person", "probe_steps": 40, "licence": "CC BY 4.0", "public_licence": "CC0"}
    run = make(tmp_path / "run", config=config, public=public, read_off=["number of persons"])
    run.write_facts(run.facts() | {"event": both})
    weigh(run)
    proved = accountant.epsilon(Composed((before, EVENT)), 1e-5)
    audit_file.write_section(run.folder, "one_run", ONE_RUN | {"epsilon_proved": proved})
    cards.append(card(run, account()))
    assert cards[-1]["phases"] and cards[-1]["probe"] and cards[-1]["audit"]
    assert any("licence: CC0" in line for line in cards[-1]["not_covered"])
    cards.append(card(make(tmp_path / "loud", event=Gaussian(0.02)), None))
    for made in cards:
        assert _errors(made) == []
        assert _errors(made | {"surprise": 1}) and _errors({k: v for k, v in made.items() if k != "guarantee"})
    assert _errors(cards[0] | {"status": "fairly private"})


def test_an_audit_is_held_against_the_run_and_not_against_itself(tmp_path: Path) -> None:
    run, proved = make(tmp_path / "run"), accountant.epsilon(EVENT, 1e-5)
    both = ONE_RUN | {"epsilon_proved": proved * 1.005, "epsilon_at_least": proved * 1.002}
    audit_file.write_section(run.folder, "one_run", both)
    assert (
        not audit_file.read_sections(run.folder)["one_run"]["refuted"]
        and card(run, None)["audit"]["one_run"]["refuted"]
    )
    audit_file.write_section(run.folder, "one_run", both | {"epsilon_proved": None})
    with pytest.raises(DataError, match="belongs to another run"):
        card(run, None)


def test_weights_say_the_guarantee_and_nothing_that_changes_later(private_run: Run) -> None:
    stated = on_weights(private_run.facts(), private_run.config())
    assert _errors(stated) == []
    whole = card_of(private_run)
    assert all(whole[key] == value for key, value in stated.items() if key != "format")
    assert not {"run", "data_set", "audit", "config", "accuracy"} & stated.keys()
    assert NAME not in json.dumps(stated) and DATA not in json.dumps(stated)


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        (None, {"license": "unknown"}),
        ("Apache-2.0", {"license": "apache-2.0"}),
        ('our own: "terms" #1\n- x', {"license": "other", "license_name": 'our own: "terms" #1�- x'}),
    ],
)
def test_the_head_of_the_card_is_yaml(private_run: Run, licence: str | None, expected: dict[str, str]) -> None:
    head = wording.as_yaml(wording.metadata_of_model(card_of(private_run) | {"licence": licence}))
    first, body, last = head.split("---")
    assert first == last == ""
    read = yaml.safe_load(body)
    assert {k: v for k, v in read.items() if k.startswith("license")} == expected
    assert read["library_name"] == "dpvision" and read["metrics"] == ["accuracy"]
    assert "differential-privacy" in read["tags"] and "not-private" not in read["tags"]


def test_the_card_begins_with_its_head(private_run: Run, fixed_key_run: Run) -> None:
    for run, private in ((private_run, True), (fixed_key_run, False)):
        _, head, text = released(run)["card.md"].split("---\n", 2)
        assert ("not-private" in yaml.safe_load(head)["tags"]) is not private
        assert text.strip().startswith("# Privacy card")


def test_phases_add_up_to_the_whole() -> None:
    config = Config(n=1000, batch=100, steps=200, sigma=2.0, probe_steps=40)
    earlier, changed = Gaussian(9.0), replace(EVENT, sigma=3.0, steps=50)
    result = guarantee.epsilon_by_phase(Composed((earlier, EVENT, changed)), config, before=1)
    assert [(p["name"], p["steps"]) for p in result] == [
        ("initial weights, trained privately", None),
        ("the head first", 40),
        ("all weights", 160),
        ("all weights", 50),
    ]
    wholes = [(earlier,), (earlier, replace(EVENT, steps=40)), (earlier, EVENT), (earlier, EVENT, changed)]
    for phase, events in zip(result, wholes, strict=True):
        assert phase["epsilon_so_far"] == pytest.approx(
            accountant.epsilon(adaptive.compose(events, config.delta), config.delta)
        )
    centred = guarantee.epsilon_by_phase(EVENT, Config(part="centred-head"), before=0)
    assert [(p["name"], p["steps"]) for p in centred] == [("mean of the features", 1), ("the head", 199)]


def test_settings_that_are_not_the_recipes_are_named(tmp_path: Path) -> None:
    usual = Config(epsilon=3.0).complete(1437)
    assert wording.chosen_by_hand(usual) == []
    assert wording.chosen_by_hand(replace(usual, lr=2.0, momentum=0.9)) == ["lr", "momentum"]
    assert wording.chosen_by_hand(replace(usual, seed=3, epsilon=1.0, examples=2)) == []
    small = replace(
        Config(recipe="scatter-linear", model="scatter-linear", steps=300, lr=5.0, momentum=0.9, clip=0.1), batch=50
    )
    assert wording.chosen_by_hand(small.complete(100)) == ["batch"], "the recipe's own batch is above n"
    assert wording.chosen_by_hand(replace(usual, recipe="mine")) is None
    stated = card(make(tmp_path / "run", config={"lr": 1.0}), None)["not_covered"]
    assert any("chosen by hand" in line and "lr" in line for line in stated)


@pytest.mark.parametrize("device", ["cpu", "auto", "cuda", "cuda:1"])
def test_a_run_on_an_accelerator_states_what_is_not_proved_there(device: str, tmp_path: Path) -> None:
    """In card.json, card.md and the report; the device of older runs is not stated, and a head is fitted by the host."""
    on_accelerator = device.startswith("cuda")
    run = make(tmp_path / "run", config={"device": device, "precision": "tf32"})
    write(run, account())
    files = [(run.folder / name).read_text("utf-8") for name in ("card.json", "card.md", "report.html")]
    for text in files:
        assert (
            f"accelerator ({device}, tf32)" in text and "not proved for its closed-source kernels" in text
        ) is on_accelerator
    assert _errors(json.loads(files[0])) == []
    head = card(make(tmp_path / "head", config={"device": device, "head": "descent"}), None)
    assert not any("accelerator" in line for line in head["not_covered"])


def test_references_are_what_was_measured() -> None:
    means: dict[str, list[float]] = {}
    for line in (ROOT / "benchmarks" / "trainings.jsonl").read_text().splitlines():
        content = json.loads(line)
        means.setdefault(content["title"].replace("_", ""), []).append(content["accuracy"])
    checked = 0
    for result in evaluation.RESULTS:
        lines = means.get(f"{result.data}, {result.recipe}, epsilon {result.epsilon:g}")
        if lines:
            assert len(lines) == result.runs and sum(lines) / len(lines) == pytest.approx(result.accuracy, abs=6e-5)
            checked += 1
    assert checked >= 12


def test_a_run_is_held_against_a_data_set_only_if_it_is_that_one() -> None:
    facts: dict[str, Any] = {"n": 50_000, "shape": [3, 32, 32], "classes": 10}
    assert evaluation.known("/data/CIFAR-10.npz", **facts) == "cifar10"
    assert list(evaluation.results("cifar10")) == ["patches", "scatter-linear"]
    for other in ({"n": 40_000}, {"shape": [3, 28, 28]}, {"classes": 9}, {"n": None}):
        assert evaluation.known("cifar10.npz", **facts | other) is None
    assert evaluation.known("/secret/ward-7/scans", **facts) is None and evaluation.known(7, **facts) is None
    assert isinstance(EVENT, PoissonGaussian)
