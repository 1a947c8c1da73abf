"""DICOM files: the window is public, the patient id is the person, and nothing of a file's text gets out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import write_dicom

from dpvision.data import Dataset, check, image_batches, load
from dpvision.errors import DataError

pytest.importorskip("pydicom")
RANDOM = np.random.default_rng(0)
VALUES = RANDOM.integers(0, 4096, (6, 4)).astype(np.uint16)


def folder(tmp_path: Path, pixels: np.ndarray = VALUES, **changes: Any) -> Path:
    """Two classes with a good file each, and the file in question in class b."""
    for name in "ab":
        (tmp_path / "set" / name).mkdir(parents=True)
        write_dicom(tmp_path / "set" / name / "good.dcm", RANDOM.integers(0, 255, (6, 4)).astype(np.uint8))
    write_dicom(tmp_path / "set" / "b" / "odd.dcm", pixels, **changes)
    return tmp_path / "set"


def read_odd(path: Path, **how: Any) -> np.ndarray:
    data = load(path, test_share=0, **how)
    assert len(data.train) == 3
    return np.asarray(data.train.images[2])


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"{path / 'b' / 'odd.dcm'}: ") and "PATIENT" not in text
    (broken,) = check(path).broken
    assert broken.path == "b/odd.dcm"
    return text


def test_stored_bits_are_the_default_window(tmp_path: Path) -> None:
    odd = read_odd(folder(tmp_path, BitsStored=12, HighBit=11))
    assert np.array_equal(odd[..., 0], np.rint(VALUES / 4095 * 255))


def test_signed_values(tmp_path: Path) -> None:
    values = (VALUES.astype(np.int32) - 2048).astype(np.int16)
    odd = read_odd(folder(tmp_path, values, BitsStored=12, HighBit=11))
    assert np.array_equal(odd[..., 0], np.rint(VALUES / 4095 * 255))


def test_computed_tomography_has_a_fixed_window_in_hounsfield_units(tmp_path: Path) -> None:
    path = folder(tmp_path, Modality="CT", RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=600, WindowWidth=9)
    units = VALUES.astype(float) - 1024
    assert np.array_equal(read_odd(path)[..., 0], np.rint(np.clip((units + 160) / 400, 0, 1) * 255))
    for window in ("-600,1500", (-600.0, 1500.0)):
        wanted = np.rint(np.clip((units + 1350) / 1500, 0, 1) * 255)
        assert np.array_equal(read_odd(path, window=window)[..., 0], wanted)
    (batch,) = image_batches(path / "b" / "odd.dcm", size=(6, 4), channels=1, window="-600,1500")
    assert np.array_equal(batch.images[0], read_odd(path, window="-600,1500"))
    with pytest.raises(DataError, match=r"cannot have the window '40'\. Fix: .* such as 40,400"):
        load(path, window="40")


def test_monochrome1_is_inverted_and_colour_stays(tmp_path: Path) -> None:
    grey = RANDOM.integers(0, 256, (6, 4)).astype(np.uint8)
    odd = read_odd(folder(tmp_path / "1", grey, PhotometricInterpretation="MONOCHROME1"))
    assert np.array_equal(odd[..., 0], 255 - grey)
    colour = RANDOM.integers(0, 256, (6, 4, 3)).astype(np.uint8)
    assert np.array_equal(read_odd(folder(tmp_path / "3", colour)), colour)


def test_the_account_does_not_depend_on_the_window(tmp_path: Path) -> None:
    from dpvision.data import fingerprint

    path = folder(tmp_path, Modality="CT")
    assert fingerprint(load(path, test_share=0).train) == fingerprint(load(path, test_share=0, window="9,9").train)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"NumberOfFrames": 2}, "more than one frame. Fix"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "neither grey .* Fix: convert it"),
        ({"Rows": 0}, "has no pixels"),
        ({"Rows": 65535, "Columns": 65535}, "more than 16,777,216 pixels"),
        ({"PixelData": b"12"}, "pixels that cannot be decoded"),
        ({"PixelData": None}, "has no pixels"),
        ({"PatientID": b"LF"}, "is a damaged DICOM file"),
        ({"RescaleSlope": 0}, "RescaleSlope that is not a usable number"),
        ({"TransferSyntaxUID": "1.2.840.10008.1.2.4.80"}, "compressed in a way that cannot be decoded here. Fix"),
        ({"TransferSyntaxUID": "1.2.840.10008.1.2.1.99"}, "is deflated as a whole. Fix"),
    ],
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = folder(tmp_path)
    write_dicom(path / "b" / "odd.dcm", VALUES)
    if "PatientID" in changes:  # an unknown kind of value
        data = (path / "b" / "odd.dcm").read_bytes()
        (path / "b" / "odd.dcm").write_bytes(data.replace(b"\x10\0\x20\0LO", b"\x10\0\x20\0" + changes["PatientID"]))
    elif "TransferSyntaxUID" in changes:  # as if it were written so
        data, new = (path / "b" / "odd.dcm").read_bytes(), changes["TransferSyntaxUID"].encode()
        old = b"1.2.840.10008.1.2.1\0"
        place = data.index(b"\x02\0\x10\0UI")
        padded = new + b"\0" * (len(new) % 2)
        rest = data[place + 8 + len(old) :]
        length = int.from_bytes(data[140:144], "little") + len(padded) - len(old)
        head = data[:140] + length.to_bytes(4, "little") + data[144 : place + 6] + len(padded).to_bytes(2, "little")
        (path / "b" / "odd.dcm").write_bytes(head + padded + rest)
    else:
        write_dicom(path / "b" / "odd.dcm", VALUES, **changes)
    import re

    assert re.search(reason, refusal(path))


def test_damaged_files_repeat_nothing_of_their_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path)
    good = (path / "b" / "odd.dcm").read_bytes()
    draw = np.random.default_rng(3)
    for _ in range(60):
        hurt = bytearray(good[: int(draw.integers(132, len(good)))])
        for place in draw.integers(132, len(hurt), 3).tolist():
            hurt[place] = int(draw.integers(256))
        (path / "b" / "odd.dcm").write_bytes(bytes(hurt))
        findings = check(path)
        assert "PATIENT" not in repr(findings) and "Name^" not in repr(findings)
        try:
            data: Dataset | None = load(path)
        except DataError as exc:
            data = None
            assert "PATIENT" not in str(exc) and "Name^" not in str(exc)
        assert "PATIENT" not in repr(data)
    out = capfd.readouterr()
    assert "PATIENT" not in out.out + out.err


def test_the_patient_is_the_person_and_stays_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "set"
    for name in "ab":
        (path / name).mkdir(parents=True)
    for number in range(120):
        pixels = RANDOM.integers(0, 256, (6, 4)).astype(np.uint8)
        write_dicom(path / "ab"[number % 2] / f"{number}.dcm", pixels, patient=f"PATIENT-{number // 4}")
    data = load(path)
    assert data.test is not None and data.train.persons is not None and data.test.persons is not None
    assert not set(data.train.persons.tolist()) & set(data.test.persons.tolist())
    assert len(set(data.train.persons.tolist()) | set(data.test.persons.tolist())) == 30
    assert check(path).persons == len(set(data.train.persons.tolist()))
    one = path / "a" / "0.dcm"
    write_dicom(one, RANDOM.integers(0, 256, (6, 4)).astype(np.uint8), patient=None)
    with pytest.raises(DataError, match=r"has images with a person and images without one\. Fix: name a person"):
        load(path)
    assert any("images without one" in problem for problem in check(path).problems)


def test_nothing_but_the_patient_id_makes_a_person(tmp_path: Path) -> None:
    """Six files of each patient, each of a different study, series, day and institution; then without ids."""
    path = tmp_path / "set"
    for name in "ab":
        (path / name).mkdir(parents=True)

    def write(number: int, patient: str | None) -> None:
        pixels = RANDOM.integers(0, 256, (6, 4)).astype(np.uint8)
        others = dict.fromkeys(("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID"), f"1.2.{number}")
        others |= dict.fromkeys(("StudyID", "AccessionNumber", "InstitutionName", "PatientName"), f"{number}")
        others["StudyDate"] = others["PatientBirthDate"] = f"{19000101 + number}"
        write_dicom(path / "ab"[number % 2] / f"{number}.dcm", pixels, patient=patient, **others)

    for number in range(24):
        write(number, f"PATIENT-{number // 6}")
    data = load(path, test_share=0)
    assert data.train.persons is not None and len(set(data.train.persons.tolist())) == 4
    assert check(path, test_share=0).persons == 4
    for number in range(24):
        write(number, None)
    assert load(path).train.persons is None and check(path).persons is None


def test_without_pydicom_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(DataError, match=r"pydicom is not installed\. Fix: run pip install 'dpvision\[dicom\]'"):
        load(path)
