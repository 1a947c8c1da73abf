"""All measures together: figures are named with their network, wrong inputs are refused, and the verb writes files."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality.classifier import ClassifierSettings, LabelledImages
from dpvision.public.quality.evaluation import evaluate
from tests.public.quality.sets import CLASSES, digits, noise, part
from tests.system.runs.commands import run

QUICK = ClassifierSettings(model="small-cnn", steps=60, batch=32)


def test_real_images_are_better_than_noise_by_every_measure() -> None:
    real, test = digits()
    good = evaluate(test, real, classes=CLASSES, settings=QUICK).figures
    bad = evaluate(noise(test), real, classes=CLASSES, settings=QUICK).figures
    assert good["FID (scattering)"] < bad["FID (scattering)"] / 10
    assert good["precision (scattering)"] > 0.7 and bad["precision (scattering)"] < 0.1
    assert good["recall (scattering)"] > bad["recall (scattering)"]
    assert good["CAS (small-cnn)"] > bad["CAS (small-cnn)"] + 0.3
    for name in ("pixels", "scattering"):
        assert good[f"suspected copies ({name})"] < 0.05
    assert "FID" not in good and not any("Inception score" in name for name in good)


def test_copies_are_found_by_pixels_and_by_features() -> None:
    real = digits()[0]
    result = evaluate(part(real, slice(0, 200)), real, cas=False)
    assert result.figures["suspected copies (pixels)"] == result.figures["suspected copies (scattering)"] == 1.0
    assert result.figures["precision (scattering)"] == 1.0 and result.picture().startswith(b"\x89PNG")
    assert result.about["cas"] is None and any("instead of Inception" in note for note in result.notes)


def test_a_classifier_gives_a_score_under_its_own_name_and_a_seed_the_same_figures() -> None:
    real, test = digits()
    options = {"network": "classifier", "classes": CLASSES, "settings": QUICK, "cas": False, "max_images": 200}
    result, again = (evaluate(test, real, **options) for _ in range(2))
    assert result.figures == again.figures
    assert 2 < result.figures["Inception score (classifier)"] <= 10
    assert result.about["real"] == {"name": "digits", "images": 200}
    assert any("Only 200 of 1,437 real images" in note for note in result.notes)
    assert any("trained on the real images" in note for note in result.notes)


def test_invalid_inputs_are_named() -> None:
    real, test = digits()
    wide = LabelledImages("wide", np.zeros((200, 8, 9, 1), np.uint8), np.zeros(200, np.int64))
    with pytest.raises(
        DataError, match=r"wide: its images have 8x9 pixels and 1 channels, but those of digits have 8x8"
    ):
        evaluate(wide, real, cas=False)
    with pytest.raises(DataError, match="digits: 99 images are too few"):
        evaluate(part(real, slice(0, 99)), real, cas=False)
    with pytest.raises(ConfigError, match="50 images of each kind are too few"):
        evaluate(test, real, cas=False, max_images=50)
    with pytest.raises(ConfigError, match=r"device 'abacus': cannot be used.*Fix"):
        evaluate(test, real, cas=False, device="abacus")
    with pytest.raises(DataError, match="no image of class 0"):
        evaluate(LabelledImages("drawn", test.images, np.maximum(test.labels, 1)), real, classes=CLASSES)
    with pytest.raises(ConfigError, match="must be bytes"):
        LabelledImages("x", np.zeros((2, 8, 8, 1), np.int32), np.zeros(2, np.int64))  # type: ignore[arg-type]


def test_the_verb_writes_figures_and_a_picture(tmp_path: Path) -> None:
    test = digits()[1]
    np.savez(tmp_path / "drawn.npz", train_images=test.images, train_labels=test.labels)
    words = (
        "synth",
        "quality",
        "drawn.npz",
        "digits",
        "--model",
        "small-cnn",
        "--steps",
        "20",
        "--out",
        "out/quality.json",
    )
    code, out, err = run(*words, home=tmp_path / "home", cwd=tmp_path)
    assert code == 0, err
    assert "FID (scattering)" in out and "do not release" in " ".join(out.split()) and "out/quality.png" in out
    written = json.loads((tmp_path / "out" / "quality.json").read_text())
    assert written["network"]["name"] == "scattering" and written["real"]["name"] == "digits (train)"
    assert written["cas"]["tested_on"] == "digits (test)" and written["cas"]["training"]["steps"] == 20
    shares = {"precision (scattering)", "recall (scattering)", "CAS (small-cnn)", "suspected copies (pixels)"}
    assert shares < set(written["figures"]) and all(0 <= written["figures"][name] <= 1 for name in shares)
    assert stat.S_IMODE((tmp_path / "out" / "quality.png").stat().st_mode) == 0o600, "it shows real images"
    code, _, err = run(*words, home=tmp_path / "home", cwd=tmp_path)
    assert code == 2 and "already exists" in err
