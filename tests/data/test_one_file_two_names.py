"""One image under two names is one image: links are refused, and so is the same image under two persons."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpvision.data import check, load
from dpvision.errors import DataError
from dpvision.private.statistics import head_run, release
from dpvision.private.training import train
from dpvision.settings.recipes import release_recipe
from dpvision.settings.training import Config

LINKS: dict[str, Callable[[Path, Path], None]] = {
    "symbolic": lambda old, new: new.symlink_to(old.name),
    "hard": lambda old, new: os.link(old, new),
}


def images(folder: Path) -> list[Path]:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.png" for number in range(4)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(path)
    return paths


def table(folder: Path, extra: str) -> str:
    lines = ["path,label,person", *(f"{n}.png,{n % 2},person {n}" for n in range(4)), extra]
    (folder / "table.csv").write_text("\n".join(line for line in lines if line) + "\n")
    return str(folder / "table.csv")


@pytest.mark.parametrize("link", LINKS)
def test_a_link_to_a_listed_file_is_refused(link: str, tmp_path: Path) -> None:
    paths = images(tmp_path / "data")
    LINKS[link](paths[0], tmp_path / "data" / "other.png")
    load(table(tmp_path / "data", ""))  # what is not listed does not matter
    source = table(tmp_path / "data", "other.png,0,another person")
    with pytest.raises(DataError, match=r"one file under two names: other\.png .* 0\.png\. Fix"):
        load(source)
    assert any("one file under two names" in problem for problem in check(source).problems)


@pytest.mark.parametrize("link", LINKS)
def test_a_link_in_a_folder_of_classes_is_refused(link: str, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        paths = images(tmp_path / "data" / "train" / name)
    load(tmp_path / "data")
    LINKS[link](paths[0], paths[0].with_name("other.png"))
    with pytest.raises(DataError, match="one file under two names"):
        load(tmp_path / "data")


@pytest.mark.parametrize("kind", ["csv", "npz", "features", "release"])
def test_the_same_image_under_two_persons_is_refused(kind: str, tmp_path: Path) -> None:
    paths = images(tmp_path / "data")
    (tmp_path / "data" / "copy.png").write_bytes(paths[0].read_bytes())

    def source(person: str) -> str:
        if kind == "csv":
            return table(tmp_path / "data", f"copy.png,0,{person}")
        pixels = np.stack([np.asarray(Image.open(path)) for path in [*paths, paths[0]]])
        arrays = {"features": pixels.reshape(5, -1) / np.float32(255)} if kind == "features" else {"images": pixels}
        arrays |= {"labels": np.arange(5) % 2, "persons": np.array([*(f"person {n}" for n in range(4)), person])}
        np.savez(tmp_path / "data.npz", **{f"train_{name}": values for name, values in arrays.items()})
        return str(tmp_path / "data.npz")

    def prepare(person: str, unit: str) -> object:
        if kind == "features":
            return head_run.prepare(source(person), Config(epsilon=3.0, unit=unit))
        if kind == "release":
            settings = replace(release_recipe("moments"), epsilon=3.0, unit=unit, encoder="pixels", rank=0)
            return release.prepare(source(person), settings)
        return train.prepare(source(person), Config(epsilon=3.0, unit=unit, model="linear", steps=2, batch=2))

    prepare("person 0", "person")
    with pytest.raises(DataError, match=r"1 images appear more than once, under different persons.*Fix"):
        prepare("another person", "person")
    prepare("another person", "image")


def test_blank_images_of_two_persons_are_two(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8)
    pixels[4:] = 0
    np.savez(tmp_path / "data.npz", train_images=pixels, train_labels=np.arange(6) % 2, train_persons=np.arange(6))
    train.prepare(str(tmp_path / "data.npz"), Config(epsilon=3.0, unit="person", model="linear", steps=2, batch=2))
