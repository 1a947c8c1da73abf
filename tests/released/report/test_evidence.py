"""The officer's document: each answer rests on the card, nothing is asserted that it does not show, text stays text."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_folder import EVENTS, NAME, account, card_of, make
from test_report_files import HOSTILE, Page

from dpvision.audit import audit_file
from dpvision.core import accountant
from dpvision.core.events import Gaussian
from dpvision.released.report import card, evidence, tables
from dpvision.settings.figures import upper
from dpvision.storage.run_folder import Run
from tests.audit.test_audit_file import ONE_RUN
from tests.system.docs.examples import call


def items(made: dict[str, Any]) -> list[evidence.Item]:
    return [*evidence.nist(made), *evidence.edpb(made)]


def everything(made: dict[str, Any]) -> str:
    return json.dumps(evidence.collect(made))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small release, made by the verb."""
    from dpvision.cli.release import release as make_release

    place = tmp_path_factory.mktemp("evidence")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPVISION_HOME", str(place / "home"))
        patch.delenv("DPVISION_TEST_KEY", raising=False)
        make_release("digits", epsilon=3.0, encoder="pixels", rows=200, out=place / "released")
    return place / "released"


@pytest.fixture(scope="module")
def release(released: Path) -> dict[str, Any]:
    return dict(json.loads((released / "card.json").read_text()))


def test_every_answer_names_entries_that_the_card_has(
    private_run: Run, fixed_key_run: Run, release: dict[str, Any]
) -> None:
    for made in (card_of(private_run), card_of(fixed_key_run), release):
        for item in items(made):
            assert (item.answer is None) == (item.sources == ()), item
            assert item.answer is not None or item.left, item
            for source in item.sources:
                value: Any = made
                for name in source.split("."):
                    assert name in value, (item.question, source)
                    value = value[name]


def test_figures_are_those_of_the_card(private_run: Run) -> None:
    made = card_of(private_run)
    text = everything(made)
    assert f"Epsilon {upper(made['guarantee']['epsilon'])} at delta 1e-05" in text
    assert f"epsilon is at most {upper(made['meaning']['replace_one_epsilon'])}" in text
    assert "200 steps at sampling rate 0.1, sigma 2" in text and "norm of at most 1" in text
    entry = evidence.registry(made)
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": made["guarantee"]["epsilon"], "delta": 1e-5}
    assert entry["basic"]["name"] is None and entry["deployment_model"]["model_name"] == "Central"
    exact = card(make(private_run.folder.parent / "exact", event=Gaussian(2.0)), None)
    assert evidence.registry(exact)["privacy_loss"]["privacy_parameters"]["rho"] == 0.125
    third = card(make(private_run.folder.parent / "third", event=Gaussian(3.0)), None)
    stated = [everything(third), *(f"mu {value}, {note}" for _, value, note in tables.accountant(third))]
    assert "mu 0.3334, which is zCDP with rho 0.0556" in stated[0], "an upper bound is rounded up"
    for value in ("0.3334", "0.0556"):
        assert any(text.startswith(f"mu {value}, ") and "the ideal Gaussian" in text for text in stated[1:])


@pytest.mark.parametrize("unit", ["image", "person"])
def test_a_public_number_of_units_is_not_called_unbounded(unit: str, tmp_path: Path) -> None:
    read = make(tmp_path / "read", config={"unit": unit}, read_off=[f"number of {unit}s"])
    declared = make(tmp_path / "declared", config={"unit": unit})
    answers = {}
    for run in (read, declared):
        (answer,) = (x.answer for x in evidence.nist(card(run, None)) if "neighbours" in x.question)
        answers[run.folder.name] = answer or ""
    assert answers["declared"].startswith("Unbounded: add or remove one unit.")
    assert "Unbounded" not in answers["read"] and "replaced by zero; the number of units is public" in answers["read"]
    assert f"the number of {unit}s is not protected" in answers["read"]


