"""Sound files of every kind that dpvision reads, made by its own verbs: what hostile inputs are made from."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.fork_server import ForkServer
from tests.guarantees.commands import write_data

# The folder (or file) of each kind, below the corpus. A hostile input is a copy of one, with a file of it changed.
KINDS = (
    "data.npz",
    "photos",
    "listed",
    "packed",
    "settings",
    "home",
    "run",
    "released",
    "mapped",
    "edm",
    "guide",
    "prior",
    "warmed",
    "warming",
    "drawing",
)


def made(server: ForkServer, folder: Path) -> Path:
    """The corpus, in an empty folder."""
    data, home = write_data(folder / "data.npz", images=40), folder / "home"
    _as_files(data, folder)
    small = ("--batch", 4, "--steps", 2)
    release = ("release", data, "--epsilon", 0.5, "--encoder", "pixels", "--rank", 0, "--rows", 12)
    edm, warm = folder / "edm", ("--model", "linear", *small, "--augment", "none", "--save-every", 0, "--consented")
    prior = ("--process", "dead-leaves-mixed", "--size", 8, "--finer", 1, "--count", 4, "--batch", 2, "--steps", 1)
    (folder / "settings").mkdir()
    for words in (
        ("train", data, "--epsilon", 1, *small, "--budget", 4, "--examples", 2, "--out", folder / "run"),
        (*release, "--out", folder / "released"),
        ("data", "pack", folder / "data.npz", "--out", folder / "packed"),
        ("recipes", "copy", "small-cnn", "--out", folder / "settings" / "train.toml"),
        ("recipes", "copy", "neuromix", "--out", folder / "settings" / "release.toml"),
        ("synth", "fit", data, "--size", "tiny", *small, "--consented", "--out", edm),
        (
            "synth",
            "guide",
            edm,
            data,
            "--samples",
            8,
            "--extractor-steps",
            1,
            *small,
            "--width",
            8,
            "--consented",
            "--out",
            folder / "guide",
        ),
        ("pretrain", "--model", "wrn-10-1", "--hidden", 16, *prior, "--out", folder / "prior"),
        ("warm", data, *warm, "--out", folder / "warmed"),
    ):
        code, _, err = server.run(*words, home=home)
        assert code == 0, err
    _with_a_map(folder / "released", folder / "mapped")
    drawing = folder / "drawing"
    drawing.mkdir()
    draw = ("synth", "sample", edm, "--count", 8, "--batch", 4, "--steps", 2, "--out", drawing / "drawn.npz")
    for words, die_at in ((("warm", data, *warm, "--out", folder / "warming"), 8), (draw, 9)):
        job = server.start(*words, home=home, arena=folder, die_at=die_at)
        assert server.ended(job, within=300) == -9
    return folder


def _as_files(data: Path, folder: Path) -> None:
    """The same images as a folder of files, and as a table of them."""
    (folder / "listed").mkdir()
    with np.load(data) as arrays, (folder / "listed" / "table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split", "person"])
        for number in range(8):
            for split in ("train", "test"):
                image, label = arrays[f"{split}_images"][number], int(arrays[f"{split}_labels"][number])
                place = folder / "photos" / split / f"class-{label}"
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(place / f"{number}.png" if number % 2 else place / f"{number}.jpg")
                Image.fromarray(image).save(folder / "listed" / f"{split}-{number}.png")
                rows.writerow([f"{split}-{number}.png", label, split, f"p{number % 3}"])


def _with_a_map(released: Path, folder: Path) -> None:
    """The same release, as if its rows were made by a map of the encoder's features."""
    from safetensors.numpy import load_file, save_file

    folder.mkdir()
    for path in released.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    width = json.loads((released / "schema.json").read_text())["width"]
    assert load_file(released / "rows-00000.safetensors")["features"].shape == (12, width)
    arrays = {"mean": np.zeros(width), "matrix": np.eye(width)}
    save_file(arrays, folder / "map.safetensors")
