"""The example with persons runs from the images to the ledger, on digits, and its statements are true."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.one_thread import one_thread
from tests.system.docs.blocks import ROOT

assert one_thread
EXAMPLE = ROOT / "examples" / "skin_lesions.py"


def test_persons_have_two_or_three_images_of_one_class() -> None:
    labels = np.random.default_rng(0).integers(0, 5, 400)
    persons = runpy.run_path(str(EXAMPLE))["persons_of"](labels, np.random.default_rng(1))
    sizes = np.bincount(persons)
    assert sizes.max() <= 3 and (sizes == 1).sum() <= 5, "one may be left over of each class"
    assert all(len(set(labels[persons == person])) == 1 for person in range(len(sizes)))


def test_a_repeated_image_is_used_once() -> None:
    images = np.zeros((5, 2, 2, 3), dtype=np.uint8)
    images[:, 0, 0, 0] = [3, 1, 3, 2, 1]
    kept, labels = runpy.run_path(str(EXAMPLE))["without_copies"](images, np.arange(5))
    assert kept[:, 0, 0, 0].tolist() == [3, 1, 2] and labels.tolist() == [0, 1, 3]


def test_the_whole_afternoon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPVISION_HOME", os.environ["DPVISION_HOME"])  # so that it is as before afterwards
    # By default a true claim is refuted once in twenty audits.
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--out", str(tmp_path / "lesions"), "--confidence", "0.999999"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    output = capsys.readouterr().out
    assert "unit         person; n = 577 persons" in output and "not refuted" in output
    assert "epsilon of a person: at most 3.00" in output
    assert (tmp_path / "lesions/guesses.csv").read_text().count("\n") == 361
