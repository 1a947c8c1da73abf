"""Random images as files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpvision.errors import ConfigError
from dpvision.public.random import contact_sheet, draw, write_gallery
from tests.system.runs.commands import run


def test_images_are_written_by_the_command_line(tmp_path: Path) -> None:
    code, stdout, _ = run(
        "images", "dead-leaves-mixed", "--count", 13, "--size", 16, "--seed", 5, home=tmp_path, cwd=tmp_path
    )
    assert code == 0 and "contact_sheet.png" in stdout
    out = tmp_path / "dead-leaves-mixed"
    files = sorted((out / "images").iterdir())
    assert len(files) == 13
    np.testing.assert_array_equal(
        np.asarray(Image.open(files[12])), draw("dead-leaves-mixed", [12], side=16, seed=5)[0]
    )
    assert json.loads((out / "about.json").read_text())["seed"] == 5
    code, _, stderr = run("images", "dead-leaves-mixed", home=tmp_path, cwd=tmp_path)
    assert code == 2 and "not empty" in stderr
    code, stdout, _ = run("images", home=tmp_path)
    assert code == 0 and "dead-leaves-oriented" in stdout


def test_a_contact_sheet_has_the_images_in_rows() -> None:
    images = draw("dead-leaves-squares", range(14), side=8)
    sheet = contact_sheet(images)
    assert sheet.shape == (18, 118, 3)
    np.testing.assert_array_equal(sheet[10:18, 10:18], images[13])
    assert (sheet[10:18, 20:] == 255).all()


def test_bad_settings_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="from 1 to"):
        write_gallery("dead-leaves-mixed", tmp_path / "out", count=0, side=16)
    with pytest.raises(ConfigError, match="no random process"):
        write_gallery("dead", tmp_path / "out", count=1, side=16)
    assert not (tmp_path / "out").exists()
