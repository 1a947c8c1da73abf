"""Evaluate a released model on the test split, write the results to the run folder, and read them with checks.

    metrics.jsonl     epsilon of the whole run, and test accuracy at a few steps of the training
    evaluation.json   counts and confusions of classes, calibration, and measures with intervals (measures.py)
    examples.json     some test images, half classified correctly and half not; only on request

All are at the top of the run folder, for its report. They are computed from the test split alone, without noise:
epsilon does not cover test images. Nothing here reads a training image or influences a training run. Anyone may have
edited the files, so they are read strictly: any deviation from the format is a DataError.

At the end of this file are results of dpvision on public data sets. A run is compared with them only if its data has
the name, the size, the shape and the number of classes of the data set.
"""

from __future__ import annotations

import base64
import io
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.data import Split
from dpvision.data.files import Refusal
from dpvision.data.picture import SIGNATURE, require_valid_png
from dpvision.errors import ConfigError, DataError
from dpvision.released.groups import LEAST, measure_groups
from dpvision.released.measures import BINS, MAX_CLASSES, MAX_PAIRS, Estimate, measure, wilson
from dpvision.settings.training import TASKS
from dpvision.storage.run_folder import Run, read_json, read_lines

if TYPE_CHECKING:  # reports are written without torch
    from dpvision.models.inputs import Predictions
    from dpvision.models.tasks import Task

K = TypeVar("K")
FILE, FORMAT = "evaluation.json", "dpvision-evaluation-1"
EXAMPLES, EXAMPLES_FORMAT = "examples.json", "dpvision-examples-1"
MAX_SIDE = 128  # pixels of an example; larger images are shrunk
MAX_EXAMPLES = 48
MAX_STEPS = 2**53
# Measures that have an interval; kappa only of grades.
ESTIMATES = ("accuracy", "balanced_accuracy", "macro_auroc", "kappa")
# An accuracy that exceeds the share of the most frequent class by less than this, or by less than two standard errors,
# is not clearly better than always answering with that class.
MIN_GAIN = 0.02


def write(
    folder: Path, split: Split, predictions: Predictions, task: Task, *, weights: str, examples: int
) -> list[Path]:
    """Write evaluation.json and examples.json for the weights with this digest.

    If `examples` is 0, earlier examples are removed instead.
    """
    require_examples_possible(task.kind, examples)
    labels = np.asarray(split.labels, dtype=np.int64)
    figures = {"format": FORMAT, "weights_digest": weights, **measure(predictions, labels, task)}
    if split.groups is not None:
        figures["groups"] = measure_groups(predictions, labels, task, split.groups, split.persons)
    files.write(folder / FILE, json.dumps(figures, allow_nan=False) + "\n", mode=0o644)
    if not examples:
        (folder / EXAMPLES).unlink(missing_ok=True)
        return [folder / FILE]
    guesses, chances = predictions.answers, predictions.confidence
    right, wrong = (_spread_evenly(rows, examples) for rows in (guesses == labels, guesses != labels))
    shown = {
        "format": EXAMPLES_FORMAT,
        "weights_digest": weights,
        "examples": [
            {
                "class": int(labels[row]),
                "named": int(guesses[row]),
                "chance": round(float(chances[row]), 4),
                "png": as_png(np.asarray(split.images[row])),
            }
            for row in (*right, *wrong)
        ],
    }
    files.write(folder / EXAMPLES, json.dumps(shown, allow_nan=False) + "\n", mode=0o644)
    return [folder / FILE, folder / EXAMPLES]


def require_examples_possible(task: str, examples: int) -> None:
    """Refuse examples of a model with several labels: each picture has one class and one answer."""
    if task == "labels" and examples:
        raise ConfigError(
            "--examples shows images with one class each, but this model answers several labels. Fix: leave it out."
        )


def _spread_evenly(rows: NDArray[np.bool_], most: int) -> list[int]:
    """Return at most `most` of the marked rows, spread evenly over the split, not selected by quality."""
    places = np.flatnonzero(rows)
    if len(places) > most:
        places = places[np.linspace(0, len(places) - 1, most).round().astype(np.int64)]
    return [int(p) for p in places]


