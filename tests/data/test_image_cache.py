"""Images of a large listing are decoded once by `check` and `train` together, and never from stale files."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from builders import good_arrays, save_csv, save_folder
from dicom_files import write_dicom
from PIL import Image

from dpvision.core import files
from dpvision.data import Dataset, check, identify, image_cache, image_files, limits, load, pack


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes of every file that is decoded; listings of any number of files, however new, are stored."""
    seen: list[bytes] = []
    real = image_files.decode

    def decode(data: bytes, *args: object, **named: object) -> object:
        seen.append(data)
        return real(data, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(image_files, "decode", decode)
    monkeypatch.setattr(limits, "CACHE_FROM", 10)
    monkeypatch.setattr(image_cache, "_SETTLED_NS", 0)
    return seen


def digests(data: Dataset) -> list[tuple[str, str]]:
    return [identify(part)[:2] for part in data.splits.values()]


def test_check_and_load_decode_every_file_once(tmp_path: Path, own_home: Path, decoded: list[bytes]) -> None:
    folder = save_folder(tmp_path / "a", good_arrays(channels=3))
    Image.new("L", (9, 12)).save(folder / "train" / "1" / "z.png")
    (folder / "train" / "0" / "cut.png").write_bytes((folder / "train" / "0" / "00000.png").read_bytes()[:-20])
    findings = check(folder)
    assert len(decoded) == 23
    data = load(folder, skip_broken=True)
    assert len(decoded) == 23 and check(folder) == findings and len(decoded) == 23
    assert [broken.path for broken in data.broken] == ["train/0/cut.png"] == [b.path for b in findings.broken]
    store = load(pack(folder, tmp_path / "store", skip_broken=True))
    os.environ["DPVISION_CACHE_IMAGES"] = "no"
    try:
        plain = load(folder, skip_broken=True)
    finally:
        del os.environ["DPVISION_CACHE_IMAGES"]
    assert len(decoded) == 46 and digests(plain) == digests(data) == digests(store) and plain.notes == data.notes
    assert load(folder, size=7, skip_broken=True).train.images.shape[1] == 7 and len(decoded) == 69
    for place, folders, names in os.walk(own_home / "images"):
        for name in folders + names:
            assert not stat.S_IMODE(os.lstat(os.path.join(place, name)).st_mode) & 0o077
    assert not list((own_home / "images").glob(".*"))


def test_a_file_that_changed_is_read_again(tmp_path: Path, decoded: list[bytes]) -> None:
    folder = save_folder(tmp_path / "a", good_arrays())
    before = load(folder)
    path = folder / "train" / "0" / "00000.png"
    status = path.stat()
    image = np.asarray(Image.open(path)).copy()
    path.unlink()
    Image.fromarray(255 - image).save(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the time of change and the inode are others
    after = load(folder)
    assert len(decoded) == 42 and not np.array_equal(before.train.images, after.train.images)


def test_new_small_and_unfinished_listings_are_not_stored(
    tmp_path: Path, own_home: Path, decoded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder(tmp_path / "a", good_arrays())
    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "_SETTLED_NS", 3_600_000_000_000)
        load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(limits, "CACHE_FROM", 22)
        load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(limits, "CACHE_BYTES", 100)
        load(folder)

    def change(done: int, total: int) -> None:
        if done == total:
            Image.new("L", (6, 6)).save(folder / "train" / "0" / "00000.png")

    pack(folder, tmp_path / "s", progress=change)
    stored = own_home / "images"
    assert not stored.exists() or not list(stored.iterdir())


def test_damaged_and_old_entries_are_replaced(
    tmp_path: Path, own_home: Path, decoded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder(tmp_path / "a", good_arrays())
    wanted = digests(load(folder))
    (entry,) = (own_home / "images").iterdir()
    for name, data in (("images", b"x"), ("meta.json", b"{}"), ("meta.json", b"[")):
        (entry / name).write_bytes(data)
        assert digests(load(folder)) == wanted
    monkeypatch.setattr(limits, "CACHE_BYTES", 1000)  # one entry of 21 images has 756
    load(save_folder(tmp_path / "b", good_arrays(1)))
    (kept,) = (own_home / "images").iterdir()
    assert kept.name != entry.name


@pytest.mark.parametrize("patient", ["PATIENT-7", ""])
def test_no_dicom_file_is_stored(patient: str, tmp_path: Path, own_home: Path, decoded: list[bytes]) -> None:
    pytest.importorskip("pydicom")
    for number in range(20):
        path = tmp_path / "set" / "ab"[number % 2] / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_dicom(path, np.full((6, 6), number, np.uint8), patient=patient)
    load(tmp_path / "set")
    assert not list((own_home / "images").iterdir())


@pytest.mark.parametrize(("place", "at", "call"), [(files, "open_regular", 25), (image_files, "read_file", 5)])
def test_an_error_of_the_disk_is_not_stored(
    place: ModuleType,
    at: str,
    call: int,
    tmp_path: Path,
    own_home: Path,
    decoded: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = save_folder(tmp_path / "a", good_arrays())
    wanted, asked = digests(load(folder)), 0
    (entry,) = (own_home / "images").iterdir()
    shutil.rmtree(entry)
    real = getattr(place, at)

    def fail_once(*args: object, **named: object) -> object:
        nonlocal asked
        asked += 1
        if asked == call:
            raise OSError(errno.EIO, "Input/output error")
        return real(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(place, at, fail_once)
        assert len(load(folder, skip_broken=True).broken) == 1
    assert digests(load(folder)) == wanted, "one error of the disk was taken for a broken file ever after"


def test_a_home_that_others_may_write_to_is_not_used(tmp_path: Path, own_home: Path, decoded: list[bytes]) -> None:
    """Whoever writes there could replace images."""
    folder = save_folder(tmp_path / "a", good_arrays())
    load(folder)
    assert len(list((own_home / "images").iterdir())) == 1
    (own_home / "images").chmod(0o770)
    load(folder)
    assert len(decoded) == 42


def test_the_home_is_that_of_the_ledgers(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpvision.storage.home import home

    assert image_cache._folder() == home() / "images" == own_home / "images"
    monkeypatch.delenv("DPVISION_HOME")
    assert image_cache._folder() == home() / "images"


def test_a_table_in_another_order_does_not_mix_up_what_is_stored(tmp_path: Path, decoded: list[bytes]) -> None:
    """Images, labels and persons of each line stay together, whichever lines were read and stored before."""
    source = save_csv(tmp_path / "set", good_arrays(persons=True))
    lines = source.read_text("utf-8").splitlines()
    orders = [lines[1:], lines[:0:-1], lines[2:] + lines[1:2]]
    records = []
    for order in orders:
        source.write_text("\n".join([lines[0], *order]) + "\n", "utf-8")
        for _ in range(2):  # stored, and read from there
            part = load(source).train
            assert part.persons is not None and part.originals is not None
            columns = (part.images, part.labels, part.persons, part.originals)
            records.append(
                sorted((i.tobytes(), int(k), int(p), o.tobytes()) for i, k, p, o in zip(*columns, strict=True))
            )
    assert all(other == records[0] for other in records)


@pytest.mark.parametrize("kind", ["a table with persons", "classes without a split", "dicom"])
def test_a_second_reading_finds_the_same_records(kind: str, tmp_path: Path, decoded: list[bytes]) -> None:
    """Whatever is stored: images, classes, persons and the test split are those of the first reading."""
    source = tmp_path / "set"
    if kind == "a table with persons":
        source = save_csv(source, good_arrays(persons=True))
    else:
        rng = np.random.default_rng(0)
        for number in range(40):
            (source / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            path, pixels = source / "ab"[number % 2] / f"{number}", rng.integers(0, 256, (6, 6), dtype=np.uint8)
            if kind == "dicom":
                pytest.importorskip("pydicom")
                write_dicom(path, pixels, patient=f"PATIENT-{number // 8}")
            else:
                Image.fromarray(pixels).save(f"{path}.png")
    first, again = load(source), load(source)
    assert first.splits.keys() == again.splits.keys() and (first.train.persons is None) == ("classes" in kind)
    for one, other in zip(first.splits.values(), again.splits.values(), strict=True):
        for name in ("images", "labels", "persons", "originals"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
    findings = check(source)
    assert findings.counts == {
        split: {label: int((part.labels == k).sum()) for k, label in enumerate(first.classes)}
        for split, part in first.splits.items()
    }
