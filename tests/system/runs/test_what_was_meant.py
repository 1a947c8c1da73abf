"""Settings that contradict each other or cannot be meant: refused before anything is charged, with a fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.errors import ConfigError, DataError
from dpvision.private.training import train
from dpvision.settings.recipes import recipe
from dpvision.settings.training import Config
from tests.system.runs.commands import run

SETTINGS = Config(epsilon=3.0, batch=100, steps=5, model="linear")


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"k_base": 4}, "--augment"),
        ({"k_base": 1, "k_self": 2}, "--k-base 2"),
        ({"k_base": 0}, "--k-base 1"),
        ({"k_diff": 2}, "--synthetic"),
        ({"synthetic": "digits"}, "--k-diff"),
        ({"delta": 0.1}, "--delta"),
        ({"batch": 4096}, "--batch 718"),
    ],
)
def test_settings_that_can_not_be_meant(changes: dict[str, Any], fix: str, own_home: Path) -> None:
    with pytest.raises(ConfigError, match=f"Fix: .*{fix}"):
        train.prepare("digits", replace(SETTINGS, **changes))
    assert not own_home.exists()


@pytest.mark.parametrize("name", ["finetune-head", "finetune-all"])
def test_fine_tuning_of_nothing_public(name: str) -> None:
    with pytest.raises(ConfigError, match="--pretrained"):
        train.prepare("digits", replace(recipe(name), batch=100))


def test_a_class_without_images(tmp_path: Path) -> None:
    images, labels = np.zeros((30, 8, 8), dtype=np.uint8), np.arange(30) % 2 * 2
    images[:, 0, 0] = np.arange(30)
    np.savez(tmp_path / "gap.npz", train_images=images, train_labels=labels)
    with pytest.raises(DataError, match="class 1"):
        train.prepare(str(tmp_path / "gap.npz"), replace(SETTINGS, batch=10, classes=3))


def test_noise_that_does_not_keep_epsilon_is_refused(tmp_path: Path, own_home: Path) -> None:
    code, _, output = run(
        "train", "digits", "--epsilon", 1, "--sigma", 0.5, "--out", "run", home=own_home, cwd=tmp_path
    )
    assert code == 2 and "leave --sigma out" in output
    assert not (tmp_path / "run").exists() and not own_home.exists()


def test_a_dry_run_says_what_a_run_would_be_refused_for(tmp_path: Path, own_home: Path) -> None:
    assert run("train", "digits", "--epsilon", 1, home=own_home, cwd=tmp_path)[0] == 0
    assert (tmp_path / "runs" / "1" / "card.json").exists()
    code, _, output = run("train", "digits", "--epsilon", 1, "--dry-run", home=own_home, cwd=tmp_path)
    assert code == 4 and "budget" in output
    assert not (tmp_path / "runs" / "2").exists()
    code, _, output = run("resume", "runs/1", "--lr", 1, home=own_home, cwd=tmp_path)
    assert code == 2 and "finished, so lr" in output
