"""What leaves a run: nothing of the key, the data's fingerprint, the operator's values; and "not private" where due."""

from __future__ import annotations

import base64
import io
import json
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpvision.core.keys import Key
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.models.inputs import Inputs
from dpvision.private.training import train
from dpvision.private.training.private_sum import fetcher
from dpvision.released import report
from dpvision.released.model import evaluate, load_model, predict
from dpvision.settings.training import Config
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import ledger_of
from tests.system.runs.commands import write_data

SETTINGS = Config(epsilon=3.0, batch=20, steps=20, checkpoint_every=5)


def _run(
    source: str, folder: Path, settings: Config, *, test_key: str | None = None
) -> tuple[run_folder.Run, train.Prepared]:
    prepared = train.prepare(source, settings)
    run = train.begin(prepared, folder, test_key=test_key)
    train.proceed(run, prepared)
    report.write(run, ledger_of(prepared.fingerprint).account())
    return run, prepared


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_key_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets: list[bytes] = []
    fresh = Key.fresh

    def remember() -> Key:
        key = fresh()
        secrets.append(key._secret)
        return key

    monkeypatch.setattr(Key, "fresh", staticmethod(remember))
    data = write_data(tmp_path / "data.npz")
    _run(str(data), tmp_path / "run", SETTINGS)
    assert len(secrets) == 1
    for name, content in _files(tmp_path).items():
        for form in (secrets[0], secrets[0].hex().encode(), secrets[0][:16], secrets[0][16:]):
            assert form not in content, f"{name} holds the key"


def test_what_may_be_released_holds_nothing_of_the_operators(tmp_path: Path) -> None:
    data = write_data(tmp_path / "private-ward-7.npz")
    run, prepared = _run(str(data), tmp_path / "run", SETTINGS)
    top = {k: v for k, v in _files(run.folder).items() if not k.startswith("operator/")}
    assert set(top) == {
        "config.toml",
        "weights.safetensors",
        "metrics.jsonl",
        "evaluation.json",
        "ledger.jsonl",
        "card.md",
        "card.json",
        "report.html",
    }
    log = [json.loads(x) for x in (run.operator / "log.jsonl").read_text().splitlines()]
    forbidden = [prepared.fingerprint, prepared.fingerprint[:16], "private-ward-7", str(tmp_path)]
    forbidden += [repr(x["mean_loss"]) for x in log]
    forbidden += [c.id for c in ledger_of(prepared.fingerprint).account().charges]
    for name, content in top.items():
        for value in forbidden:
            assert value.encode() not in content, f"{name} holds {value}"
    assert {x["units"] for x in log} - {20}, "the true batch size varies, so it must stay with the operator"


def test_what_is_told_of_the_test_split_is_the_test_splits(tmp_path: Path) -> None:
    """Counts are those of the released weights on the test images; of training images none is shown."""
    data = write_data(tmp_path / "data.npz")
    run, prepared = _run(str(data), tmp_path / "run", replace(SETTINGS, examples=3))
    result, made = evaluate(run.folder, str(data), split="test"), prepared.data
    content = json.loads((run.folder / "evaluation.json").read_text())
    assert made.test is not None and content["images"] == len(made.test) == 60
    assert (
        content["right"] / 60
        == result["accuracy"]
        == json.loads(run.metrics.read_text().splitlines()[-1])["test_accuracy_ema"]
    )
    assert content["weights_digest"] == safetensors.read(run.weights).header["digest"]
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(x["png"])))).tobytes()
        for x in json.loads((run.folder / "examples.json").read_text())["examples"]
    ]
    tests, trains = ({image.tobytes() for image in np.asarray(s.images)} for s in (made.test, made.train))
    assert shown and set(shown) <= tests and not set(shown) & trains
    before = (run.folder / "evaluation.json").read_bytes()
    evaluate(run.folder, str(data), split="test", keep=True)
    assert (run.folder / "evaluation.json").read_bytes() == before and not (run.folder / "examples.json").exists()
    with pytest.raises(ConfigError, match="--keep is for the test split of a run"):
        evaluate(run.folder, str(data), split="train", keep=True)
    other = write_data(tmp_path / "other.npz", seed=5)
    with pytest.raises(ConfigError, match="not the data"):
        evaluate(run.folder, str(other), split="test", keep=True)


