"""What a report states about the test split is what the model does there; edited files are refused; pictures must be asked for."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from run_folder import account, card_of, make, released
from sklearn.metrics import confusion_matrix

from dpvision.data import Split
from dpvision.errors import DataError
from dpvision.models.inputs import Predictions
from dpvision.models.tasks import Task
from dpvision.released import evaluation
from dpvision.released.measures import calibration, measure
from dpvision.released.report import write
from dpvision.storage import safetensors
from dpvision.storage.run_folder import Run

CLASSES = 2


def _answers(seed: int = 0, *, images: int = 300, classes: int = CLASSES) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    guesses = np.where(rng.random(images) < 0.8, labels, rng.integers(0, classes, images))
    return guesses, rng.uniform(0.3, 1.0, images), labels


def _evaluate(run: Run, *, examples: int = 0) -> str:
    """Both files, and the digest of the weights that they are about."""
    guesses, chances, labels = _answers()
    images = np.random.default_rng(1).integers(0, 255, (len(labels), 6, 5, 3)).astype(np.uint8)
    digest = safetensors.read(run.weights).header["digest"]
    answers, task = Predictions(guesses, chances, None), Task("classes", CLASSES)
    evaluation.write(run.folder, Split(images, labels, None), answers, task, weights=digest, examples=examples)
    return digest


def test_figures_are_those_of_scikit_learn() -> None:
    guesses, chances, labels = _answers(classes=7)
    result = measure(Predictions(guesses, chances, None), labels, Task("classes", 7))
    table = confusion_matrix(labels, guesses, labels=range(7))
    assert result["confusion"] == table.tolist()
    assert result["right"] == table.trace()
    apart = table - np.diag(table.diagonal())
    assert result["confused"][0][2] == apart.max() == apart[tuple(result["confused"][0][:2])]
    right, error = guesses == labels, 0.0
    for low in np.arange(15) / 15:
        inside = (chances >= low) & (chances < low + 1 / 15)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - chances[inside].mean())
    assert result["calibration_error"] == pytest.approx(error)
    many = measure(Predictions(guesses * 10_000, chances, None), labels * 10_000, Task("classes", 70_000))
    assert many["confusion"] is None and many["confused"][0][2] == apart.max()


def test_a_sure_model_that_is_right_is_calibrated() -> None:
    sure = calibration(np.ones(10), np.ones(10, dtype=bool))
    assert sure["calibration_error"] == 0 and sure["bins"][-1] == {"images": 10, "accuracy": 1.0, "confidence": 1.0}
    lost = calibration(np.full(4, np.nan), np.zeros(4, dtype=bool))
    assert lost["bins"][0]["images"] == 4


def test_it_is_on_card_and_page_and_there_are_no_pictures_unless_asked_for(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    write(run, account())
    assert card_of(run)["evaluation"] is None and "<h2>Test images" not in released(run)["report.html"]
    _evaluate(run)
    write(run, account())
    texts = released(run)
    assert "examples.json" not in texts and "<img" not in texts["report.html"]
    assert (
        "No test images are shown" in texts["report.html"]
        and "Epsilon does not cover the test split" in texts["report.html"]
    )
    guesses, _, labels = _answers()
    assert card_of(run)["evaluation"]["accuracy"] == (guesses == labels).mean()
    _evaluate(run, examples=4)
    write(run, account())
    texts = released(run)
    assert texts["report.html"].count("<img") == 8
    assert texts["report.html"].count('alt="Test image of class cat, classified as dog"') >= 1
    assert any("shows test images without noise" in line for line in card_of(run)["not_covered"])
    shown = json.loads(texts["examples.json"])["examples"]
    assert [x["class"] == x["named"] for x in shown] == [True] * 4 + [False] * 4
    _evaluate(run)
    assert "examples.json" not in released(run)


@pytest.mark.parametrize(
    "edit",
    [
        {"images": 301},
        {"right": 10**400},
        {"confusion": [[1, 2], [3, "<b>"]]},
        {"confusion": [[1]]},
        {"confused": [[0, 5, 1]]},
        {"bins": []},
        {"calibration_error": float("nan")},
        {"classes": None},
        {"task": "grades", "measures": None},
        {"format": "another"},
        {"weights_digest": "0" * 40},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_an_edited_evaluation_is_refused(tmp_path: Path, edit: dict[str, Any]) -> None:
    run = make(tmp_path / "run")
    digest = _evaluate(run)
    assert evaluation.read_evaluation(run, classes=CLASSES, weights=digest)
    path = run.folder / evaluation.FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(DataError, match=r"evaluation\.json.*--keep"):
        evaluation.read_evaluation(run, classes=CLASSES, weights=digest)


def _png(mode: str, size: tuple[int, int], kind: str = "PNG") -> str:
    file = io.BytesIO()
    Image.new(mode, size).save(file, format=kind)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    "edit",
    [
        {"png": '"><script>alert(1)</script>'},
        {"png": base64.b64encode(b"<svg onload=alert(1)>").decode()},
        {"png": _png("RGB", (8, 8), "GIF")},
        {"png": _png("L", (500, 8))},
        {"png": 7},
        {"class": 2},
        {"named": -1},
        {"chance": 1.5},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_an_edited_picture_is_refused(tmp_path: Path, edit: dict[str, Any]) -> None:
    run = make(tmp_path / "run")
    digest = _evaluate(run, examples=1)
    path = run.folder / evaluation.EXAMPLES
    content = json.loads(path.read_text())
    content["examples"][0] |= edit
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"examples\.json"):
        evaluation.read_examples(run, classes=CLASSES, weights=digest)


def test_of_a_picture_only_the_pixels_get_on_the_page(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    digest = _evaluate(run, examples=1)
    path = run.folder / evaluation.EXAMPLES
    content = json.loads(path.read_text())
    before = content["examples"][0]["png"]
    hidden = base64.b64decode(content["examples"][0]["png"]) + b"ward-7 of somebody"
    content["examples"][0]["png"] = base64.b64encode(hidden).decode()
    path.write_text(json.dumps(content))
    assert evaluation.read_examples(run, classes=CLASSES, weights=digest)[0]["png"] == before


@pytest.mark.parametrize(
    ("images", "accuracy", "learned"),
    [(400, 0.5, False), (400, 0.54, False), (400, 0.62, True), (10_000, 0.515, False), (10_000, 0.53, True)],
)
def test_the_report_warns_of_a_model_that_is_hardly_better_than_the_most_frequent_class(
    tmp_path: Path, images: int, accuracy: float, learned: bool
) -> None:
    """Half of the test images are of one class: a model must exceed 50% by two standard errors and by two points."""
    run, labels = make(tmp_path / "run"), np.arange(images) % 2
    guesses = np.where(np.arange(images) < accuracy * images, labels, 1 - labels)
    split = Split(np.zeros((images, 1, 1, 3), np.uint8), labels, None)
    weights = safetensors.read(run.weights).header["digest"]
    answers = Predictions(guesses, np.full(images, 0.6), None)
    evaluation.write(run.folder, split, answers, Task("classes", 2), weights=weights, examples=0)
    write(run, account())
    for name in ("card.md", "report.html"):
        compared = "no better" if accuracy <= 0.5 else "hardly better"
        assert (f"{compared} than always answering" in released(run)[name]) is not learned, name
    assert "50.0% (cat)" in released(run)["card.md"]
