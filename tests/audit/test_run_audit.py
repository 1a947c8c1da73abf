"""`dpvision audit` of a run: bounds next to the claim on the card; results from private images stay in operator/."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dpvision.audit import audit_file, one_run, training_canaries
from dpvision.audit.bounds import judge
from dpvision.audit.canaries import CanaryRandom
from dpvision.cli.app import app
from dpvision.core import accountant
from dpvision.core.events import Gaussian, from_json
from dpvision.errors import ConfigError, DataError
from dpvision.private.training.prepare import prepare
from dpvision.private.training.train import begin, proceed, reopen
from dpvision.released.report.cards import audits_on_card, read_audits
from dpvision.settings.training import Config, merge
from dpvision.storage import run_folder
from tests.audit.fixed_randomness import fixed_randomness
from tests.system.runs.commands import write_data

pytestmark = pytest.mark.usefixtures("fixed")


def _run(*words: str | Path) -> None:
    app([str(w) for w in words], exit_on_error=False, print_error=False, result_action="return_value")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(home, folder) of one run with canaries, for all tests of this file."""
    folder = tmp_path_factory.mktemp("audited")
    with pytest.MonkeyPatch.context() as patch, fixed_randomness("audited"):
        patch.setenv("DPVISION_HOME", str(folder / "home"))
        write_data(folder / "data.npz")
        words = ("--epsilon", "3", "--steps", "30", "--batch", "100", "--canaries", "200", "--out", folder / "run")
        _run("train", folder / "data.npz", *words)
    return folder / "home", folder


def test_an_audit_writes_its_results_to_the_run_and_its_card(
    finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, folder = finished
    monkeypatch.setenv("DPVISION_HOME", str(home))
    _run("audit", folder / "run", folder / "data.npz", "--runs", "3000", "--confidence", "0.999")
    output, run = capsys.readouterr().out, run_folder.Run(folder / "run")
    assert (
        "epsilon at most 3.00" in output
        and "What this means" in output
        and output.startswith("The attack found no more than the guarantee allows: it shows")
        and "not refuted" in output
        and "not for release" in output
    )
    sections = run_folder.read_json(run.folder / "audit.json")
    mechanism, carried = sections["mechanism"], sections["one_run"]
    assert mechanism["epsilon_at_least"] <= mechanism["epsilon_proved"] < 3 and mechanism["canaries"] == 3000
    assert mechanism["mu"]["low"] < mechanism["mu"]["claimed"] and carried["canaries"] == 200
    assert b"allowed by the claim" in (run.folder / "audit.svg").read_bytes()
    card = json.loads((run.folder / "card.json").read_text())
    assert card["audit"].keys() == {"mechanism", "one_run"} and card["config"]["canaries"] == 200
    text = (run.folder / "card.md").read_text()
    assert "canaries in the training" in text and "3,000 canaries; not refuted" in text
    assert "3,000 canaries; not refuted" in (run.folder / "report.html").read_text()


def test_results_from_private_images_are_only_in_the_operator_folder(finished: tuple[Path, Path]) -> None:
    run = run_folder.Run(finished[1] / "run")
    membership = run_folder.read_json(run.operator / "membership.json")
    assert 0.3 < membership["auc"] < 0.7 and (membership["members"], membership["others"]) == (200, 60)
    released = [p for p in run.folder.iterdir() if p.is_file()]
    assert not any(p.name.startswith("membership") for p in released)
    for path in released:
        text = path.read_text(errors="replace")
        assert repr(membership["auc"])[:7] not in text and "by_class" not in text, path
        assert run.facts()["canaries"] not in text, path
    assert os.stat(run.operator).st_mode & 0o077 == 0


def test_an_audit_without_the_ledger_of_the_run_or_with_other_data_writes_nothing(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = finished
    before = {path: path.read_bytes() for path in (folder / "run").iterdir() if path.is_file()}
    assert folder / "run" / "audit.json" in before
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match=r"Nothing was written\. Fix: set DPVISION_HOME"):
        _run("audit", folder / "run", "--runs", "100")
    monkeypatch.setenv("DPVISION_HOME", str(home))
    with pytest.raises(DataError, match="digits"):
        _run("audit", folder / "run", "digits", "--runs", "100")
    assert before == {path: path.read_bytes() for path in (folder / "run").iterdir() if path.is_file()}


def test_less_noise_than_in_the_settings_is_refuted() -> None:
    config = Config(batch=100, n=200, steps=20, sigma=3.0)
    assert not judge(
        training_canaries.score_canaries(config, canaries=4000, rng=CanaryRandom("clean")), delta=1e-5
    ).refuted
    assert judge(
        training_canaries.score_canaries(config, canaries=4000, rng=CanaryRandom("cut", 0.8)), delta=1e-5
    ).refuted


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_style": "per-layer", "probe_steps": 2},
        {"k_base": 2, "k_self": 1, "augment": ("crop", "flip", "jitter")},
        {"k_base": 1, "k_diff": 2, "synthetic": "x"},
        {"assist": "weights", "synthetic": "x"},
        {"assist": "mirror", "synthetic": "x"},
        {"clip_style": "automatic", "clip": 0.01},
        {"part": "centred-head"},
    ],
    ids=str,
)
def test_every_kind_of_training_can_be_audited(changes: dict) -> None:
    config = Config(batch=20, n=80, steps=4, sigma=2.0, **changes)
    scores = training_canaries.score_canaries(config, canaries=100, rng=CanaryRandom("kinds"))
    assert len(scores.without) == len(scores.with_record) == 50
    assert scores.with_record.mean() > scores.without.mean()


