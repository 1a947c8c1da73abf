"""A folder of classes has a test part set aside: by content or person, whatever the files are called."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpvision.data import Dataset, check, identify, load, pack
from dpvision.errors import DataError

COUNT = 400


def save(folder: Path, *, names: str = "{}.png", count: int = COUNT, seed: int = 0) -> Path:
    draw = np.random.default_rng(seed)
    for number in range(count):
        place = folder / ("cat", "dog", "hen")[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(draw.integers(0, 256, (5, 4), dtype=np.uint8))
        image.save(place / names.format(number))
    return folder


def sides(data: Dataset) -> dict[bytes, str]:
    return {digest: name for name, part in data.splits.items() for digest in identify(part)[2]}


def test_a_share_is_set_aside(tmp_path: Path) -> None:
    folder = save(tmp_path / "a")
    data = load(folder)
    assert data.test is not None and data.test_share == 0.2 and data.classes == ("cat", "dog", "hen")
    assert len(data.train) + len(data.test) == COUNT
    assert abs(len(data.test) - 80) < 4 * (COUNT * 0.2 * 0.8) ** 0.5
    assert "0.2 of it is set aside" in data.notes[0] and "--test-share" in data.notes[0]
    assert load(folder, test_share=0).test is None and load(folder, test_share=0).test_share == 0
    larger, smaller = sides(load(folder, test_share=0.5)), sides(data)
    assert {d for d, side in smaller.items() if side == "test"} <= {d for d, side in larger.items() if side == "test"}
    findings = check(folder)
    assert {name: sum(of.values()) for name, of in findings.counts.items()} == {
        "train": len(data.train),
        "test": len(data.test),
    }


def test_names_order_and_other_records_move_nobody(tmp_path: Path) -> None:
    one = sides(load(save(tmp_path / "a")))
    assert sides(load(save(tmp_path / "b", names="x{}.png"))) == one
    assert sides(load(save(tmp_path / "c", names="{}.webp".replace("webp", "tif")))) == one, "pixels decide"
    fewer = save(tmp_path / "d")
    for number in range(0, COUNT, 7):
        next(fewer.glob(f"*/{number}.png")).unlink()
    left = sides(load(fewer))
    assert len(left) < COUNT and left.items() <= one.items()
    assert sides(load(pack(fewer, tmp_path / "store"))) == left and sides(load(fewer, size=3)) == left


def test_copies_of_an_image_are_on_one_side(tmp_path: Path) -> None:
    folder = save(tmp_path / "a")
    for path in sorted(folder.glob("*/*.png")):
        shutil.copy(path, folder / "hen" / f"copy-{path.name}")
    data = load(folder)
    assert data.test is not None
    train, test = (set(identify(part)[2]) for part in (data.train, data.test))
    assert not train & test and len(train) + len(test) == COUNT


def test_persons_are_wholly_on_one_side(tmp_path: Path) -> None:
    folder = save(tmp_path / "a")
    with (tmp_path / "a" / "scans.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "person"])
        for path in sorted(folder.glob("*/*.png")):
            writer.writerow([path.relative_to(folder), path.parent.name, f"p{int(path.stem) // 5}"])
    assert load(folder / "scans.csv").test is None, "as before"
    data = load(folder / "scans.csv", test_share=0.3)
    assert data.test is not None and data.train.persons is not None and data.test.persons is not None
    assert not set(data.train.persons.tolist()) & set(data.test.persons.tolist())
    assert abs(len(set(data.test.persons.tolist())) - 24) < 4 * (80 * 0.3 * 0.7) ** 0.5


def test_a_split_of_its_own_stays(tmp_path: Path) -> None:
    save(tmp_path / "set" / "train", seed=1)
    save(tmp_path / "set" / "test", seed=2, count=30)
    data = load(tmp_path / "set", test_share=0.5)
    assert data.test is not None and (len(data.train), len(data.test), data.test_share) == (COUNT, 30, None)


@pytest.mark.parametrize("share", [-0.1, 0.95, 1, float("nan"), "0.2", True])
def test_impossible_shares(tmp_path: Path, share: object) -> None:
    with pytest.raises(DataError, match=r"Fix: use a share from 0 to 0\.9"):
        load(save(tmp_path / "a", count=3), test_share=share)  # type: ignore[arg-type]


def test_other_files_next_to_the_classes_are_ignored(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", count=30)
    for name in ("README.md", "metadata.csv", "LICENSE", ".DS_Store"):
        (folder / name).write_text("text")
    assert load(folder).broken == ()
    (folder / "cat" / "notes.txt").write_text("text")
    with pytest.raises(DataError, match=r"cat/notes\.txt: is not an image by its name"):
        load(folder)


def test_the_hash_is_that_of_every_version(tmp_path: Path) -> None:
    """Other sides would be another data set with other accounts."""
    from dpvision.data.test_part import is_test

    chosen = [n for n in range(20) if is_test(0.3, digest=bytes([n]) * 32, person=None)]
    persons = [n for n in range(20) if is_test(0.3, digest=b"", person=str(n))]
    assert (chosen, persons) == (CHOSEN, PERSONS)


CHOSEN = [2, 3, 7, 9, 16, 18]
PERSONS = [0, 5, 12, 13, 17]
