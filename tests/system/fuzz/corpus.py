"""Sound files of every kind that dpvision reads, made by its own verbs: what hostile inputs are made from."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.fork_server import ForkServer
from tests.system.runs.commands import write_data

# The folder (or file) of each kind, below the corpus. A hostile input is a copy of one, with a file of it changed.
KINDS = (
    "data.npz",
    "photos",
    "listed",
    "packed",
    "settings",
    "home",
    "run",
    "stopped",
    "released",
    "mapped",
    "edm",
    "guide",
    "prior",
    "warmed",
    "warming",
    "drawing",
    "drawn",
)


def made(server: ForkServer, folder: Path) -> Path:
    """The corpus, in an empty folder."""
    data, home = write_data(folder / "data.npz", images=40), folder / "home"
    _as_files(data, folder)
    edm, drawing, table = folder / "edm", folder / "drawing", folder / "listed" / "table.csv"
    small = ("--batch", 4, "--steps", 2)
    train = ("train", data, "--epsilon", 1, "--batch", 4, "--study", "--canaries", 8)
    release = ("--epsilon", 0.5, "--encoder", "pixels", "--rank", 0, "--rows", 12)
    warm = ("warm", data, "--model", "linear", *small, "--augment", "none", "--save-every", 0, "--consented")
    guide = ("--samples", 8, "--extractor-steps", 1, *small, "--width", 8, "--consented")
    prior = ("--process", "dead-leaves-mixed", "--size", 8, "--finer", 1, "--count", 4, "--batch", 2, "--steps", 1)
    draw = ("synth", "sample", edm, "--count", 8, "--batch", 4, "--steps", 2)
    for name in ("settings", "drawing", "drawn"):
        (folder / name).mkdir()
    for words in (
        (*train, "--steps", 2, "--budget", 4, "--examples", 2, "--out", folder / "run"),
        ("audit", folder / "run", data, "--runs", 100, "--confidence", 0.999999),  # never refuted by chance
        ("release", data, *release, "--out", folder / "released"),
        ("data", "pack", data, "--out", folder / "packed"),
        ("recipes", "copy", "small-cnn", "--out", folder / "settings" / "train.toml"),
        ("recipes", "copy", "neuromix", "--out", folder / "settings" / "release.toml"),
        ("synth", "fit", data, "--size", "tiny", *small, "--consented", "--out", edm),
        ("synth", "guide", edm, data, *guide, "--out", folder / "guide"),
        ("pretrain", "--model", "wrn-10-1", "--hidden", 16, *prior, "--out", folder / "prior"),
        (*warm, "--out", folder / "warmed"),
        (*draw, "--out", folder / "drawn" / "images.npz"),
    ):
        code, _, err = server.run(*words, home=home)
        assert code == 0, err
    _with_a_map(folder / "released", folder / "mapped")
    stopped = (*train, "--steps", 6, "--checkpoint-every", 2, "--out", folder / "stopped")
    for words, die_at in (
        (stopped, 59),  # after step 4 was saved
        ((*warm, "--out", folder / "warming"), 8),
        ((*draw, "--out", drawing / "drawn.npz"), 9),
        (("release", table, *release, "--out", folder / "never"), 14),  # when all features are whole, and have no name
    ):
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
                Image.fromarray(image).save(place / f"{number}.{('jpg', 'png', 'webp', 'tif')[number % 4]}")
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
