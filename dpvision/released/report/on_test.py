"""What a run's model does on its test split: read from the run folder and checked, and as a part of the page.

read_metrics       metrics.jsonl: epsilon so far and test accuracy, at a few steps of the training
read_evaluation    evaluation.json: every class, confusions, calibration
read_examples      examples.json: a few test images, where some were asked for
section            the part of the page: every class, confusions as a table of shades, pictures
"""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpvision.data.files import Refusal
from dpvision.data.picture import SIGNATURE, require_valid_png
from dpvision.errors import DataError
from dpvision.released.evaluation import (
    BINS,
    FILE,
    FORMAT,
    FORMAT_OF_PICTURES,
    MOST_CLASSES,
    MOST_PAIRS,
    MOST_SIDE,
    PICTURES,
    as_png,
)
from dpvision.released.report.numbers import percent, plain
from dpvision.storage.run_folder import Run, read_json, read_lines

MOST_PICTURES = 48
MOST_STEPS = 2**53  # of whole numbers that are numbers of steps
MOST_SHADED = 20  # classes of a whole table of confusions; of more, the pairs that are confused most
MOST_ROWS = 40  # classes that are listed; of more, those that are found least


@dataclass(frozen=True)
class Point:
    """One line of metrics.jsonl. Accuracies are None where the data has no test split."""

    step: int
    epsilon: float
    ema: float | None
    last: float | None


def read_metrics(run: Run) -> list[Point]:
    """The points in the order of their steps; keys that a page has no use for are left where they are."""
    points = []
    for number, line in enumerate(read_lines(run.metrics), 1):
        step, epsilon = line.get("step"), line.get("epsilon")
        if not (type(step) is int and 0 <= step <= MOST_STEPS and isinstance(epsilon, int | float) and epsilon >= 0):
            raise DataError(f"{run.metrics}: line {number} has no step or no epsilon.")
        ema, last = (_accuracy(line.get(f"test_accuracy_{name}")) for name in ("ema", "last"))
        points.append(Point(step, float(epsilon) if epsilon <= MOST_STEPS else math.inf, ema, last))
    return sorted(points, key=lambda p: p.step)


def last_accuracy(points: list[Point], *, release: str) -> dict[str, Any] | None:
    """Test accuracy at the end, of both sets of weights; which one is released was fixed before the training."""
    if not points or points[-1].ema is None or points[-1].last is None:
        return None
    test = {"ema": points[-1].ema, "last": points[-1].last}
    return {"test": test, "released": release, "released_test_accuracy": test[release]}


def _accuracy(value: Any) -> float | None:
    if not isinstance(value, int | float) or not 0 <= value <= 1:  # nor is what is no number
        return None
    return float(value)


def read_evaluation(run: Run, *, classes: int, weights: str) -> dict[str, Any] | None:
    """The figures that a page may show; None where there is no test split, or the run is older than this file."""
    return _read(run.folder / FILE, FORMAT, weights, lambda found: _figures(found, classes))


def read_examples(run: Run, *, classes: int, weights: str) -> list[dict[str, Any]]:
    """Pictures, where some were asked for."""
    return _read(run.folder / PICTURES, FORMAT_OF_PICTURES, weights, lambda found: _pictures(found, classes)) or []


