"""Every source in ordinary use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import good_arrays, save_csv, save_folder, save_npz
from PIL import Image

from dpvision.data import Split, fingerprint, load
from dpvision.errors import DataError


def test_import_is_light() -> None:
    code = "import sys, dpvision.data; print([m for m in ('torch', 'sklearn', 'PIL', 'scipy') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_digits() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    assert (data.name, data.inferred, data.val) == ("digits", (), None)
    assert data.classes == tuple("0123456789")
    assert data.test is not None
    assert data.train.images.shape == (1437, 8, 8, 1) and data.test.images.shape == (360, 8, 8, 1)
    assert data.train.images.dtype == np.uint8 and data.train.images.max() == 255
    order = np.random.default_rng(0).permutation(1797)
    pixels, labels = load_digits(return_X_y=True)
    assert np.array_equal(data.train.labels, labels[order[:1437]])
    expected = np.round(pixels[order[-1]] * 255 / 16).reshape(8, 8, 1)
    assert np.array_equal(data.test.images[-1], expected)
    assert load("digits", classes=10, size=8).inferred == ()
    with pytest.raises(DataError, match=r"^digits: "):
        load("digits", classes=7)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_npz(tmp_path: Path, compressed: bool, channels: int) -> None:
    arrays = good_arrays(channels=channels, persons=True)
    data = load(save_npz(tmp_path / "set.npz", arrays, compressed=compressed))
    assert data.name == "set" and data.classes == ("0", "1", "2")
    assert data.inferred == ("classes", "image size", "channels") and data.broken == ()
    for split in ("train", "val", "test"):
        part = getattr(data, split)
        assert np.array_equal(part.images.reshape(arrays[f"{split}_images"].shape), arrays[f"{split}_images"])
        assert part.images.shape[3] == channels and part.labels.dtype == np.int64
        assert np.array_equal(part.labels, arrays[f"{split}_labels"])
    ids = np.concatenate([arrays[f"{split}_persons"] for split in ("train", "val", "test")])
    indices = np.concatenate([part.persons for part in (data.train, data.val, data.test)])
    assert np.array_equal(np.unique(ids)[indices], ids), "one numbering, sorted, for all splits"


def test_npz_declared_facts(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "a.npz", good_arrays())
    assert load(path, classes=5, size=6, channels=1).inferred == ()
    assert load(path, classes=["cat", "dog", "hen"]).classes == ("cat", "dog", "hen")
    assert load(path, classes=5).inferred == ("image size", "channels")
    with pytest.raises(DataError, match=r"has the label 2 in train, but the classes are 0 to 1"):
        load(path, classes=2)
    with pytest.raises(DataError, match=r"contains images of 6x6, not 8x8"):
        load(path, size=8)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
def test_npz_floats(tmp_path: Path, dtype: str) -> None:
    arrays = good_arrays()
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = (arrays[f"{split}_images"] / 255).astype(dtype)
    data = load(save_npz(tmp_path / "a.npz", arrays))
    assert data.train.images.dtype == np.dtype(np.float32) and data.train.images.dtype.isnative
    assert np.array_equal(data.train.images[..., 0], arrays["train_images"].astype(np.float32))


def test_npz_forms_of_the_same_data(tmp_path: Path) -> None:
    arrays = good_arrays(channels=3)
    want = fingerprint(load(save_npz(tmp_path / "plain.npz", arrays)).train)
    other = {key: np.asfortranarray(array) for key, array in arrays.items()}
    for split in ("train", "val", "test"):
        other[f"{split}_labels"] = other[f"{split}_labels"].astype(">u2").reshape(-1, 1)
    other["comment"] = np.array("ignored")
    assert fingerprint(load(save_npz(tmp_path / "other.npz", other)).train) == want


def test_person_ids_of_two_integer_types_are_not_rounded(tmp_path: Path) -> None:
    """numpy joins int64 and uint64 as float64, in which large ids of different persons would be equal."""
    arrays = good_arrays()
    arrays["train_persons"] = 2**60 + np.arange(len(arrays["train_labels"]))
    arrays["test_persons"] = (2**60 + np.arange(len(arrays["test_labels"]))).astype(np.uint64)
    data = load(save_npz(tmp_path / "a.npz", arrays))
    assert data.train.persons.tolist() == list(range(12)) and data.test.persons.tolist() == list(range(6))


def test_npz_of_the_size_of_cifar_is_fast(tmp_path: Path) -> None:
    from time import process_time

    images = np.random.default_rng(0).integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "big.npz", train_images=images, train_labels=np.arange(50_000) % 10)
    start = process_time()
    data = load(tmp_path / "big.npz")
    assert process_time() - start < 3
    assert np.array_equal(data.train.images[::5000], images[::5000])
    start = process_time()
    fingerprint(data.train)
    assert images.nbytes / (process_time() - start) > 100e6, "300 MB/s on an idle core"


def test_npz_of_near_constant_images_loads(tmp_path: Path) -> None:
    images = np.zeros((40_000, 32, 32), np.uint8)
    arrays = {"train_images": images, "train_labels": np.arange(40_000) % 2}
    assert len(load(save_npz(tmp_path / "masks.npz", arrays, compressed=True)).train) == 40_000


@pytest.mark.parametrize("channels", [1, 3])
def test_folder(tmp_path: Path, channels: int) -> None:
    arrays = good_arrays(channels=channels, classes=12)
    data = load(save_folder(tmp_path / "pets", arrays))
    assert data.name == "pets" and data.inferred == ("classes", "image size", "channels")
    assert data.classes == tuple(str(n) for n in range(12)), "sorted as numbers"
    assert data.train.images.shape == (48, 6, 6, channels) and data.train.persons is None
    assert load(tmp_path / "pets", classes=12, size=6).inferred == ("channels",)


def test_folder_with_names(tmp_path: Path) -> None:
    for place in ("train/hen", "train/cat", "test/cat"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("L", (5, 4), 7).save(tmp_path / place / "x.JPG")
    (tmp_path / "train/cat/.DS_Store").write_bytes(b"litter")
    assert load(tmp_path).classes == ("cat", "hen")
    assert load(tmp_path).train.images.shape == (2, 4, 5, 1)
    declared = load(tmp_path, classes=("hen", "cat", "cow"))
    assert declared.classes == ("hen", "cat", "cow") and declared.train.labels.tolist() == [1, 0]
    with pytest.raises(DataError, match="declare the names of the classes instead of their number"):
        load(tmp_path, classes=2)
    with pytest.raises(DataError, match="which is none of: hen, cow"):
        load(tmp_path, classes=("hen", "cow"))


def test_folder_mixes_gray_and_colour_to_colour(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "a", good_arrays())
    Image.new("RGB", (6, 6), (1, 2, 3)).save(path / "train" / "1" / "z.png")
    data = load(path)
    assert data.train.images.shape[3] == 3 and data.test is not None and data.test.images.shape[3] == 3
    assert [1, 2, 3] in data.train.images.reshape(-1, 3).tolist()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "PA"])
def test_folder_modes_of_png(tmp_path: Path, mode: str) -> None:
    path = save_folder(tmp_path / "a", good_arrays())
    if mode != "PA":
        Image.new("RGB", (6, 6), (255, 255, 255)).convert(mode).save(path / "train" / "1" / "z.png")
    else:
        picture = Image.new("P", (6, 6))
        picture.putpalette([255, 255, 255] * 4)
        picture.save(path / "train" / "1" / "z.png", transparency=bytes([0, 100, 255]))
    images = load(path).train.images
    assert images.shape[3] == (1 if mode in ("1", "L", "LA") else 3)
    assert any((image == 255).all() for image in images)


def test_folder_of_several_sizes(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "a", good_arrays())
    Image.new("L", (9, 12), 50).save(path / "train" / "1" / "z.png")
    mixed = load(path)
    assert mixed.train.images.shape[1:] == (64, 64, 1) and "image size" in mixed.inferred
    assert "all become 64x64" in mixed.notes[0] and "--size" in mixed.notes[0]
    assert load(path, size=6).notes == ()
    data = load(path, size=(4, 5))
    assert data.train.images.shape[1:] == (4, 5, 1) and "image size" not in data.inferred
    assert any((image == 50).all() for image in data.train.images)


def test_the_size_of_mixed_images_does_not_depend_on_them(tmp_path: Path) -> None:
    for number, sides in enumerate([(8, 5), (30, 20), (200, 100)]):
        path = save_folder(tmp_path / str(number), good_arrays())
        for copy in range(30):
            Image.new("L", sides).save(path / "train" / "1" / f"z{copy}.png")
        assert load(path).train.images.shape == (42, 64, 64, 1)


@pytest.mark.parametrize(("folder", "reason"), [("cat", "has no image"), ("test", "has no folder named train")])
def test_a_folder_without_images_gets_an_example_of_each_layout(tmp_path: Path, folder: str, reason: str) -> None:
    (tmp_path / folder).mkdir()
    with pytest.raises(DataError, match=reason) as caught:
        load(tmp_path)
    message, whole, parts, table = str(caught.value).split("\n")
    assert message.startswith(f"{tmp_path}: ") and "  cat/1.png" in whole
    assert "train/cat/1.png" in parts and "path,label" in table


def test_csv(tmp_path: Path) -> None:
    arrays = good_arrays(channels=3, persons=True)
    data = load(save_csv(tmp_path / "a", arrays))
    assert data.name == "data" and data.classes == ("0", "1", "2")
    assert np.array_equal(data.train.images, arrays["train_images"])
    for split in ("train", "val", "test"):
        part = getattr(data, split)
        ids = [f"p{number}" for number in arrays[f"{split}_persons"]]
        assert len(set(zip(ids, part.persons.tolist(), strict=True))) == len(set(ids))


def test_csv_details(tmp_path: Path) -> None:
    for name in ("a b", "c,d"):
        Image.new("L", (4, 4)).save(tmp_path / f"{name}.png")
    text = '\ufeffLabel, path ,split\r\nrot,a b.png,\r\n\r\n grün ,"c,d.png",train\r\n'
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    data = load(tmp_path / "t.csv")
    assert data.classes == ("grün", "rot") and data.train.labels.tolist() == [1, 0]
    assert data.val is None and data.test is None and data.train.persons is None


def test_links_inside_the_root_are_followed(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "a", good_arrays())
    (path / "kept elsewhere").mkdir()
    (path / "train" / "0" / "00000.png").rename(path / "kept elsewhere" / "a.png")
    (path / "train" / "0" / "z.png").symlink_to(Path("..", "..", "kept elsewhere", "a.png"))
    (tmp_path / "link").symlink_to(path)
    assert len(load(tmp_path / "link").train) == 12


def test_word_digits_and_folder_digits_are_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_folder(tmp_path / "digits", good_arrays())
    monkeypatch.chdir(tmp_path)
    assert len(load("digits").train) == 1437
    assert len(load("./digits").train) == len(load(Path("digits")).train) == 12


def test_broken_files_are_named_counted_and_left_out(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "a", good_arrays())
    want = fingerprint(load(path).train)
    good = (path / "train" / "0" / "00000.png").read_bytes()
    (path / "train" / "0" / "cut.png").write_bytes(good[:-20])
    (path / "train" / "1" / "text.png").write_text("no image")
    (path / "val" / "1" / "notes.txt").write_text("no image")
    with pytest.raises(DataError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path / "val" / "1" / "notes.txt") + ": is not an image by its name")
    assert "3 files are broken" in message
    assert f"list all with `dpvision check {path}`, or leave them out with --skip-broken" in message
    data = load(path, skip_broken=True)
    assert {broken.path for broken in data.broken} == {"train/0/cut.png", "train/1/text.png", "val/1/notes.txt"}
    assert fingerprint(data.train) == want


@pytest.mark.parametrize("classes", [0, 1, -3, 10**9, [], ["a"], ["a", "a"], ["a", ""], "ab", ["a", "\x1b[31m"]])
def test_impossible_classes(tmp_path: Path, classes: object) -> None:
    path = save_npz(tmp_path / "a.npz", good_arrays())
    with pytest.raises(DataError, match=r"a\.npz: "):
        load(path, classes=classes)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, (3,), (3, 4, 5), (3, 0), (10**6, 10**6), 2.5 + 0j, "ab"])
def test_impossible_sizes(tmp_path: Path, size: object) -> None:
    path = save_folder(tmp_path / "a", good_arrays())
    with pytest.raises(DataError, match=r"cannot have images of size"):
        load(path, size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nothing.npz", "notes.txt", "empty", "x\0.npz"])
def test_what_is_not_a_source(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"^.*(nothing\.npz|notes\.txt|empty|x\\x00\.npz): "):
        load(tmp_path / name)


def test_memory_is_refused_before_it_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpvision.data import limits

    monkeypatch.setattr(limits, "TOTAL_BYTES", 400)
    for path in (save_npz(tmp_path / "a.npz", good_arrays()), save_folder(tmp_path / "a", good_arrays())):
        with pytest.raises(DataError, match="Fix: pack it first"):
            load(path)


def test_split_has_a_length() -> None:
    part = Split(np.zeros((3, 2, 2, 1), np.uint8), np.zeros(3, np.int64), None)
    assert len(part) == 3
