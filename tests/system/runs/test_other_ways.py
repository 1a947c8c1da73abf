"""Ways that are seldom taken: a crash between the charges of two accounts, weights and images that both have a note,
private weights under a fit, and a tuning whose number of trials nobody may see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.core.ledger import Ledger
from dpvision.estimators import PrivateImageClassifier
from dpvision.private.training import stopping, train, tune
from dpvision.public.provenance import merge_provenance, read_card_provenance, read_provenance
from dpvision.released.report import card
from dpvision.storage import safetensors
from dpvision.storage.home import ledger_of
from tests.one_thread import one_thread  # noqa: F401
from tests.public.test_provenance import WARM, place, say  # noqa: F401
from tests.public.test_provenance import train as train_by_command
from tests.system.runs.test_accounts import COPY, SETTINGS, halves_and_whole, ledgers, spend
from tests.system.runs.test_tuning import parts, prepared  # noqa: F401

Parts = Any
Say = Any


def test_the_number_of_trials_is_on_no_card(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """It was drawn in secret, and the guarantee of a tuning rests on that."""
    cards = []
    for number in (1, 3):
        monkeypatch.setenv("DPVISION_HOME", str(tmp_path / f"home{number}"))
        monkeypatch.setattr(stopping.Stopping, "draw", lambda _, number=number: number)
        result = prepared(parts)
        run = tune.proceed(result, tmp_path / f"run{number}")
        cards.append(card(run, ledger_of(result.first.fingerprint).account()))
    assert cards[0]["tuning"] == cards[1]["tuning"]
    assert cards[0]["events"] == cards[1]["events"] and cards[0]["guarantee"] == cards[1]["guarantee"]


def test_a_crash_between_charges_loses_no_account_that_came_after_the_run_began(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right, whole = halves_and_whole(tmp_path)
    spend(right, tmp_path / "right", replace(SETTINGS, epsilon=0.5))
    training = train.prepare(whole, replace(COPY, epsilon=0.5))
    run, spent = train.begin(training, tmp_path / "run"), list[Ledger]()
    spend(left, tmp_path / "left", replace(SETTINGS, epsilon=0.5))
    assert [len(result.account().charges) for result in ledgers(own_home)] == [1, 1]
    original = Ledger.spend

    def crash(self: Ledger, *given: Any, **more: Any) -> Any:
        if spent:
            raise KeyboardInterrupt
        spent.append(self)
        return original(self, *given, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ledger, "spend", crash)
        train.proceed(run, training)
    train.proceed(run, training)
    assert [len(result.account().charges) for result in ledgers(own_home)] == [2, 2]


def test_weights_note_what_taught_their_start_and_their_synthetic_images(place: Path, say: Say) -> None:  # noqa: F811
    for words in (
        ("warm", place / "other.npz", *WARM, "--out", place / "warm"),
        ("synth", "fit", place / "public.npz", "--size", "tiny", "--steps", 1, "--batch", 2, "--out", place / "edm"),
        ("synth", "sample", place / "edm", "--count", 8, "--steps", 2, "--out", place / "drawn.npz"),
    ):
        code, _, err = say(*words)
        assert code == 0, err
    start, drawn = place / "warm" / "weights.safetensors", place / "drawn.npz"
    code, err = train_by_command(say, place, "both", start=start, public=drawn, **{"k-diff": 1})
    assert code == 0, err
    header = safetensors.read_header(place / "run-both" / "weights.safetensors")
    notes = read_provenance(start), read_card_provenance(str(drawn))
    assert all(notes) and header["learned_from"] == merge_provenance(notes)


def test_a_fit_states_what_its_first_weights_revealed(place: Path, say: Say) -> None:  # noqa: F811
    code, err = train_by_command(say, place, "first", data="public.npz", classes=4)
    assert code == 0, err
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), np.arange(40) % 4
    start = {"pretrained": str(place / "run-first" / "weights.safetensors")}
    made = PrivateImageClassifier(epsilon=3, classes=4, model="small-cnn", steps=1, settings=start).fit(x, y)
    assert made.epsilon_ == pytest.approx(made.card_["guarantee"]["epsilon"]) and made.epsilon_ > 3