def _of_classes(found: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """For each class: its test images, the share of them that was found, and the share of its name that was right."""
    rows = zip(names, *(found["classes"][key] for key in ("images", "named", "right")), strict=True)
    return [
        {"name": name, "images": images, "found": _share(right, images), "precise": _share(right, named)}
        for name, images, named, right in rows
    ]


def summary(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """For the card."""
    if found is None:
        return None
    recalls = [_share(r, n) for r, n in zip(found["classes"]["right"], found["classes"]["images"], strict=True)]
    there = [r for r in recalls if r is not None]
    return {
        "images": found["images"],
        "accuracy": found["right"] / found["images"],
        "balanced_accuracy": sum(there) / len(there),
        "calibration_error": found["calibration_error"],
    }


def section(evaluation: dict[str, Any], examples: list[dict[str, Any]], class_names: list[str]) -> dict[str, Any]:
    """All that the template shows, as plain values; the page draws the calibration."""
    names = [plain(name) for name in class_names]
    rows = _of_classes(evaluation, names)
    shown = rows if len(rows) <= MOST_ROWS else sorted(rows, key=lambda r: (r["found"] is None, r["found"]))[:MOST_ROWS]
    whole, table = summary(evaluation) or {}, evaluation["confusion"]
    return {
        "images": f"{evaluation['images']:,}",
        "accuracy": percent(whole["accuracy"]),
        "balanced": percent(whole["balanced_accuracy"]),
        "calibration_error": percent(evaluation["calibration_error"]),
        "classes": [_row(r) for r in shown],
        "left_out": len(rows) - len(shown),
        "table": _shaded(table, names) if table and len(names) <= MOST_SHADED else None,
        "confused": [(names[a], names[b], f"{times:,}") for a, b, times in evaluation["confused"][:10]],
        "examples": [
            {
                "right": x["class"] == x["named"],
                "png": x["png"],
                "is": names[x["class"]],
                "named": names[x["named"]],
                "chance": f"{100 * x['chance']:.0f}%",
            }
            for x in examples
        ],
    }


def _row(row: dict[str, Any]) -> dict[str, str]:
    told = {key: "none" if row[key] is None else percent(row[key]) for key in ("found", "precise")}
    return {"name": row["name"], "images": f"{row['images']:,}", "width": f"{100 * (row['found'] or 0):.1f}", **told}


def _shaded(table: list[list[int]], names: list[str]) -> list[dict[str, Any]]:
    """Rows of cells: a count, and how dark it is, by its share of the row."""
    shaded = []
    for place, (name, row) in enumerate(zip(names, table, strict=True)):
        whole = sum(row) or 1
        cells = [
            {"count": f"{count:,}" if count else "", "shade": _shade(count / whole), "right": place == at}
            for at, count in enumerate(row)
        ]
        shaded.append({"name": name, "cells": cells})
    return shaded


def _shade(share: float) -> int:
    """0 for nothing; a single confusion can be seen, and so can the difference of a half and nearly all."""
    limits = (0.0, 0.05, 0.2, 0.5, 0.8)
    return sum(share > limit for limit in limits)


def _read(path: Path, form: str, weights: str, checked: Callable[[dict[str, Any]], Any]) -> Any:
    if not path.exists():
        return None
    found = read_json(path)
    again = "Fix: remove it, and `dpvision eval RUN DATA --keep`."
    if found.get("format") != form:
        raise DataError(f"{path}: not what an evaluation writes. {again}")
    if found.get("weights_digest") != weights:
        raise DataError(f"{path}: is about other weights than those beside it. {again}")
    try:
        return checked(found)
    except (KeyError, ValueError, TypeError, OverflowError, Refusal) as exc:
        raise DataError(f"{path}: not what an evaluation writes ({exc}). {again}") from exc


def _figures(found: dict[str, Any], classes: int) -> dict[str, Any]:
    images, right = _count(found["images"]), _count(found["right"])
    by_class = {key: [_count(v) for v in found["classes"][key]] for key in ("images", "named", "right")}
    table = found["confusion"]
    if table is not None:
        table = [[_count(v) for v in row] for row in table]
        _require(len(table) == classes <= MOST_CLASSES and all(len(row) == classes for row in table), "confusion")
        _require([sum(row) for row in table] == by_class["images"], "confusion")
    pairs = [[_count(v) for v in pair] for pair in found["confused"]]
    _require(len(pairs) <= MOST_PAIRS and all(len(p) == 3 and max(p[:2]) < classes for p in pairs), "confused")
    _require(all(len(v) == classes for v in by_class.values()), "classes")
    _require(images > 0 and sum(by_class["images"]) == sum(by_class["named"]) == images, "images")
    _require(all(r <= n for r, n in zip(by_class["right"], by_class["images"], strict=True)), "right")
    _require(sum(by_class["right"]) == right, "right")
    bins: list[dict[str, Any]] = [
        {"images": _count(b["images"]), **{k: _part(b[k]) if b["images"] else None for k in ("accuracy", "confidence")}}
        for b in found["bins"]
    ]
    _require(len(bins) == BINS and sum(b["images"] for b in bins) == images, "bins")
    return {
        "images": images,
        "right": right,
        "classes": by_class,
        "confusion": table,
        "confused": pairs,
        "bins": bins,
        "calibration_error": _part(found["calibration_error"]),
    }


def _pictures(found: dict[str, Any], classes: int) -> list[dict[str, Any]]:
    shown = found["examples"]
    _require(isinstance(shown, list) and len(shown) <= MOST_PICTURES, "examples")
    told: list[dict[str, Any]] = [
        {"class": _count(x["class"]), "named": _count(x["named"]), "chance": _part(x["chance"]), "png": _png(x["png"])}
        for x in shown
    ]
    _require(all(max(x["class"], x["named"]) < classes for x in told), "class")
    return told


def _png(text: str) -> str:
    """The picture, made again from its pixels: whatever else was in the file is not on the page."""
    from PIL import Image

    data = base64.b64decode(text, validate=True)
    _require(data[:8] == SIGNATURE and len(data) > 24, "picture")
    _require(max(int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) <= MOST_SIDE, "picture")
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


def _part(value: Any) -> float:
    _require(type(value) in (int, float) and 0 <= value <= 1, "a share")
    return float(value)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _require(sound: bool, what: str) -> None:
    if not sound:
        raise ValueError(f"{what} is not sound")