def test_an_answer_changes_with_what_the_run_shows(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    before = card(run, None)
    assert "No audit was made" in everything(before) and "canaries show" not in everything(before)
    assert "no ledger was read" in everything(before) and "person" not in before["unit"]
    proved = accountant.epsilon(EVENTS[0], 1e-5)
    audit_file.write_section(run.folder, "one_run", ONE_RUN | {"epsilon_proved": proved})
    after = card(run, account())
    assert "No audit was made" not in everything(after) and "canaries show" in everything(after)
    assert "Account a0736a507830ef2b: 1 charge" in everything(after)
    person = card(make(tmp_path / "person", config={"unit": "person"}), None)
    assert "Someone with several images" not in everything(person) and '"User-level"' in everything(person)
    lost = {**before, "accuracy": None}
    assert "there is no test split" in everything(lost) and "Test accuracy 9" not in everything(lost)
    assert evidence.count(after)["answered"] > evidence.count(before)["answered"]


def test_without_a_guarantee_nothing_is_claimed(fixed_key_run: Run, tmp_path: Path) -> None:
    for made in (card_of(fixed_key_run), card(make(tmp_path / "loud", event=Gaussian(0.02)), None)):
        text = everything(made)
        assert made["status"].startswith("NOT PRIVATE") and made["status"] in text
        claims = (
            r"[Ee]psilon [\d.]+ at delta",
            "finds at most",
            "becomes at most",
            "The bound",
            "These bounds",
            "zCDP",
        )
        for claim in claims:
            assert not re.search(claim, text), claim
        assert "Differential privacy" not in {x.answer.split(".")[0] for x in items(made) if x.answer}
        assert evidence.registry(made)["dp_variant"]["variant_name"] is None
        assert 'class="banner"' in evidence.render(made)


def test_what_software_cannot_know_is_left_to_people(private_run: Run) -> None:
    left = " ".join(x.question for x in items(card_of(private_run)) if x.state == evidence.NOT_ANSWERED)
    for topic in (
        "small enough",
        "collected",
        "stored",
        "impact assessment",
        "lawfully",
        "who gets",
        "sources of data",
    ):
        assert topic in left.lower(), topic
    assert "is anonymous" not in everything(card_of(private_run))


def test_registry_and_metadata_are_yaml(private_run: Run, release: dict[str, Any]) -> None:
    for made in (card_of(private_run), release):
        entry = evidence.registry(made)
        assert yaml.safe_load(evidence.as_yaml(entry)) == entry
        assert "differential-privacy" in evidence.metadata(made)["tags"]
    assert "dp-sgd" in evidence.metadata(card_of(private_run))["tags"]
    assert evidence.registry(release)["basic"]["data_product_type"] == "Synthetic data"


def test_the_page_is_one_file_and_hostile_names_are_text(tmp_path: Path) -> None:
    run = make(tmp_path / "run", class_names=HOSTILE, run=HOSTILE[0], config={"classes": (*HOSTILE[:6],)})
    made = card(run, account(run=HOSTILE[0]))
    made["licence"] = HOSTILE[1]
    text = evidence.render(made)
    page = Page(text)
    assert page.open == [] and not {"script", "img", "link"} & {tag for tag, _ in page.tags}
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    for shown in re.findall(r"<code>(.*?)</code>", text, re.DOTALL):
        assert "<" not in shown


def test_the_verb_writes_the_document_and_the_card_that_it_rests_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(tmp_path / "run")
    assert call(["evidence", str(run.folder), "--json"], monkeypatch) == 0
    printed = json.loads(capsys.readouterr().out)
    assert not (run.folder / "card.json").exists() and not (run.folder / "evidence.html").exists()
    assert call(["evidence", str(run.folder)], monkeypatch) == 0
    assert printed == json.loads(everything(card_of(run)))
    text = (run.folder / "evidence.html").read_text()
    assert NAME in text and "ward-7" not in text
    assert call(["evidence", str(tmp_path)], monkeypatch) == 2


@pytest.mark.parametrize("entry", [{"features": {}}, {"n": "many"}, {"image_shape": 3}, {"tuning": 7}])
def test_a_forged_card_of_a_release_is_one_clear_error(
    entry: dict[str, Any],
    released: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(released, tmp_path / "copy"))
    made = json.loads((folder / "card.json").read_text())
    assert call(["evidence", str(folder)], monkeypatch) == 0
    (folder / "card.json").write_text(json.dumps(made | entry))
    (folder / "evidence.html").unlink()
    code = call(["evidence", str(folder)], monkeypatch)
    if "tuning" in entry:  # is computed, not taken from the file
        assert code == 0 and "not counted" in (folder / "evidence.html").read_text()
    else:
        assert code == 3 and "card.json: not a valid card" in capsys.readouterr().err
        assert not (folder / "evidence.html").exists()