def as_png(image: NDArray[Any]) -> str:
    """Return an image (H, W, C) as a base64-encoded PNG file, shrunk to at most MAX_SIDE pixels a side."""
    from PIL import Image

    pixels = image if image.dtype == np.uint8 else (np.clip(image, 0.0, 1.0) * 255).round().astype(np.uint8)
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class Point:
    """One line of metrics.jsonl. Accuracies are None if the data has no test split."""

    step: int
    epsilon: float
    ema: float | None
    last: float | None


def read_metrics(run: Run) -> list[Point]:
    """Return the points of metrics.jsonl in the order of steps; unused keys are ignored."""
    points = []
    for number, line in enumerate(read_lines(run.metrics), 1):
        step, epsilon = line.get("step"), line.get("epsilon")
        if not (type(step) is int and 0 <= step <= MAX_STEPS and isinstance(epsilon, int | float) and epsilon >= 0):
            raise DataError(
                f"{run.metrics}: line {number} has no valid step or epsilon. Fix: restore it from a backup."
            )
        ema, last = (_accuracy(line.get(f"test_accuracy_{name}")) for name in ("ema", "last"))
        points.append(Point(step, float(epsilon) if epsilon <= MAX_STEPS else math.inf, ema, last))
    return sorted(points, key=lambda p: p.step)


def last_accuracy(points: list[Point], *, release: str) -> dict[str, Any] | None:
    """Return the final test accuracy of both sets of weights. Which one is released was fixed before the training."""
    if not points or points[-1].ema is None or points[-1].last is None:
        return None
    test = {"ema": points[-1].ema, "last": points[-1].last}
    return {"test": test, "released": release, "released_test_accuracy": test[release]}


