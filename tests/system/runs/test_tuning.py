"""A tuning is one event, on the ledger before its first trial; the best leaves, and nothing else of it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from dpvision.cli.train import write_report
from dpvision.core import accountant
from dpvision.core.events import Composed, PoissonGaussian, Tuned, from_json
from dpvision.core.keys import Key
from dpvision.data import load
from dpvision.errors import BudgetSpent, ConfigError, DataError, LedgerMismatch, PrivacyError
from dpvision.models.inputs import Inputs, accuracy
from dpvision.models.tasks import Task
from dpvision.private.accounts.accounts import choose
from dpvision.private.training import stopping, train, tune
from dpvision.private.training.charging import _trial_of
from dpvision.released.model import load_model
from dpvision.released.report import card, guarantee, write
from dpvision.settings.training import Config
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import ledger_of
from tests.one_thread import one_thread  # noqa: F401
from tests.system.runs import commands

DIGITS = Task("classes", 10)
SETTINGS = Config(model="linear", steps=4, full_batch=True, n=300, classes=10, size=(8, 8), channels=1, budget=4.0)
GRID = {"lr": [0.01, 4.0], "clip": [0.5, 1.0]}
TRIALS = 6


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """300 private digits, 100 public ones."""
    folder, digits = tmp_path_factory.mktemp("data"), load("digits")
    for name, rows in (("private", slice(0, 300)), ("public", slice(300, 400))):
        images, labels = digits.train.images[rows], digits.train.labels[rows]
        np.savez(folder / f"{name}.npz", train_images=images, train_labels=labels)
    return str(folder / "private.npz"), str(folder / "public.npz")


def prepared(parts: tuple[str, str], **changes: Any) -> tune.PreparedTuning:
    return tune.prepare(parts[0], replace(SETTINGS, **changes), GRID, score=parts[1], trials=5.0)


def test_it_is_one_event_and_the_best_alone_is_released(
    parts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping.Stopping, "draw", lambda _: TRIALS)
    result = prepared(parts)
    with monkeypatch.context() as patch:
        patch.setattr(
            run_folder, "remove_folder", lambda trials: trials.exists() and trials.rename(tmp_path / "trials")
        )
        run = tune.proceed(result, tmp_path / "run")
    account = ledger_of(result.first.fingerprint).account()
    (charge,) = account.charges
    assert charge.event == result.event and isinstance(charge.event, Tuned) and len(charge.event.trials) == 4
    assert 2.9 < accountant.epsilon(charge.event, 1e-5) <= 3 and account.spent() == result.epsilon
    # The best by accuracy on the public images, and its very weights.
    trials = [run_folder.Run(tmp_path / "trials" / str(k)) for k in range(1, TRIALS + 1)]
    scores = [accuracy(load_model(t.folder).model, Inputs(result.score), DIGITS) for t in trials]
    noted = run_folder.read_lines(run.operator / "trials.jsonl")
    assert [line["score"] for line in noted] == scores
    chosen = run.facts()["tuning"]
    assert chosen["score_of_the_chosen"] == max(scores)
    assert accuracy(load_model(run.folder).model, Inputs(result.score), DIGITS) == max(scores)
    # Weights and card claim the epsilon of the whole, not that of a trial.
    assert from_json(json.loads(safetensors.read(run.weights).header["event"])) == Composed((result.event,))
    write(run, account)
    made = card(run, account)
    assert made["guarantee"]["epsilon"] == result.epsilon > 1.5 * accountant.epsilon(result.event.trials[0], 1e-5)
    schema = json.loads((resources("dpvision.released.report") / "card.schema.json").read_text("utf-8"))
    assert list(Draft202012Validator(schema).iter_errors(made)) == []
    assert made["tuning"].startswith("counted") and not any("Tuning is not counted" in x for x in made["not_covered"])
    with pytest.raises(LedgerMismatch):
        card(run, replace(account, charges=(replace(charge, event=result.event.trials[0]),)))
    # No trial by itself can be taken for a private model, nor does the charge pay for anything more.
    for trial in trials:
        assert safetensors.read(trial.weights).header["private"] == run_folder.A_TRIAL
        with pytest.raises(DataError, match="a trial of a tuning"):
            train.prepare(parts[0], replace(SETTINGS, pretrained=str(trial.weights)))
    once_more = train.begin(result.first, run.operator / "trials" / "7", tuning_charge=charge)
    with pytest.raises(LedgerMismatch, match="not a trial of a tuning"):
        train.proceed(once_more, result.first, tuning_charge=charge)
    # How many trials there were is nowhere outside of operator/.
    top = {path.name for path in run.folder.iterdir()}
    assert top - {"operator"} == {
        *("config.toml", "weights.safetensors", "metrics.jsonl", "card.json", "card.md", "report.html", "ledger.jsonl")
    }
    monkeypatch.setattr(stopping.Stopping, "draw", lambda _: 1)
    (run.operator / "trials.jsonl").unlink()
    assert all(len(line["time"]) == 10 for line in guarantee.ledger_lines(account)), (
        "how long it took would be revealed"
    )
    assert card(run, account) == made
    with pytest.raises(ConfigError, match="cannot be resumed"):
        train.reopen(run)


def test_every_trial_is_of_the_candidate_that_was_drawn(
    parts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that was drawn before: candidates in turn would follow another law than the one that is charged."""
    result, drawn = prepared(parts), [2, 2, 0, 3, 2]
    rest = iter(drawn)

    def draw(limit: int) -> int:
        assert limit == len(result.candidates) == 4
        return next(rest)

    monkeypatch.setattr(stopping.Stopping, "draw", lambda _: len(drawn))
    monkeypatch.setattr(tune.secrets, "randbelow", draw)
    run = tune.proceed(result, tmp_path / "run")
    lines = run_folder.read_lines(run.operator / "trials.jsonl")
    tried = [{name: line[name] for name in GRID} for line in lines]
    assert tried == [result.given[number] for number in drawn]


