"""A run's state that somebody edited and sealed again: refused, before the same noise could meet another sum."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dpvision.core.events import PoissonGaussian, to_json
from dpvision.core.keys import Key
from dpvision.errors import DataError, DPVisionError
from dpvision.private.training import train
from dpvision.settings.training import Config
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import ledger_of
from tests.system.runs.commands import write_data

SETTINGS = Config(epsilon=3.0, batch=20, steps=8, checkpoint_every=2, budget=20.0)
Header = dict[str, str]


def _stopped(tmp_path: Path, *, test_key: str | None = None) -> tuple[run_folder.Run, train.Prepared]:
    """A run after 4 of its 8 steps."""
    prepared = train.prepare(str(write_data(tmp_path / "data.npz")), SETTINGS)
    run = train.begin(prepared, tmp_path / "run", test_key=test_key)
    asked = iter([False] * 4 + [True])
    train.proceed(run, prepared, stop=lambda: next(asked))
    return run, prepared


def _reseal(run: run_folder.Run, edit: Callable[[Header], None]) -> None:
    """As somebody who can write the folder would, and knows how files are sealed."""
    header = dict(safetensors.read(run.state).header)
    signature = header.pop("signature")
    del header["digest"]
    edit(header)
    run.state.write_bytes(safetensors.dump(load_file(run.state), header, sign=lambda _: signature))


def _setting(name: str, value: Any) -> Callable[[Header], None]:
    def edit(header: Header) -> None:
        header["config"] = json.dumps({**json.loads(header["config"]), name: value}, sort_keys=True)

    return edit


def _entry(name: str, value: str) -> Callable[[Header], None]:
    return lambda header: header.update({name: value})


FORGED = {
    "another clipping norm under the same noise": _setting("clip", 5.0),
    "another model's settings": _setting("lr", 0.1),
    "an earlier branch made up": _entry("path", json.dumps([to_json(PoissonGaussian(0.1, 5.0, 1))])),
    "steps that were not done": _entry("step", "6"),
    "a step after the last": _entry("step", "99"),
    "a branch of another name": _entry("branch", "0" * 32),
    "a path that is no list": _entry("path", "3"),
    "a path without end": _entry("path", "[" * 20_000),
    "settings without end": _entry("config", "[" * 20_000),
    "no sigma": lambda header: header.update(
        config=json.dumps({k: v for k, v in json.loads(header["config"]).items() if k != "sigma"})
    ),
    "no key": lambda header: header.pop("key"),
}


@pytest.mark.parametrize("name", FORGED)
def test_an_edited_state_is_refused_and_nothing_is_charged(name: str, tmp_path: Path) -> None:
    run, prepared = _stopped(tmp_path)
    charges = ledger_of(prepared.fingerprint).account().charges
    before = run.metrics.read_bytes()
    _reseal(run, FORGED[name])
    with pytest.raises(DPVisionError):
        train.proceed(run, train.reopen(run))
    assert ledger_of(prepared.fingerprint).account().charges == charges
    assert run.metrics.read_bytes() == before and not run.weights.exists()


@pytest.mark.parametrize("signed", ["by nobody", "with nothing", "with another key", "as it was before"])
@pytest.mark.parametrize("edited", [False, True])
def test_only_the_runs_own_key_signs_its_state(signed: str, edited: bool, tmp_path: Path) -> None:
    """Weights that somebody chose, under noise that they may come to see: the whole run would be at their service."""
    run, prepared = _stopped(tmp_path)
    header, tensors = dict(safetensors.read(run.state).header), load_file(run.state)
    signature = header.pop("signature")
    del header["digest"]
    if edited:
        tensors["weights"] = tensors["weights"] + 1
    elif signed == "as it was before":
        header["step"] = "2"
    signs: dict[str, Callable[[str], str] | None] = {
        "by nobody": None,
        "with nothing": lambda _: "",
        "with another key": Key.fresh().sign,
        "as it was before": lambda _: signature,
    }
    run.state.write_bytes(safetensors.dump(tensors, header, sign=signs[signed]))
    with pytest.raises(DataError, match="was not written by this run"):
        train.proceed(run, train.reopen(run))
    assert len(ledger_of(prepared.fingerprint).account().charges) == 1 and not run.weights.exists()


def test_the_same_state_sealed_again_goes_on(tmp_path: Path) -> None:
    """So it is the edit that is refused, and not the way in which these tests seal."""
    run, _ = _stopped(tmp_path)
    _reseal(run, lambda header: None)
    assert train.proceed(run, train.reopen(run)).complete


def test_a_fixed_key_is_never_called_private(tmp_path: Path) -> None:
    """Who knows the word can sign; the key's own file and the ledger still say what it is."""
    run, _ = _stopped(tmp_path, test_key="word")
    header = dict(safetensors.read(run.state).header)
    del header["digest"], header["signature"]
    header["private"] = "true"
    run.state.write_bytes(safetensors.dump(load_file(run.state), header, sign=Key.for_tests("word").sign))
    outcome = train.proceed(run, train.reopen(run))
    assert not outcome.private and run.facts()["private"] is False
    assert safetensors.read(run.weights).header["private"] != "yes"


def test_without_the_key_a_branch_with_fresh_noise_begins(tmp_path: Path) -> None:
    run, prepared = _stopped(tmp_path)
    (key,) = (tmp_path / "home" / "keys").glob("*.key")
    key.unlink()
    outcome = train.proceed(run, train.reopen(run))
    assert outcome.complete and len(ledger_of(prepared.fingerprint).account().charges) == 2
