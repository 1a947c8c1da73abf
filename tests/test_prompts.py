"""Images from words: what is refused before a model is asked for anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dpvision.errors import ConfigError
from dpvision.synthesis.prompts import pipeline, sample


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


def test_nothing_is_left_where_there_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ConfigError, match="diffusers"):
        sample("nowhere", tmp_path / "a", classes=["cat"], count=1, size=8)
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "something.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        sample("nowhere", tmp_path / "b", classes=["cat"], count=1, size=8)
