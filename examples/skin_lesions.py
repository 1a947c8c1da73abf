"""A hospital's afternoon: images of skin lesions, two or three per person; a classifier at epsilon 3 and its audit.

Takes an .npz file with MedMNIST's keys, such as DermaMNIST; without one, it uses the built-in digits. Such a file does
not state which images belong to the same person, so persons are invented: two or three images of one class each, since
HAM10000 has several images of most lesions. An image that appears twice is used once: under two persons, it would be
refused. Everything else is what a hospital would type; each command is printed before it runs.

    python examples/skin_lesions.py                          digits: 12 seconds of one core
    python examples/skin_lesions.py dermamnist.npz           a few minutes on one core
    python examples/skin_lesions.py --out FOLDER             by default a new folder below the system's temporary one

The data is public, so each run uses a new ledger in its folder. For real patients, there is one ledger for all runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from dpvision.cli import main as command_line
from dpvision.settings.figures import lower, upper

EPSILON, CANARIES = 3, 2000
Arrays = dict[str, tuple[np.ndarray, np.ndarray]]  # split -> images, labels


def arrays(source: Path | None) -> Arrays:
    """Return training and test images with their labels. Every fifth of the digits is a test image."""
    if source is not None:
        with np.load(source, allow_pickle=False) as file:
            return {s: without_copies(file[f"{s}_images"], file[f"{s}_labels"].ravel()) for s in ("train", "test")}
    digits = load_digits()
    images, test = (digits.images * 15).astype(np.uint8), np.arange(len(digits.target)) % 5 == 0
    return {s: (images[which], digits.target[which]) for s, which in (("train", ~test), ("test", test))}


def without_copies(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels without later copies of an image."""
    _, first = np.unique(images.reshape(len(images), -1), axis=0, return_index=True)
    first.sort()
    return images[first], labels[first]


def persons_of(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a person for each image: in random order, two or three images of one class belong to one person."""
    persons, number = np.empty(len(labels), dtype=np.int64), 0
    for label in np.unique(labels):
        left = rng.permutation(np.flatnonzero(labels == label))
        while len(left):
            share = int(rng.integers(2, 4))
            persons[left[:share]], left, number = number, left[share:], number + 1
    return persons


def write(data: Arrays, folder: Path) -> tuple[Path, int]:
    """Write a PNG file per image, and scans.csv. Return the path of scans.csv and the number of training persons."""
    rng, lines, count = np.random.default_rng(0), [], 0
    for split, (images, labels) in data.items():
        (folder / split).mkdir(parents=True)
        persons = persons_of(labels, rng)
        count = len(np.unique(persons)) if split == "train" else count
        for i, (image, label, person) in enumerate(zip(images, labels, persons, strict=True)):
            Image.fromarray(image).save(folder / split / f"{i:05}.png")
            lines.append((f"{split}/{i:05}.png", int(label), f"{split}-{person:04}", split))
    with (folder / "scans.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "person", "split"), *lines])
    return folder / "scans.csv", count


def dpvision(*words: object) -> None:
    """Print a command and run it."""
    print(f"\n$ dpvision {shlex.join(map(str, words))}", flush=True)
    sys.argv[1:] = map(str, words)
    try:
        command_line()
    except SystemExit as end:
        if end.code:
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("npz", nargs="?", type=Path, help="an .npz file with MedMNIST's keys; default: digits")
    parser.add_argument("--out", type=Path, help="new folder for everything; default: a temporary one")
    parser.add_argument("--confidence", type=float, default=0.95, help="confidence of the audit's bounds")
    asked = parser.parse_args()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="skin_lesions_"))
    source = None if asked.npz is None else asked.npz.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    os.environ["DPVISION_HOME"] = str(Path("home").absolute())

    data = arrays(source)
    scans, persons = write(data, Path("images"))
    # The hospital declares the number of persons. A mirrored lesion is still a lesion; a mirrored digit is not a digit.
    recipe = ("--recipe", "patches", "--model", "patches-256") if data["train"][0].ndim == 4 else ()
    settings = ("--epsilon", EPSILON, "--unit", "person", "--n", persons, *recipe)
    dpvision("check", scans)
    side, channels = data["train"][0].shape[1], 3 if data["train"][0].ndim == 4 else 1
    dpvision("plan", "--n", persons, "--epsilon", EPSILON, "--size", side, "--channels", channels)
    dpvision("train", scans, *settings, "--dry-run")
    dpvision("train", scans, *settings, "--out", "run")
    dpvision("audit", "run", "--runs", CANARIES, "--confidence", asked.confidence)
    dpvision("eval", "run", scans)
    dpvision("predict", "run", "images/test", "--out", "guesses.csv")
    dpvision("ledger", scans)

    shown = json.loads(Path("run/audit.json").read_text())["mechanism"]
    print(f"\nfor the data protection officer: {Path('run/report.html').absolute()}")
    print(f"epsilon of a person: at most {upper(shown['epsilon_proved'])}, by proof; at least ", end="")
    print(f"{lower(shown['epsilon_at_least'])}, by an attack with {shown['canaries']:,} canaries")


if __name__ == "__main__":
    main()