def test_a_run_that_cannot_be_audited_is_refused_with_a_reason(
    tmp_path: Path, finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(finished[0]))
    with pytest.raises(ConfigError, match="not the folder of a run"):
        _run("audit", tmp_path)
    with pytest.raises(ConfigError, match="fewer than 100"):
        _run("audit", finished[1] / "run", "--runs", "10")
    with pytest.raises(ConfigError, match="confidence"):
        _run("audit", finished[1] / "run", "--confidence", "1.5")
    with pytest.raises(ConfigError, match="sigma are required"):
        training_canaries.training_of(Config(batch=1, n=2, steps=1))


def test_a_refuted_claim_ends_with_the_exit_code_of_a_refusal(
    finished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mechanism in the code has too little noise: the audit reports it, and so does the card."""
    from dpvision.core import noise

    home, folder = finished
    monkeypatch.setenv("DPVISION_HOME", str(home))
    original = noise.add_noise
    quiet = lambda total, stream, *, sensitivity, sigma: original(  # noqa: E731
        total, stream, sensitivity=sensitivity, sigma=sigma / 2
    )
    monkeypatch.setattr(noise, "add_noise", quiet)
    with pytest.raises(SystemExit) as ended:
        _run("audit", folder / "run", "--runs", "2000")
    assert ended.value.code == 4 and "REFUTED" in capsys.readouterr().out
    assert "REFUTED" in (folder / "run" / "card.md").read_text()


def test_canaries_of_the_run_itself_are_in_the_file_and_on_the_card(tmp_path: Path) -> None:
    run = run_folder.Run(tmp_path)
    (tmp_path / "operator").mkdir()
    config, event = Config(batch=10, n=20, steps=3, sigma=3.0), Gaussian(5.0)
    assert audits_on_card(read_audits(tmp_path, event, config)) is None
    rng = np.random.default_rng(0)
    inside = rng.random(100) < 0.5
    one_run.audit_one_run(run, rng.normal(size=100), inside, event=event, delta=1e-5)
    section = audits_on_card(read_audits(tmp_path, event, config))
    assert section is not None and section["one_run"]["canaries"] == 100 and list(section) == ["one_run"]


def test_the_proved_epsilon_covers_all_steps_even_if_settings_changed_during_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the last settings alone, which claim less."""
    write_data(tmp_path / "data.npz")
    settings = {"epsilon": 3.0, "steps": 20, "batch": 100, "budget": 50.0}
    prepared = prepare(str(tmp_path / "data.npz"), merge(Config(), settings, source="test"))
    run, left = begin(prepared, tmp_path / "run", test_key="audit"), iter([False] * 15 + [True])
    assert not proceed(run, prepared, stop=lambda: next(left)).complete
    assert proceed(run, reopen(run, {"sigma": 20.0})).complete
    _run("audit", run.folder, "--runs", "200")
    section, event = audit_file.read_sections(run.folder)["mechanism"], from_json(run.facts()["event"])
    assert section["epsilon_proved"] == accountant.epsilon(event, 1e-5) > 4 * section["epsilon_tested"]
    assert "only the last settings" in " ".join(capsys.readouterr().out.split())
