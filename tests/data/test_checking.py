"""`check` never stops at a broken image, and lists what `load` would refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders import good_arrays, save_csv, save_folder, save_npz
from PIL import Image

from dpvision.data import check, pack
from dpvision.errors import DataError


def test_check_of_arrays(tmp_path: Path) -> None:
    npz = save_npz(tmp_path / "a.npz", good_arrays(persons=True))
    for source in (npz, pack(npz, tmp_path / "s")):
        findings = check(source)
        assert findings.counts["train"] == {"0": 4, "1": 4, "2": 4} and findings.counts["val"]["1"] == 1
        assert findings.sizes == {(6, 6): 21} and findings.channels == {1: 21}
        assert findings.persons == 4 and findings.broken == () and findings.problems == ()
    assert check("digits").sizes == {(8, 8): 1797}


def test_check_of_files(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "f", good_arrays())
    Image.new("RGB", (9, 12)).save(folder / "train" / "2" / "z.png")
    os.mkfifo(folder / "train" / "2" / "fifo.png")
    cut = folder / "train" / "0" / "00000.png"
    cut.write_bytes(cut.read_bytes()[:-30])
    findings = check(folder, classes=["0", "1"])
    assert findings.name == "f"
    assert findings.counts["train"] == {"0": 3, "1": 4, "2": 5}
    assert findings.sizes == {(6, 6): 20, (12, 9): 1} and findings.channels == {1: 20, 3: 1}
    assert {(b.path, b.reason) for b in findings.broken} == {
        ("train/2/fifo.png", "is a FIFO, not a regular file."),
        ("train/0/00000.png", "is truncated."),
    }
    assert len(findings.problems) == 1 and "'2'" in findings.problems[0]
    assert findings.size == (64, 64) and "all become 64x64" in findings.notes[0]
    assert check(folder, size=6).problems == () and check(folder, size=6).size == (6, 6)


def test_check_of_a_table(tmp_path: Path) -> None:
    path = save_csv(tmp_path / "c", good_arrays(persons=True))
    with path.open("a") as file:
        file.write("../outside.png,1,train,p1\nmissing.png,1,train,p1\n")
    findings = check(path)
    assert findings.persons == 4 and [b.path for b in findings.broken] == ["../outside.png", "missing.png"]


def test_check_refuses_what_is_not_a_source(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"hello")
    for name in ("a.npz", "b.npz", "c.csv"):
        with pytest.raises(DataError, match=name):
            check(tmp_path / name)
