"""Folders that nobody prepared go from `check` to a report: DICOM files, classes without a split, mixed sizes, Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from dpvision.storage import safetensors
from dpvision.storage.run_folder import Run
from tests.one_thread import one_thread  # noqa: F401

Command = Callable[..., tuple[int, str]]
QUICK = ("--epsilon", "3", "--model", "linear", "--batch", "100", "--steps", "10", "--physical", "64")
DIGITS = load_digits()


@pytest.fixture
def dpvision(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a verb in this process: its exit code, and all that it printed."""

    def run(*words: object) -> tuple[int, str]:
        from dpvision.cli import main

        monkeypatch.setattr(sys, "argv", ["dpvision", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as exc:
            code = int(exc.code or 0)
        output = capfd.readouterr()
        return code, output.out + output.err

    return run


def digit(number: int) -> np.ndarray:
    return (DIGITS.images[number] * 15).astype(np.uint8)


def all_bytes(*folders: Path) -> bytes:
    """Names and contents of all files."""
    paths = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return b"\n".join(os.fsencode(path) + (path.read_bytes() if path.is_file() else b"") for path in paths)


def test_a_folder_of_dicom_files(
    tmp_path: Path, own_home: Path, dpvision: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patients are the units, and their ids are in nothing that is printed or written."""
    pydicom = pytest.importorskip("pydicom")
    sys.path.insert(0, str(Path(__file__).parents[2] / "data"))
    try:
        from dicom_files import write_dicom
    finally:
        sys.path.pop(0)
    folder = tmp_path / "scans"
    for number in range(900):
        place = folder / f"digit-{DIGITS.target[number]}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = digit(number).astype(np.uint16) * 16
        write_dicom(place / f"{number:04}.dcm", pixels, patient=f"ZORG-{number // 2:05}", BitsStored=12, HighBit=11)
    assert pydicom.dcmread(next(folder.rglob("*.dcm"))).PatientID.startswith("ZORG-"), "they are in the files"
    code, checked = dpvision("check", folder)
    assert code == 0 and "persons in train" in checked and "is set aside as the test split" in checked
    assert "--unit person --n N --classes" in checked and "Declare only what is public anyway" in checked
    run = tmp_path / "run"
    code, output = dpvision("train", folder, *QUICK, "--unit", "person", "--n", "360", "--out", run)
    assert code == 0 and "test accuracy" in output and "0.2 of it is set aside" in output
    assert (run / "report.html").exists() and Run(run).config().test_share == 0.2
    code, guesses = dpvision("predict", run, folder / "digit-3")
    assert code == 0 and "0003.dcm,digit-" in guesses
    code, evaluated = dpvision("eval", run, folder)
    assert code == 0 and "images of test" in evaluated
    whole = (folder / "digit-3" / "0003.dcm").read_bytes()
    (folder / "digit-3" / "0003.dcm").write_bytes(whole[:-40])
    code, refused = dpvision("train", folder, *QUICK, "--out", tmp_path / "again")
    assert code == 3 and "0003.dcm: has pixels that cannot be decoded" in refused and not (tmp_path / "again").exists()
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "other"))  # an account of images, next to that of persons
    released = tmp_path / "released"
    code, out = dpvision("release", folder, "--epsilon", "1", "--skip-broken", "--encoder", "pixels", "--out", released)
    assert code == 0, out
    (folder / "digit-3" / "0003.dcm").write_bytes(whole)
    code, features = dpvision("features", released, folder, "--out", tmp_path / "test.safetensors")
    assert code == 0, features
    everything = (checked + output + guesses + evaluated + refused + out + features).encode()
    everything += all_bytes(run, own_home, released, tmp_path / "other")
    assert b"ZORG" not in everything and b"Name^" not in everything


def save_classes(folder: Path, *, many_sizes: bool) -> Path:
    """Photos of several sizes, formats and modes, in a folder for each class."""
    draw = np.random.default_rng(0)
    for number in range(700):
        place = folder / "abcdefghij"[DIGITS.target[number]]
        place.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(digit(number))
        if many_sizes:
            height, width = draw.integers(9, 40, 2).tolist()
            image = image.resize((width, height))
        if number % 10 == 3:
            image = image.convert("RGB")
        image.save(place / f"{number}.{('png', 'jpg', 'webp', 'tif')[number % 4]}")
    return folder


def test_classes_without_a_split_and_many_sizes(tmp_path: Path, dpvision: Command) -> None:
    """All verbs read by the same rule, size and split, and a resumed run too."""
    folder = save_classes(tmp_path / "photos", many_sizes=True)
    code, output = dpvision("check", folder)
    assert code == 0 and "most frequent" in output and "smallest" in output and "largest" in output
    assert "all become 64x64" in output and "--size SIZE. Declare only what is public anyway" in output
    run = tmp_path / "run"
    words = ("train", folder, *QUICK, "--size", "10x12", "--channels", "1", "--test-share", "0.3", "--out", run)
    code, output = dpvision(*words)
    assert code == 0 and "images 10x12x1" in output and "0.3 of it is set aside" in output
    reading = json.loads(safetensors.read(run / "weights.safetensors").header["reading"])
    assert (reading["rule"], reading["test_share"]) == (2, 0.3)
    trained = float(output.split("test accuracy ")[1].split("%")[0])
    code, output = dpvision("eval", run, folder, "--json")
    assert code == 0 and round(100 * json.loads(output)["accuracy"], 2) == trained
    tested = json.loads(output)["images"]
    assert 150 < tested < 270
    code, output = dpvision("eval", run, folder, "--split", "train", "--json")
    assert code == 0 and json.loads(output)["images"] == 700 - tested
    _, predicted = dpvision("predict", run, folder)
    rows = list(csv.DictReader(io.StringIO(predicted)))
    assert len(rows) == 700 and not any(row["problem"] for row in rows)
    from dpvision.audit.membership import attack_run

    assert attack_run(run, str(folder))[0].others == tested


def test_predict_and_eval_agree_image_by_image(tmp_path: Path, dpvision: Command) -> None:
    """The class that predict gives to a file is the one that eval counts: one rule for both."""
    folder = save_classes(tmp_path / "photos", many_sizes=True)
    run = tmp_path / "run"
    assert dpvision("train", folder, *QUICK, "--size", "9x14", "--out", run)[0] == 0
    (tmp_path / "weights").mkdir()
    from dpvision.data import load
    from dpvision.released.model import load_model, predict_all

    model = load_model(run)
    data = model.load(str(folder), size=None)
    code, output = dpvision("predict", run, folder)
    guessed = {row["file"]: row["class"] for row in csv.DictReader(io.StringIO(output))}
    whole = load(folder, size=model.shape[1:], channels=model.shape[0], test_share=0).train
    answers = predict_all(model.model, model.inputs(whole), model.task).answers
    names = [model.classes[number] for number in answers]
    assert code == 0 and [guessed[name] for name in sorted(guessed)] == names
    assert data.test is not None and len(data.train) + len(data.test) == 700


def test_a_run_of_rule_1_is_resumed_and_used_by_rule_1(tmp_path: Path, dpvision: Command) -> None:
    """Runs that began before EXIF, transparency and centre crops were read have no entry, and stay as they were."""
    from dpvision.data import identify, load
    from dpvision.private.training import train
    from dpvision.released.model import load_model
    from dpvision.settings.training import Config

    folder = tmp_path / "set"
    save_classes(folder / "train", many_sizes=True)
    settings = Config(epsilon=3.0, model="linear", batch=100, steps=6, size=(8, 12), channels=1)
    prepared = train.prepare(str(folder), settings, rule=1)
    stretched = identify(load(folder, size=(8, 12), channels=1, rule=1).train)[1]
    assert prepared.in_order == stretched != identify(load(folder, size=(8, 12), channels=1).train)[1]
    run = train.begin(prepared, tmp_path / "run")
    facts = run.facts()
    assert facts.pop("reading_rule") == 1
    run.write_facts(facts)  # as such a run had it
    assert dpvision("resume", tmp_path / "run")[0] == 0
    assert load_model(tmp_path / "run").reading["rule"] == 1


def test_a_parquet_file(tmp_path: Path, dpvision: Command) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def png(number: int) -> bytes:
        out = io.BytesIO()
        Image.fromarray(digit(number)).save(out, "PNG")
        return out.getvalue()

    images = [{"bytes": png(n), "path": None} for n in range(700)]
    pq.write_table(pa.table({"img": images, "digit": DIGITS.target[:700]}), tmp_path / "digits.parquet")
    run = tmp_path / "run"
    columns = ("--columns", "image=img,label=digit")
    code, output = dpvision("train", tmp_path / "digits.parquet", *QUICK, *columns, "--out", run)
    assert code == 0 and "test accuracy" in output and (run / "report.html").exists()
    code, output = dpvision("eval", run, tmp_path / "digits.parquet")
    assert code == 0, "the columns are recorded with the model"
    code, output = dpvision("ledger", tmp_path / "digits.parquet", *columns)
    assert code == 0 and "epsilon 3.0" in output


def test_medmnist_files_load_as_they_come(tmp_path: Path, dpvision: Command) -> None:
    """pneumoniamnist.npz: 28x28 grey without a channel axis, labels (N, 1), three splits."""
    draw = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 300), ("val", 50), ("test", 60)):
        arrays[f"{split}_images"] = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{split}_labels"] = draw.integers(0, 2, (count, 1), dtype=np.uint8)
    np.savez_compressed(tmp_path / "pneumoniamnist.npz", **arrays)
    code, output = dpvision("check", tmp_path / "pneumoniamnist.npz")
    assert code == 0 and "sizes: 28x28 (410)" in output
    code, output = dpvision(
        "train", tmp_path / "pneumoniamnist.npz", *QUICK, "--test-share", "0.3", "--out", tmp_path / "a"
    )
    assert code == 2 and "names its splits itself" in output and "leave --test-share out" in output
    assert dpvision("train", tmp_path / "pneumoniamnist.npz", *QUICK, "--out", tmp_path / "run")[0] == 0