def test_the_charge_comes_before_the_number_of_trials_is_drawn(
    parts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = prepared(parts)

    def drawn(_: object) -> int:
        assert ledger_of(result.first.fingerprint).account().charges[0].event == result.event
        raise KeyboardInterrupt

    monkeypatch.setattr(stopping.Stopping, "draw", drawn)
    with pytest.raises(KeyboardInterrupt):
        tune.proceed(result, tmp_path / "run")
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_an_interrupted_tuning_leaves_no_trial_and_no_key(
    parts: tuple[str, str], tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, kept, keys = prepared(parts), run_folder.Run(tmp_path / "kept"), own_home / "keys"

    def interrupt(*_: object) -> None:
        assert len(list(keys.iterdir())) == 1
        shutil.copytree(tmp_path / "run" / "operator" / "trials" / "1", kept.folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(train.metrics, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tune.proceed(result, tmp_path / "run")
    run = run_folder.Run(tmp_path / "run")
    assert not (run.operator / "trials").exists() and not run.weights.exists() and not list(keys.iterdir())
    # A trial that somebody kept is not gone on with.
    for go_on in (lambda: train.reopen(kept), lambda: train.proceed(kept, result.first)):
        with pytest.raises(ConfigError, match=f"trial of the tuning {run.facts()['run']}"):
            go_on()
    with pytest.raises(ConfigError, match="a new tuning"):
        card(run, None)


def test_what_a_kill_leaves_is_removed_by_what_opens_the_folder_next(
    parts: tuple[str, str], tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stopping.Stopping, "draw", lambda _: 1)
    result, run, other = prepared(parts), run_folder.Run(tmp_path / "run"), Key.fresh()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tune, "remove_trials", kill)
        tune.proceed(result, run.folder)
    trials = run.operator / "trials"
    assert trials.exists() and run.facts()["complete"] is False, "complete, there are no trials any more"
    # Of a trial that was under way, its key; and a state by other means names the key of another run.
    charge = ledger_of(result.first.fingerprint).account().charges[0]
    train.begin(result.first, trials / "2", tuning_charge=charge)
    other.write(run_folder.key_path("0123456789abcdef"))
    (trials / "3" / "operator").mkdir(parents=True)
    (trials / "3" / "operator" / "state.safetensors").write_bytes(safetensors.dump({}, {"key": "0123456789abcdef"}))
    assert len(list((own_home / "keys").iterdir())) == 2
    with run_folder.only_one(run), pytest.raises(ConfigError, match="another process"):
        train.reopen(run)
    assert trials.exists()
    with pytest.raises(ConfigError, match="cannot be resumed"):
        train.reopen(run)
    assert not trials.exists() and [p.stem for p in (own_home / "keys").iterdir()] == ["0123456789abcdef"]
    trials.mkdir()
    with pytest.raises(ConfigError, match="not finished"):
        write_report(run)
    assert not trials.exists()
    trials.symlink_to(tmp_path)
    with pytest.raises(DataError, match="is a link"):
        write_report(run)
    assert run.folder.exists()


def test_a_tuning_and_a_run_share_the_budget(
    parts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping.Stopping, "draw", lambda _: 1)
    result = prepared(parts)
    assert not (tune.proceed(result, tmp_path / "run").operator / "trials").exists(), "what was not paid for goes"
    with pytest.raises(BudgetSpent):
        tune.proceed(prepared(parts, budget=None), tmp_path / "again")
    with pytest.raises(ConfigError, match=r"--budget 9 .* has a budget of epsilon"):
        tune.proceed(prepared(parts, budget=9.0), tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert (tmp_path / "run").stat().st_mtime % 86_400 == 0, "how long it took would be revealed"
    more = train.prepare(parts[0], replace(SETTINGS, budget=None, epsilon=0.5))
    train.proceed(train.begin(more, tmp_path / "more"), more)
    spent = ledger_of(result.first.fingerprint).account().spent()
    assert result.epsilon < spent < result.epsilon + 0.6


def test_only_trials_that_were_charged_for_can_run(parts: tuple[str, str], tmp_path: Path) -> None:
    result = prepared(parts)
    accounts = choose(result.first.fingerprint, result.first.sketch)
    charge, _ = tune._charge(result, "run", accounts)
    account = ledger_of(result.first.fingerprint).account()
    trial, tuned = (
        result.event.trials[0],
        run_folder.create(tmp_path / "run", result.first.config, tune._facts(result, "run", accounts), b""),
    )
    here, elsewhere = run_folder.Run(tuned.operator / "trials" / "1"), run_folder.Run(tmp_path / "a" / "trials" / "1")
    assert _trial_of(here, charge, account, trial, id="x").event == trial
    assert isinstance(trial, PoissonGaussian)
    for place, paid, event in (
        (here, charge, replace(trial, sigma=trial.sigma * 0.9)),
        (here, replace(charge, id="forged"), trial),
        (elsewhere, charge, trial),
        (run_folder.Run(tuned.folder / "trials" / "1"), charge, trial),
    ):
        with pytest.raises(LedgerMismatch):
            _trial_of(place, paid, account, event, id="x")
    tuned.write_facts({**tuned.facts(), "complete": True})
    with pytest.raises(LedgerMismatch, match="not a trial of a tuning run in progress"):
        _trial_of(here, charge, account, trial, id="x")
    cheaper = replace(result, event=replace(result.event, epsilon=1.0))
    with pytest.raises(ConfigError, match="do not prove"):
        tune._charge(cheaper, "other", accounts)


def test_the_score_must_be_public(parts: tuple[str, str], tmp_path: Path) -> None:
    private, public = parts
    with pytest.raises(ConfigError, match="pixel for pixel"):
        tune.prepare(private, SETTINGS, GRID, score=private, trials=5.0)
    other = train.prepare(public, replace(SETTINGS, n=100))
    train.proceed(train.begin(other, tmp_path / "other"), other)
    with pytest.raises(PrivacyError, match="they are private"):
        prepared(parts)
    with np.load(public) as arrays:  # the same in another type
        images, labels = arrays["train_images"].astype(np.float32) / 255, arrays["train_labels"]
    np.savez(tmp_path / "floats.npz", train_images=images, train_labels=labels)
    with pytest.raises(PrivacyError, match="they are private"):
        prepared((private, str(tmp_path / "floats.npz")))


@pytest.mark.parametrize(
    "grid, message",
    [
        ({"sigma": [1.0, 2.0]}, "sigma cannot be tuned"),
        ({"epsilon": [1.0, 2.0]}, "epsilon cannot be tuned"),
        ({"lr": [1.0]}, "1 candidates"),
        ({"lr": []}, "no values"),
        ({}, "1 candidates"),
        ({"lr": ["much", 1.0]}, "lr"),
    ],
)
def test_grids_that_make_no_sense_are_refused(parts: tuple[str, str], grid: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune.prepare(parts[0], SETTINGS, grid, score=parts[1], trials=5.0)


def test_candidates_of_other_steps_have_other_noise(parts: tuple[str, str]) -> None:
    features = tune.prepare(parts[0], SETTINGS, {"steps": [2, 8]}, score=parts[1], trials=5.0)
    few, many = features.event.trials
    assert isinstance(few, PoissonGaussian) and isinstance(many, PoissonGaussian)
    assert (few.steps, many.steps) == (2, 8) and many.sigma == pytest.approx(2 * few.sigma, rel=1e-3)
    assert features.candidates[1].config.sigma == many.sigma and features.epsilon <= 3


def test_the_verb(parts: tuple[str, str], tmp_path: Path) -> None:
    words = ["tune", parts[0], "--epsilon", 3, "--grid", "lr=1,4", "--score", parts[1], "--steps", 3, "--classes", 10]
    code, out, err = commands.run(*words, "--trials", 2, "--out", tmp_path / "run", home=tmp_path / "home")
    assert code == 0, err
    for again in ((), ("report",), ("evidence",), ("sign", "--key", tmp_path / "our.key", "--new-key")):
        if again:
            verb, *options = again
            assert commands.run(verb, tmp_path / "run", *options, home=tmp_path / "home")[0] == 0, again
        released = (tmp_path / "run", *(tmp_path / "run").iterdir())
        times = {path.stat().st_mtime for path in released if path.name != "operator"}
        assert len(times) == 1 and times.pop() % 86_400 == 0, f"how long it took would be revealed, after {again}"
    stated = json.loads((tmp_path / "run" / "signature.json").read_text())["statement"]
    assert not re.search(r"\d\d:\d\d", stated)
    assert "candidates  2" in out and "chosen: lr" in out and "epsilon 3.00 at delta 1e-05" in out
