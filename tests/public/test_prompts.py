"""Images from words: requests that are refused before a model is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dpvision.errors import ConfigError
from dpvision.public.prompts import load_pipeline, sample


def test_a_prompt_without_a_class_and_invalid_class_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no placeholder for the class"):
        sample("nowhere", tmp_path / "a", classes=["cat"], prompt="a photo", count=1, size=8)
    for name in ("../cat", "", ".hidden", "a/b", "x" * 200):
        with pytest.raises(ConfigError, match="not a valid folder name"):
            sample("nowhere", tmp_path / "a", classes=[name], count=1, size=8)
    assert not (tmp_path / "a").exists()


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ConfigError, match=r"dpvision\[synth\]"):
        load_pipeline("nowhere")


@pytest.mark.parametrize("name", ["nothing/", "./sd", "/models/sd", "a/b/c", ".hidden"])
def test_a_missing_folder_is_never_requested_from_the_hub(name: str) -> None:
    pytest.importorskip("diffusers")
    with pytest.raises(ConfigError, match="no such folder"):
        load_pipeline(name)


def test_nothing_is_left_where_there_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ConfigError, match="diffusers"):
        sample("nowhere", tmp_path / "a", classes=["cat"], count=1, size=8)
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "something.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        sample("nowhere", tmp_path / "b", classes=["cat"], count=1, size=8)


@pytest.mark.parametrize("hidden", ["unet/model.py", "pipeline.py", "index", "damaged"])
def test_a_pipeline_with_code_is_refused_before_it_is_loaded(hidden: str, tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    library = "evil" if hidden == "index" else "diffusers"
    index = {
        "_class_name": "StableDiffusionPipeline",
        "unet": [library, "UNet2DConditionModel"],
        "scheduler": [None, None],
    }
    (tmp_path / "model_index.json").write_text("{" if hidden == "damaged" else json.dumps(index))
    if hidden.endswith(".py"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_text("raise SystemExit('executed')")
    with pytest.raises(ConfigError, match=r"never run|needs code|cannot be read"):
        load_pipeline(str(tmp_path))


def test_a_damaged_about_file_counts_as_other_settings(tmp_path: Path) -> None:
    for text in ("{", "[" * 100_000, "x" * 70_000):
        (tmp_path / "about.json").write_text(text)
        with pytest.raises(ConfigError, match="other settings"):
            sample("nowhere", tmp_path, classes=["cat"], count=1, size=8)
