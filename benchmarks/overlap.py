"""One account per data set: copies that must be recognised, and images that must not be mistaken for copies."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np

from benchmarks.results import Figure, main
from benchmarks.shared_data import at_hand, unpacked
from dpvision.core.events import Budget
from dpvision.data import Split, identify, load
from dpvision.private.accounts import overlap
from dpvision.storage.home import CHARGED_SHARE, ledger_of

NAMES = ("mnist", "fashion_mnist", "cifar10", "dermamnist")
IMAGES = 0.005  # of different images may be mistaken for copies
FOUND = 0.95  # of the images of a copy
SECONDS = 8.0  # for the digests of a whole training split, while other work runs


def one_pixel(x: np.ndarray) -> np.ndarray:
    """Another pixel in each image, set to the other end of the scale."""
    rng, changed = np.random.default_rng(0), x.copy()
    place = np.arange(len(x)), rng.integers(0, x.shape[1], len(x)), rng.integers(0, x.shape[2], len(x))
    changed[place] = np.where(changed[place] > 127, 0, 255)
    return changed


def stamp(x: np.ndarray) -> np.ndarray:
    """A white square over a ninth of each image, in a corner."""
    changed = x.copy()
    changed[:, : x.shape[1] // 3, : x.shape[2] // 3] = 255
    return changed


COPIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32 in [0, 1]": lambda x: (x / 255).astype(np.float32),
    "float32 in [-1, 1]": lambda x: (x / 127.5 - 1).astype(np.float32),
    "half precision": lambda x: (x / 255).astype(np.float16),
    "int16, times 16": lambda x: x.astype(np.int16) * 16,
    "grey as RGB": lambda x: np.repeat(x, 3, axis=3) if x.shape[3] == 1 else x,
    "one pixel of each image": one_pixel,
    "a stamp on each image": stamp,
}
# Reported only: the digests are not designed for these.
HARDER: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "every pixel moved by at most 1": lambda x: np.clip(
        x.astype(np.int16) + np.random.default_rng(0).integers(-1, 2, x.shape), 0, 255
    ).astype(np.uint8),
    "mirrored": lambda x: x[:, :, ::-1],
}


def _sketch(images: np.ndarray) -> overlap.Sketch:
    split = Split(images, np.zeros(len(images), np.int64), None)
    return overlap.sketch_images(images, identify(split)[2])


def _compare(ours: overlap.Sketch, theirs: overlap.Sketch) -> tuple[float, float]:
    """Return the shares of both data sets that an account of the second one recognises as common."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["DPVISION_HOME"] = place
        ledger = ledger_of("ab" * 32)
        ledger.open(Budget(1.0, 1e-5))
        overlap.remember(ledger, theirs)
        measured = overlap.find("cd" * 32, ours, min_share=1e-9)
        return (measured[0].of_ours, measured[0].of_theirs) if measured else (0.0, 0.0)


def _nearly_blank(seed: int) -> np.ndarray:
    """Blank scans: one grey level each, with a little sensor noise in a corner."""
    rng = np.random.default_rng(seed)
    images = np.zeros((5000, 28, 28, 1), np.uint8) + rng.integers(0, 60, (5000, 1, 1, 1), dtype=np.uint8)
    images[:, :3, :3] += rng.integers(0, 2, (5000, 3, 3, 1), dtype=np.uint8)
    return images


def _read(folder: Path) -> dict[str, np.ndarray]:
    images = {}
    for name in ("digits", *(NAMES if at_hand() else ())):
        data = load(name if name == "digits" else unpacked(name, folder))
        for split in ("train", "test"):
            images[f"{name} {split}"] = np.asarray(getattr(data, split).images)
    if "cifar10 train" in images:
        images["cifar10 cut to 28x28"] = images["cifar10 train"][:, 2:30, 2:30]
    images["nearly blank"], images["nearly blank, others"] = _nearly_blank(0), _nearly_blank(1)
    return images


def measure(quick: bool) -> list[Figure]:
    if not at_hand():
        print("left out: all that needs the shared data, which is not at hand", file=sys.stderr)
    figures = []
    with tempfile.TemporaryDirectory() as place:
        images = _read(Path(place))
    sketches, seconds = {}, {}
    for name, array in images.items():
        start = time.perf_counter()
        sketches[name] = _sketch(array)
        seconds[name] = time.perf_counter() - start
    worst: dict[str, tuple[float, float]] = {}
    for ours, theirs in permutations(sketches, 2):
        if "cifar10" in ours and "cifar10" in theirs and "cut" in ours + theirs:
            continue  # the same images
        of_ours, of_theirs = _compare(sketches[ours], sketches[theirs])
        same = ours.split()[0].rstrip(",") == theirs.split()[0].rstrip(",")
        group = f"{ours} in {theirs}" if same else "other pairs of data sets"
        before = worst.get(group, (0.0, 0.0))
        worst[group] = max(before[0], of_ours), max(before[1], of_theirs)
    figures += [
        Figure(f"false alarms, images of {group}", shares[0], high=IMAGES) for group, shares in sorted(worst.items())
    ]
    largest = max(share for shares in worst.values() for share in shares)
    figures.append(Figure("false alarms, largest share of either data set", largest, high=CHARGED_SHARE / 2))
    for name in ("digits", *(NAMES if at_hand() else ())):
        array = images[f"{name} train"][: 2000 if quick else 10_000]
        theirs = _sketch(array)
        for how, change in COPIES.items():
            figures.append(Figure(f"found: {name}, {how}", _compare(_sketch(change(array)), theirs)[0], low=FOUND))
        for how, change in HARDER.items():
            figures.append(Figure(f"found: {name}, {how}", _compare(_sketch(change(array)), theirs)[0]))
    for name, taken in seconds.items():
        if name.endswith("train"):
            about = f"seconds for the digests of {len(images[name]):,} images, {name}"
            figures.append(Figure(about, taken, high=SECONDS, unit="s"))
    return figures


ABOUT = (
    "Shares of images of one data set that are taken for images of another one, all pairs of MNIST, Fashion-MNIST, "
    "CIFAR-10, DermaMNIST, digits and nearly blank images, and the splits of each; and of copies that were saved in "
    "another way or edited. An account with 2% of either data set is charged."
)

if __name__ == "__main__":
    main("overlap", measure, about=ABOUT)
