"""Images from words: what is refused before a model is asked for anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dpvision.errors import ConfigError
from dpvision.public.prompts import pipeline, sample


def test_a_prompt_without_a_class_and_classes_that_are_no_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="where the class goes"):
        sample("nowhere", tmp_path / "a", classes=["cat"], prompt="a photo", count=1, size=8)
    for name in ("../cat", "", ".hidden", "a/b", "x" * 200):
        with pytest.raises(ConfigError, match="name of a folder"):
            sample("nowhere", tmp_path / "a", classes=[name], count=1, size=8)
    assert not (tmp_path / "a").exists()


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ConfigError, match=r"dpvision\[synth\]"):
        pipeline("nowhere")


@pytest.mark.parametrize("name", ["nothing/", "./sd", "/models/sd", "a/b/c", ".hidden"])
def test_a_path_that_is_no_folder_is_never_asked_of_the_hub(name: str) -> None:
    pytest.importorskip("diffusers")
    with pytest.raises(ConfigError, match="no such folder"):
        pipeline(name)


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
def test_a_pipeline_that_brings_code_is_refused_before_it_is_loaded(hidden: str, tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match=r"never run|asks for code|cannot be read"):
        pipeline(str(tmp_path))


def test_a_damaged_note_of_how_images_were_made_is_another_way(tmp_path: Path) -> None:
    for text in ("{", "[" * 100_000, "x" * 70_000):
        (tmp_path / "about.json").write_text(text)
        with pytest.raises(ConfigError, match="made otherwise"):
            sample("nowhere", tmp_path, classes=["cat"], count=1, size=8)