def _accuracy(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None  # NaN is not in the range


def read_evaluation(run: Run, *, classes: int, weights: str) -> dict[str, Any] | None:
    """Return the figures of evaluation.json; None if there is no such file, as for data without a test split."""
    return _read(run.folder / FILE, FORMAT, weights, lambda content: _figures(content, classes))


def read_examples(run: Run, *, classes: int, weights: str) -> list[dict[str, Any]]:
    """Return the pictures of examples.json; an empty list if there is no such file."""
    return _read(run.folder / EXAMPLES, EXAMPLES_FORMAT, weights, lambda content: _examples(content, classes)) or []


def summary(figures: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the figures of an evaluation that are on the card."""
    if figures is None:
        return None
    short: dict[str, Any] = {"images": figures["images"], "accuracy": share_right(figures)}
    measures = figures["measures"]
    if measures is None:  # of an earlier version
        counts = zip(figures["classes"]["right"], figures["classes"]["images"], strict=True)
        recalls = [right / images for right, images in counts if images]
        short["balanced_accuracy"] = sum(recalls) / len(recalls)
    else:
        for name in ESTIMATES:
            value, *ends = measures.get(name) or (None, None)
            if name in measures:
                short[name], short[f"{name}_interval"] = value, ends if len(ends) == 2 else None
        short["macro_average_precision"] = measures["macro_average_precision"]
    return {**short, "calibration_error": figures["calibration_error"]}


def share_right(figures: dict[str, Any]) -> float:
    """Return the accuracy: the share of images, or of known labels, that are answered correctly."""
    asked = sum(figures["classes"]["known"]) if figures["task"] == "labels" else figures["images"]
    return float(figures["right"] / asked) if asked else 0.0


def majority(figures: dict[str, Any]) -> tuple[int, float]:
    """Return the most frequent class of the test split, and the accuracy of always answering with it."""
    counts = figures["classes"]["images"]
    return counts.index(max(counts)), max(counts) / figures["images"]


def by_class(figures: dict[str, Any], class_names: Sequence[K]) -> dict[K, dict[str, Any]]:
    """Return recall, precision, AUROC and average precision of each class or label, with 95% intervals.

    A class without test images is left out. For labels, the figures are about the images where the label is known.
    """
    counts, measures = figures["classes"], figures["measures"] or {}
    areas, precisions = measures.get("auroc"), measures.get("average_precision")
    found: dict[K, dict[str, Any]] = {}
    for place, name in enumerate(class_names):
        images, named, right = (counts[key][place] for key in ("images", "named", "right"))
        if not images:
            continue
        entry: dict[str, Any] = {"images": images, **_share_of("recall", right, images)}
        if figures["task"] == "labels":
            without = counts["known"][place] - images
            entry = {"known": counts["known"][place], **entry}
            entry |= _share_of("specificity", without - (named - right), without)
        entry["precision"] = right / named if named else None
        area = None if areas is None else areas[place]
        entry |= {"auroc": area and area[0], "auroc_interval": area and area[1:]}
        entry["average_precision"] = None if precisions is None else precisions[place]
        found[name] = entry
    return found


def _share_of(name: str, part: int, whole: int) -> dict[str, Any]:
    if not whole:
        return {name: None, f"{name}_interval": None}
    return {name: part / whole, f"{name}_interval": list(wilson(part / whole, whole))}


def describe_trivial(figures: dict[str, Any], class_names: Sequence[str], show: Callable[[str], str] = repr) -> str:
    """Say which fixed answer is right most often, and what it would give."""
    if figures["task"] != "labels":
        most, share = majority(figures)
        return f"always answering {show(class_names[most])} would give {share:.2%}"
    pairs = list(zip(figures["classes"]["images"], figures["classes"]["known"], strict=True))
    right = sum(max(present, known - present) for present, known in pairs)
    share = right / max(1, sum(known for _, known in pairs))
    return f"always giving the more frequent answer to each label would give {share:.2%}"


def warning(figures: dict[str, Any], class_names: Sequence[str]) -> str | None:
    """Return a warning if the model is hardly better than always answering with the most frequent class, else None."""
    if figures["task"] == "labels":
        area = figures["measures"]["macro_auroc"]
        if area is None or area[1] > 0.5:
            return None
        return (
            f"The model hardly ranks images better than chance: its mean AUROC over the labels is {area[0]:.2f}, and "
            f"the 95% interval, from {area[1]:.2f} to {area[2]:.2f}, contains 0.50. Do not use it. What usually helps: "
            "more images, a larger epsilon, or a network that was trained on public images (--pretrained)."
        )
    answer, share = majority(figures)
    images = figures["images"]
    return majority_warning(figures["right"] / images, share, images=images, answer=class_names[answer])


def majority_warning(accuracy: float, share: float, *, images: int, answer: str) -> str | None:
    """Return a warning if `accuracy` hardly exceeds `share`, the accuracy of always answering `answer`, else None."""
    if accuracy >= share + max(MIN_GAIN, 2 * math.sqrt(share * (1 - share) / images)):
        return None
    compared = "hardly better" if accuracy > share else "no better"
    return (
        f"The model is {compared} than always answering {answer!r}, the most frequent class of the images that it was "
        f"tested on: {accuracy:.1%} against {share:.1%}. Do not use it as a classifier. What usually helps: more "
        "images, a larger epsilon, or a network that was trained on public images (--pretrained)."
    )


def _read(path: Path, form: str, weights: str, check: Callable[[dict[str, Any]], Any]) -> Any:
    if not path.exists():
        return None
    content = read_json(path)
    fix = "Fix: remove it, then `dpvision eval RUN DATA --keep`."
    if content.get("format") != form:
        raise DataError(f"{path}: not a valid file of an evaluation. {fix}")
    if content.get("weights_digest") != weights:
        raise DataError(f"{path}: does not belong to the weights of this run. {fix}")
    try:
        return check(content)
    except (KeyError, ValueError, TypeError, OverflowError, Refusal) as exc:
        raise DataError(f"{path}: not a valid file of an evaluation ({exc}). {fix}") from exc


def _figures(content: dict[str, Any], classes: int) -> dict[str, Any]:
    images, right, task = _count(content["images"]), _count(content["right"]), content.get("task", "classes")
    _require(task in TASKS, "task")
    counted = ("images", "named", "right", *(("known",) if task == "labels" else ()))
    by_class = {key: [_count(v) for v in content["classes"][key]] for key in counted}
    table = content["confusion"]
    if table is not None:
        table = [[_count(v) for v in row] for row in table]
        _require(len(table) == classes <= MAX_CLASSES and all(len(row) == classes for row in table), "confusion")
        _require([sum(row) for row in table] == by_class["images"], "confusion")
    pairs = [[_count(v) for v in pair] for pair in content["confused"]]
    _require(len(pairs) <= MAX_PAIRS and all(len(p) == 3 and max(p[:2]) < classes for p in pairs), "confused")
    _require(all(len(v) == classes for v in by_class.values()), "classes")
    asked = images
    if task == "labels":
        asked = sum(by_class["known"])
        _require(images > 0 and all(n <= images for n in by_class["known"]), "images")
        counts = zip(*(by_class[key] for key in ("known", "images", "named", "right")), strict=True)
        _require(all(right <= min(n, m) and max(n, m) <= known for known, n, m, right in counts), "right")
        _require(right <= asked, "right")
    else:
        _require(images > 0 and sum(by_class["images"]) == sum(by_class["named"]) == images, "images")
        _require(all(r <= n for r, n in zip(by_class["right"], by_class["images"], strict=True)), "right")
        _require(sum(by_class["right"]) == right, "right")
    bins: list[dict[str, Any]] = [
        {
            "images": _count(b["images"]),
            **{key: _share(b[key]) if b["images"] else None for key in ("accuracy", "confidence")},
        }
        for b in content["bins"]
    ]
    _require(len(bins) == BINS and sum(b["images"] for b in bins) == asked, "bins")
    _require(content.get("measures") is not None or task == "classes", "measures")  # without: of an earlier version
    return {
        "task": task,
        "measures": None if content.get("measures") is None else _measures(content["measures"], classes, task),
        "groups": None if content.get("groups") is None else _groups(content["groups"], classes, task),
        "images": images,
        "right": right,
        "classes": by_class,
        "confusion": table,
        "confused": pairs,
        "bins": bins,
        "calibration_error": _share(content["calibration_error"]),
    }


def _measures(content: dict[str, Any], classes: int, task: str) -> dict[str, Any]:
    """Return measures with their intervals, and those of each class."""
    areas, precisions = content["auroc"], content["average_precision"]
    _require(all(values is None or len(values) == classes for values in (areas, precisions)), "auroc")
    _require(("kappa" in content) == (task == "grades"), "kappa")
    mean = content["macro_average_precision"]
    return {
        **{
            name: _estimate(content[name], lowest=-1 if name == "kappa" else 0) for name in ESTIMATES if name in content
        },
        "auroc": None if areas is None else [_estimate(area) for area in areas],
        "average_precision": None if precisions is None else [None if p is None else _share(p) for p in precisions],
        "macro_average_precision": None if mean is None else _share(mean),
    }


def _groups(content: dict[str, Any], classes: int, task: str) -> dict[str, Any]:
    """Return the shown figures of groups (groups.py)."""
    cells = []
    sides = ("present", "absent") if task == "labels" else ("present",)
    for cell in content["cells"]:
        counts = {side: [_count(v) for v in cell[side]] for side in sides}
        _require(all(len(pair) == 2 and pair[1] <= pair[0] and pair[0] >= LEAST for pair in counts.values()), "group")
        _require(type(cell["group"]) is str and _count(cell["class"]) < classes, "group")
        cells.append({"group": cell["group"], "class": cell["class"], **counts, "auroc": _estimate(cell["auroc"])})
    return {"cells": cells, "hidden": bool(content["hidden"])}


def _estimate(value: Any, *, lowest: int = 0) -> Estimate | None:
    """Return a value and the ends of its interval."""
    if value is None:
        return None
    _require(isinstance(value, list) and len(value) == 3, "an interval")
    _require(all(type(x) in (int, float) and lowest <= x <= 1 for x in value), "an interval")
    _require(value[1] <= value[0] <= value[2], "an interval")
    return [float(x) for x in value]


def _examples(content: dict[str, Any], classes: int) -> list[dict[str, Any]]:
    entries = content["examples"]
    _require(isinstance(entries, list) and len(entries) <= MAX_EXAMPLES, "examples")
    examples: list[dict[str, Any]] = [
        {"class": _count(x["class"]), "named": _count(x["named"]), "chance": _share(x["chance"]), "png": _png(x["png"])}
        for x in entries
    ]
    _require(all(max(x["class"], x["named"]) < classes for x in examples), "class")
    return examples


def _png(text: str) -> str:
    """Encode the pixels of a picture again, so that nothing else in the file reaches the page."""
    from PIL import Image

    data = base64.b64decode(text, validate=True)
    _require(data[:8] == SIGNATURE and len(data) > 24, "picture")
    _require(max(int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) <= MAX_SIDE, "picture")
    require_valid_png(io.BytesIO(data), len(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
                pixels = np.asarray(picture.convert("L" if picture.mode in ("1", "L") else "RGB"))
        except Exception as exc:  # Pillow raises nearly every kind of exception for damaged files
            raise ValueError("picture is damaged") from exc
    return as_png(pixels.reshape(*pixels.shape[:2], -1))


def _count(value: Any) -> int:
    _require(type(value) is int and 0 <= value < 1 << 53, "a count")
    return int(value)


def _share(value: Any) -> float:
    _require(type(value) in (int, float) and 0 <= value <= 1, "a share")
    return float(value)


def _require(valid: bool, what: str) -> None:
    if not valid:
        raise ValueError(f"{what} is not valid")


@dataclass(frozen=True)
class Known:
    """A public data set, described by facts about its training split."""

    name: str
    n: int
    shape: tuple[int, int, int]
    classes: int


@dataclass(frozen=True)
class Result:
    """The mean test accuracy of several runs at delta 1e-5."""

    data: str
    recipe: str
    epsilon: float
    accuracy: float
    runs: int


KNOWN = {
    "digits": Known("digits", 1_437, (1, 8, 8), 10),
    "mnist": Known("MNIST", 60_000, (1, 28, 28), 10),
    "fashionmnist": Known("Fashion-MNIST", 60_000, (1, 28, 28), 10),
    "cifar10": Known("CIFAR-10", 50_000, (3, 32, 32), 10),
    "dermamnist": Known("DermaMNIST", 7_007, (3, 28, 28), 7),
}
# Results of dpvision on these data sets: (data set, recipe) -> epsilon -> (mean test accuracy, runs). Each figure is in
# README.md or benchmarks/RESULTS.md, with its date, machine and command.
_MEASURED: dict[tuple[str, str], dict[float, tuple[float, int]]] = {
    ("digits", "linear"): {3: (0.9544, 10)},
    ("digits", "small-cnn"): {3: (0.9483, 5)},
    ("mnist", "linear"): {3: (0.9135, 1)},
    ("mnist", "scatter-linear"): {1: (0.9794, 3), 2: (0.9850, 3), 3: (0.9858, 3)},
    ("fashionmnist", "scatter-linear"): {1: (0.8777, 3), 2: (0.8886, 3), 3: (0.8924, 3)},
    ("cifar10", "scatter-linear"): {3: (0.6705, 3)},
    ("cifar10", "patches"): {0.1: (0.5349, 5), 0.5: (0.6654, 5), 1: (0.7026, 5), 2: (0.7310, 5), 3: (0.7475, 5)},
    ("dermamnist", "linear"): {3: (0.6723, 1)},
    ("dermamnist", "small-cnn"): {3: (0.6748, 1)},
    ("dermamnist", "patches"): {1: (0.6956, 5), 4: (0.7273, 5), 7.42: (0.7361, 5)},
}
RESULTS = tuple(Result(*of, at, *measured) for of, by in _MEASURED.items() for at, measured in by.items())


def known(source: Any, *, n: int | None, shape: list[Any], classes: int) -> str | None:
    """Return the public data set that a run was trained on, by its file name, size, shape and classes, or None."""
    key = _key(source)
    data = KNOWN.get(key)
    if data is None or (list(data.shape), data.classes) != (shape, classes):
        return None
    return key if n and abs(n - data.n) <= data.n / 100 else None


def results(key: str | None) -> dict[str, list[Result]]:
    """Return the results on a data set by recipe, in the order of epsilon."""
    by_recipe: dict[str, list[Result]] = {}
    for result in sorted((r for r in RESULTS if r.data == key), key=lambda r: r.epsilon):
        by_recipe.setdefault(result.recipe, []).append(result)
    return by_recipe


def _key(source: Any) -> str:
    stem = PurePath(source).stem if isinstance(source, str) else ""
    return "".join(c for c in stem.lower() if c.isalnum())