def test_a_fixed_key_stamps_everything(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data.npz")
    run, prepared = _run(str(data), tmp_path / "run", SETTINGS, test_key="word")
    for name in ("card.json", "card.md", "report.html"):
        assert "NOT PRIVATE" in (run.folder / name).read_text()
    assert "NO: made with a fixed key" in run.weights.read_bytes()[:20000].decode("latin-1")
    assert [c.private for c in ledger_of(prepared.fingerprint).account().charges] == [False]
    assert '"private": false' in (run.folder / "ledger.jsonl").read_text()


def test_facts_read_off_the_data_are_said_aloud(tmp_path: Path) -> None:
    data = str(write_data(tmp_path / "data.npz"))
    silent = train.prepare(data, SETTINGS)
    assert set(silent.read_off) == {"classes", "image size", "channels", "number of images"}
    declared = train.prepare(data, replace(SETTINGS, n=200, classes=4, size=(8, 8), channels=1))
    assert declared.read_off == ()
    run, _ = _run(data, tmp_path / "run", SETTINGS)
    card = json.loads((run.folder / "card.json").read_text())
    assert card["adjacency"].startswith("zero-out")
    assert card["public_facts"]["n"]["known"] == "read from the data"


def test_a_declared_n_is_the_only_n(tmp_path: Path) -> None:
    """One record more or less changes neither rate, noise, steps nor divisor, and not the first weights."""
    settings = replace(SETTINGS, n=200, classes=4, size=(8, 8), channels=1)
    facts = set()
    for images in (199, 200, 201, 150):
        prepared = train.prepare(str(write_data(tmp_path / f"{images}.npz", images=images)), settings)
        facts.add((prepared.config, prepared.event(), prepared.sampler, prepared.read_off))
    assert len(facts) == 1


def test_persons_are_units(tmp_path: Path) -> None:
    """60 images of 12 persons: draws are made for persons, and all images of one come together."""
    source = tmp_path / "data.npz"
    write_data(source, images=60)
    with np.load(source) as file:
        arrays = dict(file)
    persons = np.repeat(np.arange(12), 5)
    np.savez(source, train_persons=persons, **arrays)
    prepared = train.prepare(str(source), Config(epsilon=3.0, unit="person", batch=6, steps=10))
    assert prepared.config.n == 12 and prepared.sampler.rate == 0.5
    split = prepared.data.train
    images, labels, views = fetcher(split, "person", Inputs(split), None)(np.array([2, 7]), 0)
    assert views == [5, 5] and len(images) == len(labels) == 10
    run = train.begin(prepared, tmp_path / "run")
    assert train.proceed(run, prepared).complete
    log = [json.loads(x) for x in (run.operator / "log.jsonl").read_text().splitlines()]
    assert all(x["images"] == 5 * x["units"] for x in log)
    by_image = train.prepare(str(source), Config(epsilon=3.0, batch=6, steps=10))
    assert by_image.fingerprint == prepared.fingerprint, "one ledger for the data, whatever the unit"
    with pytest.raises(PrivacyError, match="protects persons"):
        train.begin(by_image, tmp_path / "second")


def test_the_released_model_predicts_from_its_file_alone(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data.npz", images=600)
    run, _ = _run(str(data), tmp_path / "run", replace(SETTINGS, batch=300, steps=40, epsilon=8.0))
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes(run.weights.read_bytes())
    made = load_model(alone)
    assert made.shape == (1, 8, 8) and made.classes == ("0", "1", "2", "3")
    text: list[str] = []
    assert predict(alone, data, text.append) == 0
    assert text[0] == "file,class,probability,problem\n" and len(text) == 61
    with np.load(data) as file:
        right = [row.split(",")[1] == str(label) for row, label in zip(text[1:], file["test_labels"], strict=True)]
    assert np.mean(right) > 0.8


def test_the_card_is_about_the_weights_beside_it(tmp_path: Path) -> None:
    """Editing the run's other files cannot make a better card: the weights say what they are."""
    data = write_data(tmp_path / "data.npz")
    run, prepared = _run(str(data), tmp_path / "run", SETTINGS)
    card = json.loads((run.folder / "card.json").read_text())
    header = safetensors.read(run.weights).header
    assert card["weights_digest"] == header["digest"]
    stated = json.loads(header["card"])
    assert stated["format"] == "dpvision-card-on-weights-1" and stated["status"] == "private"
    assert stated["guarantee"] == card["guarantee"] and stated["events"] == card["events"]
    account, facts, config = ledger_of(prepared.fingerprint).account(), run.facts(), run.config()
    fewer = {**facts, "event": {"type": "composed", "events": [{**facts["event"]["events"][0], "steps": 1}]}}
    run.write_facts(fewer)
    with pytest.raises(DataError, match="event"):
        report.write(run, account)
    run.write_facts(facts)
    run.write_config(replace(config, unit="person"))
    with pytest.raises(DataError, match="config"):
        report.write(run, account)
    run.write_config(config)
    whole = run.weights.read_bytes()
    run.weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataError, match="modified after"):
        report.write(run, account)


def test_a_small_file_can_not_make_a_large_model(tmp_path: Path) -> None:
    header = {
        "format": "dpvision-weights-1",
        "model": "linear",
        "shape": "[3, 4096, 4096]",
        "classes": json.dumps([str(i) for i in range(100_000)]),
    }
    path = tmp_path / "weights.safetensors"
    path.write_bytes(safetensors.dump({"1.weight": torch.zeros(2)}, header))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="the settings require"):
        load_model(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
