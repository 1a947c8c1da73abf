"""Several labels per image: pairs of CIFAR-10 images side by side, with the classes of both as labels.

A pair is 32 x 64 pixels; 4,000 to train on and 1,000 to test, from the training and the test images of CIFAR-10. One
label of ten is unknown. Measured is the mean AUROC over the ten labels: of a network on features of patches (recipe
patches, model patches-256) and of a head on scattering features of half the size, with privacy at some epsilons; and
without, of a logistic regression for each label on the head's features. Nothing was chosen on test images: all settings
are those of the recipe and of `dpvision train FEATURES.npz`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.results import Figure, main
from benchmarks.shared_data import at_hand, unpacked
from dpvision.models import Featured, build
from dpvision.models.inputs import Predictions, to_tensor
from dpvision.models.tasks import Task
from dpvision.private.statistics import head_run
from dpvision.private.training import train
from dpvision.released.evaluation import read_evaluation
from dpvision.released.measures import measure
from dpvision.settings.recipes import recipe
from dpvision.settings.training import Config, merge
from dpvision.storage import safetensors
from dpvision.storage.run_folder import Run

TRAIN, TEST, UNKNOWN = 4000, 1000, 0.1
LABELS = 10


def make_pairs(
    images: NDArray[Any], labels: NDArray[Any], count: int, *, seed: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Join random images two by two; the labels of a pair are the union, and some are unknown."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(images), (count, 2), replace=False)
    joined = np.concatenate([images[chosen[:, 0]], images[chosen[:, 1]]], axis=2)
    several = np.zeros((count, LABELS), np.int8)
    for side in (0, 1):
        several[np.arange(count), labels.reshape(-1)[chosen[:, side]]] = 1
    several[rng.random(several.shape) < UNKNOWN] = -1
    return joined, several


def write(folder: Path, *, train_pairs: int, test_pairs: int) -> tuple[Path, Path]:
    """Write the pairs as images, and as scattering features of the same pairs."""
    whole = np.load(unpacked("cifar10", folder))
    arrays: dict[str, Any] = {}
    features: dict[str, Any] = {}
    encoder = build("scatter-linear@16", (3, 32, 64), classes=LABELS, seed=0)
    assert isinstance(encoder, Featured)
    for split, count, seed in (("train", train_pairs, 1), ("test", test_pairs, 2)):
        images, labels = make_pairs(whole[f"{split}_images"], whole[f"{split}_labels"], count, seed=seed)
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
        with torch.no_grad():
            parts = [encoder.features(to_tensor(images[i : i + 250])).flatten(1) for i in range(0, count, 250)]
        features |= {f"{split}_features": torch.cat(parts).numpy(), f"{split}_labels": labels}
    np.savez(folder / "pairs.npz", **arrays)
    np.savez(folder / "features.npz", **features)
    return folder / "pairs.npz", folder / "features.npz"


def macro(folder: Path) -> float:
    """Return the mean AUROC over the labels that a run states."""
    run = Run(folder)
    digest = safetensors.read(run.weights).header["digest"]
    figures = read_evaluation(run, classes=LABELS, weights=digest)
    assert figures is not None
    return float(figures["measures"]["macro_auroc"][0])


def of_network(source: Path, folder: Path, epsilon: float, count: int) -> float:
    given: dict[str, Any] = {"task": "labels", "classes": LABELS, "n": count, "epsilon": epsilon, "budget": 100.0}
    config = merge(recipe("patches", epsilon=epsilon), {**given, "model": "patches-256"}, source="benchmark")
    return macro(train.run(train.prepare(str(source), config), folder).run.folder)


def of_head(source: Path, folder: Path, epsilon: float, count: int) -> float:
    config = Config(task="labels", classes=LABELS, n=count, epsilon=epsilon, budget=100.0, head="descent")
    return macro(head_run.run(head_run.prepare(str(source), config), folder).run.folder)


def without_privacy(source: Path) -> float:
    """Fit a logistic regression for each label to the images whose label is known."""
    data = np.load(source)
    x, test = (data[f"{split}_features"] for split in ("train", "test"))
    x, test = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, test))
    mean, chances = x.mean(0), np.zeros(data["test_labels"].shape)
    for label in range(LABELS):
        known = data["train_labels"][:, label] >= 0
        learner = LogisticRegression(C=10.0, max_iter=100).fit(
            (x - mean)[known] * 10, data["train_labels"][known, label]
        )
        chances[:, label] = learner.predict_proba((test - mean) * 10)[:, 1]
    answers = (chances > 0.5).astype(np.int64)
    figures = measure(Predictions(answers, chances, chances), data["test_labels"], Task("labels", LABELS))
    return float(figures["measures"]["macro_auroc"][0])


def measure_all(quick: bool) -> list[Figure]:
    if not at_hand():
        print("skipped: the real data sets are not at hand", file=sys.stderr)
        return []
    count, tested = (1000, 500) if quick else (TRAIN, TEST)
    figures = []
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        os.environ["DPVISION_HOME"] = str(folder / "home")
        images, features = write(folder, train_pairs=count, test_pairs=tested)
        name = f"pairs of cifar10, {count:,}, mean AUROC"
        for epsilon in (3.0,) if quick else (1.0, 3.0, 8.0):
            value = of_head(features, folder / f"head-{epsilon:g}", epsilon, count)
            figures.append(Figure(f"{name}: head on scattering features, epsilon {epsilon:g}", value, low=0.5))
            os.environ["DPVISION_HOME"] = str(folder / f"home-{epsilon:g}")
            value = of_network(images, folder / f"network-{epsilon:g}", epsilon, count)
            figures.append(Figure(f"{name}: patches-256, epsilon {epsilon:g}", value, low=0.5))
        figures.append(Figure(f"{name}: logistic regression, no privacy", without_privacy(features), low=0.5))
    return figures


if __name__ == "__main__":
    main("labels", measure_all, about="Mean AUROC over ten labels of pairs of CIFAR-10 images.")
