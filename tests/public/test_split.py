"""Splits into a public and a private part are uniform, disjoint, complete and reproducible, and keep persons together."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpvision.data import identify, load, pack
from dpvision.errors import ConfigError
from dpvision.public.split import CONSENT, choose, hold_out
from tests.public.words import Say, say

__all__ = ["say"]
CLASSES = 3


def arrays(*, persons: bool = False, channels: int = 1) -> dict[str, np.ndarray]:
    """12 images of each of 3 classes to train on, all different, and a few others."""
    draw, results = np.random.default_rng(1), {}
    for split, count in (("train", 12 * CLASSES), ("val", CLASSES), ("test", 2 * CLASSES)):
        shape = (count, 6, 5) if channels == 1 else (count, 6, 5, channels)
        results[f"{split}_images"] = draw.integers(0, 256, shape, dtype=np.uint8)
        results[f"{split}_labels"] = draw.permutation(np.arange(count) % CLASSES)
        if persons:
            first = {"train": 0, "val": 22, "test": 21}[split]  # one or two images each; some are in two splits
            results[f"{split}_persons"] = draw.permutation(first + np.arange(count) * 2 // 3) * 7 + 100
    return results


def npz(path: Path, **options: Any) -> Path:
    np.savez(path, **arrays(**options))
    return path


def table(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    result = arrays(persons=True)
    with (folder / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split", "person"])
        for split in ("train", "val", "test"):
            for number, image in enumerate(result[f"{split}_images"]):
                name = f"images/{split}{number}.png"
                Image.fromarray(image).save(folder / name)
                label = "abc"[result[f"{split}_labels"][number]]
                writer.writerow([name, label, split, f"p{result[f'{split}_persons'][number]}"])
    return folder / "data.csv"


def folder(path: Path) -> Path:
    result = arrays()
    for split in ("train", "test"):
        for number, image in enumerate(result[f"{split}_images"]):
            place = path / split / f"class{result[f'{split}_labels'][number]}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{number}.png")
    return path


def digests(source: Path | str, split: str = "train") -> list[bytes]:
    return identify(getattr(load(source), split))[2]


def made(kind: str, tmp_path: Path) -> Path | str:
    match kind:
        case "digits":
            return "digits"
        case "npz":
            return npz(tmp_path / "data.npz", channels=3)
        case "float":
            result = arrays()
            np.savez(tmp_path / "f.npz", **{k: v / np.float32(255) if "images" in k else v for k, v in result.items()})
            return tmp_path / "f.npz"
        case "csv":
            return table(tmp_path / "table")
        case "folder":
            return folder(tmp_path / "folder")
        case _:
            return pack(npz(tmp_path / "data.npz", persons=True), tmp_path / "store")


@pytest.mark.parametrize("kind", ["digits", "npz", "float", "csv", "folder", "store"])
def test_parts_are_uniform_disjoint_and_complete(kind: str, tmp_path: Path, say: Say) -> None:
    source, out = made(kind, tmp_path), tmp_path / "parts"
    code, result, err = say("data", "split", source, "--public", 12, "--out", out)
    assert code == 0, err
    before, public, private = load(source), load(out / "public.npz"), load(out / "private.npz")
    one, other = digests(out / "public.npz"), digests(out / "private.npz")
    assert not set(one) & set(other)
    assert sorted(one + other) == sorted(identify(before.train)[2])
    counts = np.bincount(public.train.labels).tolist()
    classes, persons = len(before.classes), before.train.persons is not None
    assert max(counts) <= 12 // classes and (persons or counts == [12 // classes] * classes)
    assert public.test is None and public.val is None
    for name in ("val", "test"):
        was, now = getattr(before, name), getattr(private, name)
        assert (was is None) == (now is None)
        if was is not None:
            assert np.array_equal(was.images, now.images) and np.array_equal(was.labels, now.labels)
    content = json.loads((out / "split.json").read_text())
    assert content["seed"] == 0 and content["consent"] == CONSENT and CONSENT in result
    assert content["source"]["digest"] == identify(before.train)[1]
    assert content["public"]["digest"] == identify(public.train)[1]
    assert content["private"]["digest"] == identify(private.train)[1]
    assert content["public"]["of_each_class"] == counts and content["public"]["images"] == len(one)
    rows = content["public_rows"]
    assert np.array_equal(before.train.images[rows], public.train.images)
    assert np.array_equal(before.train.labels[rows], public.train.labels)
    if kind == "csv":
        assert "--classes a,b,c" in result


def test_the_seed_decides(tmp_path: Path, say: Say) -> None:
    source = npz(tmp_path / "data.npz")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert say("data", "split", source, "--public", 9, "--seed", seed, "--out", tmp_path / name)[0] == 0
    for file in ("public.npz", "private.npz", "split.json"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b and a != c


def test_a_person_is_wholly_in_one_part(tmp_path: Path, say: Say) -> None:
    source = npz(tmp_path / "data.npz", persons=True)
    result, chosen = arrays(persons=True), []
    for seed in range(8):
        out = tmp_path / str(seed)
        assert say("data", "split", source, "--public", 6, "--seed", seed, "--out", out)[0] == 0
        rows = json.loads((out / "split.json").read_text())["public_rows"]
        owners, rest = result["train_persons"][rows], np.delete(result["train_persons"], rows)
        assert not np.isin(owners, rest).any()
        assert not np.isin(owners, result["val_persons"]).any()
        assert not np.isin(owners, result["test_persons"]).any()
        chosen.append(tuple(rows))
        counts = np.bincount(result["train_labels"][rows], minlength=CLASSES)
        assert counts.min() >= 1 and counts.max() <= 2
    assert len(set(chosen)) > 1


def test_single_images_of_persons_fill_every_class_exactly() -> None:
    labels = np.repeat(np.arange(4), 50)
    persons = np.where(np.arange(200) % 2, np.arange(200), 1000 + np.arange(200) // 10)
    rows = choose(labels, classes="abcd", count=40, seed=3, persons=persons)
    assert np.bincount(labels[rows]).tolist() == [10] * 4
    assert not np.isin(persons[rows], np.delete(persons, rows)).any()


def test_every_image_of_a_class_has_the_same_probability(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(2), 10)
    hits = sum(np.bincount(choose(labels, classes="ab", count=4, seed=s), minlength=20) for s in range(2000))
    assert abs(hits - 400).max() < 90  # five deviations of a binomial


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("--public", 36), 2, "has 12 training images: making 12 per class public would leave none"),
        (("--public", 2), 2, "too few for 3 classes"),
        (("--public", 0), 2, "too few for"),
        (("--public", -3), 2, "too few for"),
        (("--public", "many"), 2, "many"),
        (("--public", 6, "--seed", -1), 2, "seed is -1"),
        (("--public", 6, "--classes", "5"), 2, "class '3' has 0 training images"),
        (("--public", 6, "--size", "9"), 3, "contains images of 6x5"),
        ((), 2, "public"),
    ],
)
def test_an_impossible_split_is_one_clear_error(
    words: tuple[Any, ...], code: int, reason: str, tmp_path: Path, say: Say
) -> None:
    got, _, err = say("data", "split", npz(tmp_path / "data.npz"), *words, "--out", tmp_path / "parts")
    assert got == code and reason in err and "Traceback" not in err, err
    assert not (tmp_path / "parts").exists()


def test_the_suggested_fix_works(tmp_path: Path, say: Say) -> None:
    source = npz(tmp_path / "data.npz")
    _, _, err = say("data", "split", source, "--public", 300, "--out", tmp_path / "parts")
    assert "use --public 33 or less" in err
    assert say("data", "split", source, "--public", 33, "--out", tmp_path / "parts")[0] == 0


def test_a_count_that_is_not_a_multiple_is_reported(tmp_path: Path, say: Say) -> None:
    code, result, _ = say("data", "split", npz(tmp_path / "data.npz"), "--public", 11, "--out", tmp_path / "parts")
    assert code == 0 and "9 images, 3 of each of 3 classes" in result
    assert "11 were requested, but that is not a multiple of 3 classes" in result


def test_nothing_is_overwritten(tmp_path: Path, say: Say) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "private.npz").write_bytes(b"precious")
    code, _, err = say("data", "split", npz(tmp_path / "data.npz"), "--public", 6, "--out", tmp_path / "parts")
    assert code == 2 and "has other files in it" in err
    assert (tmp_path / "parts" / "private.npz").read_bytes() == b"precious"


def test_a_broken_source_is_refused(tmp_path: Path, say: Say) -> None:
    file = npz(tmp_path / "data.npz")
    file.write_bytes(file.read_bytes()[:-100])
    code, _, err = say("data", "split", file, "--public", 6, "--out", tmp_path / "parts")
    assert code == 3 and "data.npz" in err and not (tmp_path / "parts").exists()


def test_resized_images_are_reported(tmp_path: Path, say: Say) -> None:
    source = folder(tmp_path / "folder")
    code, result, _ = say("data", "split", source, "--public", 6, "--size", 4, "--out", tmp_path / "small")
    assert code == 0 and "resized or recoloured" in result
    code, result, _ = say("data", "split", source, "--public", 6, "--out", tmp_path / "same")
    assert code == 0 and "resized or" not in result


def test_a_share_of_each_class_is_held_out() -> None:
    labels = np.repeat(np.arange(3), (40, 20, 10))
    held = hold_out(labels, share=0.1, seed=0)
    assert np.bincount(labels[held]).tolist() == [4, 2, 1]
    assert (
        np.array_equal(held, hold_out(labels, share=0.1, seed=0))
        and (held != hold_out(labels, share=0.1, seed=1)).any()
    )
    assert not hold_out(labels, share=0.0, seed=0).any()
    persons = np.arange(70) // 5
    held = hold_out(np.arange(70) % 3, share=0.2, seed=0, persons=persons)
    assert 0 < held.sum() <= 14 and not np.isin(persons[held], persons[~held]).any()
    for share in (0.001, 0.999):
        with pytest.raises(ConfigError, match="hold-out"):
            hold_out(labels, share=share, seed=0)
