"""Test accuracy of the recipe `auto` and of the others, on real data sets of several sizes and on synthetic ones.

Every training is one line of auto.jsonl, so the full form can be measured in several goes. A recipe that `auto` chose
is not trained twice. Test images were not used for the rule, whose numbers come from parts of the training images.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.made import outlines, weaves
from benchmarks.results import Figure, chosen_device, device_options, main
from benchmarks.shared_data import at_hand, unpacked
from dpvision.private.training import train
from dpvision.settings.recipes import recipe
from dpvision.settings.training import Config
from dpvision.storage.home import home

KEPT = Path(__file__).with_name("auto.jsonl")
EPSILONS = (1.0, 3.0, 8.0)
TESTED = 2000  # test images of a real data set
GREY, COLOUR = (
    ("default", "linear-centred", "scatter-centred", "scatter-linear"),
    ("default", "scatter-centred", "patches"),
)
# Name -> candidates. NAME-n: the first n training images; shirts: two classes of Fashion-MNIST, 10% and 90%.
DATA: dict[str, tuple[str, ...]] = {
    "digits": ("default", "linear-centred", "scatter-centred"),
    "outlines-3000": GREY,
    "weaves-3000": COLOUR,
    "shirts-3900": GREY,
    "mnist-2000": GREY,
    "fashion_mnist-2000": GREY,
    "cifar10-2000": COLOUR,
    "mnist-5000": GREY,
    "fashion_mnist-5000": GREY,
    "dermamnist-7007": COLOUR,
    "cifar10-5000": COLOUR,
    "mnist-10000": GREY,
    "fashion_mnist-10000": GREY,
}
QUICK = ("digits", "shirts-3900")
WITHIN = 0.5  # points that `auto` may be below the best
WELL_ABOVE = 2.0  # points over the most frequent class


@dataclass(frozen=True)
class Done:
    """One training: `settings` is the digest of its complete settings."""

    data: str
    recipe: str
    epsilon: float
    settings: str
    accuracy: float
    balanced: float  # mean accuracy of the classes
    majority: float  # share of the most frequent class
    seconds: float


def source_of(name: str, folder: Path) -> str:
    """Write a data set as .npz, unless it is built in."""
    if name == "digits":
        return name
    path = folder / f"{name}.npz"
    if not path.exists():
        kind, _, count = name.rpartition("-")
        np.savez(path, **_arrays(kind, int(count), folder))
    return str(path)


def _arrays(kind: str, count: int, folder: Path) -> dict[str, Any]:
    if kind in ("outlines", "weaves"):
        make = {"outlines": outlines, "weaves": weaves}[kind]
        (train_images, train_labels), (test_images, test_labels) = make(count, seed=1), make(1000, seed=2)
        return {**_named("train", train_images, train_labels), **_named("test", test_images, test_labels)}
    arrays = dict(np.load(unpacked("fashion_mnist" if kind == "shirts" else kind, folder)))
    if kind == "shirts":  # T-shirts (0) and shirts (6)
        rng = np.random.default_rng(0)
        return {**_unbalanced(arrays, "train", count, rng), **_unbalanced(arrays, "test", 1000, rng)}
    parts = {"train": slice(0, count), "test": slice(0, TESTED)}
    cut = [_named(s, arrays[f"{s}_images"][of], arrays[f"{s}_labels"][of]) for s, of in parts.items()]
    return {**cut[0], **cut[1]}


def _named(split: str, images: Any, labels: Any) -> dict[str, Any]:
    return {f"{split}_images": images, f"{split}_labels": labels}


def _unbalanced(arrays: dict[str, Any], split: str, count: int, rng: np.random.Generator) -> dict[str, Any]:
    labels = arrays[f"{split}_labels"].reshape(-1)
    few = round(count / 10)
    rows = np.concatenate([np.flatnonzero(labels == 0)[:few], np.flatnonzero(labels == 6)[: count - few]])
    rng.shuffle(rows)
    return _named(split, arrays[f"{split}_images"][rows], (labels[rows] == 6).astype(np.int64))


class Choices:
    """All candidates and the choice of `auto`, by data set and epsilon."""

    def measure(self, quick: bool) -> list[Figure]:
        self.measured: dict[tuple[str, float], tuple[str, dict[str, Done]]] = {}
        scratch = os.environ.get("DPVISION_SCRATCH")
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            folder = Path(scratch or place)
            os.environ["DPVISION_HOME"] = str(folder / "home")  # never the operator's own ledgers or weights
            for name in QUICK if quick else DATA:
                if name.split("-")[0] not in ("digits", "outlines", "weaves") and not at_hand():
                    print(f"left out: {name}: the shared data is not at hand", file=sys.stderr)
                    continue
                for epsilon in (3.0,) if quick else EPSILONS:
                    self.measured[name, epsilon] = measure_one(name, epsilon, folder, keep=not quick)
        return list(self._figures(quick))

    def _figures(self, quick: bool) -> Iterator[Figure]:
        for (name, epsilon), (chosen, done) in self.measured.items():
            auto, best = done[chosen], max(done.values(), key=lambda d: d.accuracy)
            yield Figure(f"{name}, epsilon {epsilon:g}, auto: {auto.recipe}", auto.accuracy)
            below = 100 * (best.accuracy - auto.accuracy)
            yield Figure(f"{name}, epsilon {epsilon:g}: points below the best, {best.recipe}", below, high=WITHIN)
        stuck = sum(
            100 * (done[chosen].accuracy - done[chosen].majority) < WITHIN
            and 100 * (max(d.accuracy for d in done.values()) - done[chosen].majority) > WELL_ABOVE
            for chosen, done in self.measured.values()
        )
        yield Figure("choices at the level of the most frequent class where another recipe is above", stuck, high=0)

    def table(self) -> str:
        head = "| data | epsilon | auto | candidates: accuracy (mean of classes) | most frequent class |"
        rows = [head, "|---|---|---|---|---|"]
        for (name, epsilon), (chosen, done) in self.measured.items():
            each = ", ".join(
                f"{'**' if key == chosen else ''}{d.recipe} {d.accuracy:.1%} ({d.balanced:.1%})"
                f"{'**' if key == chosen else ''}"
                for key, d in done.items()
            )
            rows.append(f"| {name} | {epsilon:g} | {done[chosen].recipe} | {each} | {done[chosen].majority:.1%} |")
        return "\n".join(rows)


def measure_one(name: str, epsilon: float, folder: Path, *, keep: bool) -> tuple[str, dict[str, Done]]:
    """Train every candidate once; return the digest of the settings of `auto`, and the trainings by digest."""
    source, measured, chosen = source_of(name, folder), dict[str, Done](), ""
    lines = KEPT.read_text().splitlines() if keep and KEPT.exists() else []
    old = {(d.data, d.settings): d for d in (Done(**json.loads(line)) for line in lines)}
    for named in ("auto", *DATA[name]):
        config = replace(recipe(named, epsilon=epsilon), epsilon=epsilon, budget=1e4, device=chosen_device())
        prepared = train.prepare(source, config)
        digest = replace(prepared.config, recipe="").hash()  # the same settings under another name are the same
        chosen = chosen or digest
        if digest in measured:
            continue
        done = old.get((name, digest))
        if done is None:
            done = _train(name, prepared, digest)
            if keep:
                with KEPT.open("a") as file:
                    file.write(json.dumps(asdict(done)) + "\n")
        measured[digest] = done
    return chosen, measured


def _train(name: str, prepared: train.Prepared, digest: str) -> Done:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        run = train.begin(prepared, Path(place) / "run")
        train.proceed(run, prepared)
        test = json.loads((run.folder / "evaluation.json").read_text())
    shutil.rmtree(home() / "ledgers")  # the data is public: each training has its own account
    of, config = test["classes"], prepared.config
    right, images = np.array(of["right"]), np.array(of["images"])
    done = Done(
        data=name,
        recipe=_words(config),
        epsilon=config.epsilon,
        settings=digest,
        accuracy=test["right"] / test["images"],
        balanced=float((right / np.maximum(images, 1))[images > 0].mean()),
        majority=float(images.max() / images.sum()),
        seconds=round(time.monotonic() - began, 1),
    )
    print(done, file=sys.stderr, flush=True)
    return done


def _words(config: Config) -> str:
    """Name a recipe, and how it was fitted."""
    usual = {"patches": "patches-1024", "scatter-centred": "scatter-linear-centred", "default": None}
    model = "" if config.model in (usual.get(config.recipe), config.recipe) else f" ({config.model})"
    uncentred = recipe(config.recipe, epsilon=config.epsilon).part == "centred-head" and config.part == "head"
    return config.recipe + model + (" without the mean" if uncentred else "")


if __name__ == "__main__":
    choices = Choices()
    main(
        "auto",
        choices.measure,
        about="Test accuracy of what `auto` chooses, and of the other recipes: one training each at delta 1e-5, so two "
        "figures may differ by chance by a point (small data: two). `auto` is bold.",
        below=choices.table,
        more=device_options(),
    )
