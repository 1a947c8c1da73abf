"""The packed store: it holds exactly its source, complete or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builders import good_arrays, save_csv, save_folder, save_npz

from dpvision.data import Dataset, fingerprint, load, pack
from dpvision.errors import DataError


def prints(data: Dataset, *, persons: bool = True) -> list[str]:
    from dataclasses import replace

    parts = [part for part in (data.train, data.val, data.test) if part is not None]
    return [fingerprint(part if persons else replace(part, persons=None)) for part in parts]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("persons", [False, True])
def test_every_container_has_the_same_fingerprint(tmp_path: Path, channels: int, persons: bool) -> None:
    arrays = good_arrays(3, channels=channels, persons=persons, classes=11)
    npz = save_npz(tmp_path / "a.npz", arrays)
    csv = save_csv(tmp_path / "c", arrays)
    folder = save_folder(tmp_path / "f", arrays)
    want = prints(load(npz))
    assert prints(load(csv)) == want
    assert prints(load(folder)) == prints(load(npz), persons=False)
    for source, name in ((npz, "s1"), (csv, "s2"), (folder, "s3")):
        store = pack(source, tmp_path / name)
        assert prints(load(store)) == prints(load(source))
        again = pack(store, tmp_path / f"{name}again")
        assert prints(load(again)) == prints(load(source))
    assert isinstance(load(tmp_path / "s1").train.images, np.memmap)
    assert not load(tmp_path / "s1").train.images.flags.writeable


def test_digits_pack(tmp_path: Path) -> None:
    data = load(pack("digits", tmp_path / "d"))
    assert prints(data) == prints(load("digits")) and data.inferred == ()


def test_what_was_inferred_stays_inferred(tmp_path: Path) -> None:
    npz = save_npz(tmp_path / "a.npz", good_arrays())
    pack(npz, tmp_path / "s")
    pack(npz, tmp_path / "t", classes=["x", "y", "z"], size=6, channels=1)
    assert load(tmp_path / "s").inferred == ("classes", "image size", "channels")
    assert load(tmp_path / "s", classes=3).inferred == ("image size", "channels")
    assert load(tmp_path / "t").inferred == () and load(tmp_path / "t").classes == ("x", "y", "z")
    with pytest.raises(DataError, match="none of"):
        load(tmp_path / "t", classes=["x", "y", "w"])
    with pytest.raises(DataError, match="none of"):
        load(tmp_path / "t", classes=4)
    with pytest.raises(DataError, match="contains images of 6x6"):
        load(tmp_path / "t", size=7)


def test_inferred_names_are_not_declared_by_their_number(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "f", good_arrays())
    for split in ("train", "val", "test"):
        for number, name in enumerate(("anna", "ben", "cleo")):
            (folder / split / str(number)).rename(folder / split / name)
    store = pack(folder, tmp_path / "s", size=6, channels=1)
    assert load(store, classes=3).classes == ("anna", "ben", "cleo")
    assert load(store, classes=3).inferred == ("classes",)
    assert load(store, classes=["anna", "ben", "cleo"]).inferred == ()


def test_a_store_records_whether_broken_files_may_have_been_left_out(tmp_path: Path) -> None:
    """Whether skip_broken was set, not whether any file was broken; a store without the record may have left some out."""
    folder = save_folder(tmp_path / "f", good_arrays())
    for skip in (False, True):
        store = pack(folder, tmp_path / f"s{skip}", skip_broken=skip)
        again = pack(store, tmp_path / f"again{skip}")
        assert [load(s).skipped_broken for s in (store, again)] == [skip, skip]
        assert load(folder, skip_broken=skip).skipped_broken is skip
    meta = json.loads((again / "meta.json").read_text())
    assert meta.pop("skipped_broken") is True
    (again / "meta.json").write_text(json.dumps(meta))
    assert load(again).skipped_broken
    assert not load("digits").skipped_broken


def test_meta_names_format_and_shapes(tmp_path: Path) -> None:
    meta = json.loads((pack("digits", tmp_path / "d") / "meta.json").read_text())
    assert meta["format"] == "dpvision store" and meta["version"] == 1
    assert meta["splits"]["train"] == {
        "images": [1437, 8, 8, 1],
        "dtype": "uint8",
        "persons": False,
        "originals": False,
    }


def test_numpy_reads_the_arrays(tmp_path: Path) -> None:
    store = pack("digits", tmp_path / "d")
    images = np.load(store / "train_images.npy", allow_pickle=False)
    assert np.array_equal(images, load("digits").train.images)


def test_floats_pack(tmp_path: Path) -> None:
    arrays = good_arrays()
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = arrays[f"{split}_images"] / 255
    npz = save_npz(tmp_path / "a.npz", arrays)
    assert prints(load(pack(npz, tmp_path / "s"))) == prints(load(npz))


def test_progress_and_skipped_files(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "f", good_arrays())
    good = (folder / "train" / "0" / "00000.png").read_bytes()
    (folder / "train" / "0" / "00000z.png").write_bytes(good[:-16])
    for file in (folder / "val").rglob("*.png"):
        file.write_bytes(file.read_bytes()[:-16])
    seen: list[tuple[int, int]] = []
    with pytest.raises(DataError, match="4 files are broken"):
        pack(folder, tmp_path / "s", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 22) for done in range(1, 23)]
    store = pack(folder, tmp_path / "s", skip_broken=True)
    assert prints(load(store)) == prints(load(folder, skip_broken=True))
    assert load(store).val is None and len(load(store).train) == 12
    assert sorted(file.name for file in store.iterdir()) == [
        "meta.json",
        *(f"{split}_{field}.npy" for split in ("test", "train") for field in ("images", "labels", "originals")),
    ]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_an_interrupted_pack_leaves_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    folder = save_folder(tmp_path / "f", good_arrays())

    def progress(done: int, total: int) -> None:
        if done == 7:
            raise stop

    with pytest.raises((stop, DataError)):
        pack(folder, tmp_path / "s", progress=progress)
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


def test_pack_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(DataError, match=r"s: already exists"):
        pack("digits", tmp_path / "s")
    with pytest.raises(DataError, match=r"its folder does not exist"):
        pack("digits", tmp_path / "no" / "s")
    assert list((tmp_path / "s").iterdir()) == []


def test_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    for source in ("digits", save_npz(tmp_path / "a.npz", good_arrays()), save_folder(tmp_path / "f", good_arrays())):
        with pytest.raises(DataError, match="are free"):
            pack(source, tmp_path / "s")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz", "f"]


def test_a_store_larger_than_the_limit_of_memory_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpvision.data import limits

    npz = save_npz(tmp_path / "a.npz", good_arrays())
    want = prints(load(npz))
    monkeypatch.setattr(limits, "TOTAL_BYTES", 400)
    assert prints(load(pack(npz, tmp_path / "s"))) == want
