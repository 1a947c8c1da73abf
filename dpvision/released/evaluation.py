"""What a released model does on the test split: confusions, calibration and, only where asked for, a few pictures.

    evaluation.json   how often each class was named for each, and how sure the model was when it was right
    examples.json     some test images, half of them named right and half wrong; by default there are none

Both are at the top of the run folder, for its report. They are computed from the test split alone, exactly: no noise
protects test images, and epsilon does not cover them. Nothing here looks at a training image or steers a training.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.data import Split

FILE, FORMAT = "evaluation.json", "dpvision-evaluation-1"
PICTURES, FORMAT_OF_PICTURES = "examples.json", "dpvision-examples-1"
BINS = 15  # of how sure the model was (Guo et al. 2017)
MOST_CLASSES = 100  # whose whole table of confusions is kept
MOST_PAIRS = 20  # of classes that are taken for each other
MOST_SIDE = 128  # pixels of a picture; larger images are shrunk

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def write(
    folder: Path, split: Split, guesses: Ints, chances: Floats, *, classes: int, weights: str, examples: int
) -> list[Path]:
    """Write both files for the model whose weights have this digest; without examples, those of before are removed."""
    labels = np.asarray(split.labels, dtype=np.int64)
    found = {"format": FORMAT, "weights_digest": weights, **measured(guesses, chances, labels, classes=classes)}
    files.write(folder / FILE, json.dumps(found, allow_nan=False) + "\n", mode=0o644)
    if not examples:
        (folder / PICTURES).unlink(missing_ok=True)
        return [folder / FILE]
    right, wrong = (_some(rows, examples) for rows in (guesses == labels, guesses != labels))
    shown = {
        "format": FORMAT_OF_PICTURES,
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
    files.write(folder / PICTURES, json.dumps(shown, allow_nan=False) + "\n", mode=0o644)
    return [folder / FILE, folder / PICTURES]


def measured(guesses: Ints, chances: Floats, labels: Ints, *, classes: int) -> dict[str, Any]:
    """Plain values: counts for every class, confusions, and the reliability of the model's own probabilities."""
    right = guesses == labels
    pairs, times = np.unique(labels[~right] * classes + guesses[~right], return_counts=True)
    often = np.argsort(-times, kind="stable")[:MOST_PAIRS]
    table = None
    if classes <= MOST_CLASSES:
        table = np.bincount(labels * classes + guesses, minlength=classes * classes).reshape(classes, classes).tolist()
    return {
        "images": len(labels),
        "right": int(right.sum()),
        "classes": {
            "images": np.bincount(labels, minlength=classes).tolist(),
            "named": np.bincount(guesses, minlength=classes).tolist(),
            "right": np.bincount(labels[right], minlength=classes).tolist(),
        },
        "confusion": table,
        "confused": [[int(pairs[i]) // classes, int(pairs[i]) % classes, int(times[i])] for i in often],
        **calibration(chances, right),
    }


def calibration(chances: Floats, right: NDArray[np.bool_]) -> dict[str, Any]:
    """Bins of equal width, and the expected calibration error: the mean distance of accuracy from confidence."""
    sure = np.clip(np.nan_to_num(chances, nan=0.0), 0.0, 1.0)
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    hits, sums = (np.bincount(place, weights=w, minlength=BINS) for w in (right.astype(np.float64), sure))
    bins = [
        {"images": int(c), "accuracy": float(h / c) if c else None, "confidence": float(s / c) if c else None}
        for c, h, s in zip(counts, hits, sums, strict=True)
    ]
    return {"bins": bins, "calibration_error": float(np.abs(hits - sums).sum() / len(sure))}


def _some(rows: NDArray[np.bool_], most: int) -> list[int]:
    """At most so many of these rows, evenly over the split: not the best ones, nor the worst."""
    places = np.flatnonzero(rows)
    if len(places) > most:
        places = places[np.linspace(0, len(places) - 1, most).round().astype(np.int64)]
    return [int(p) for p in places]


def as_png(image: NDArray[Any]) -> str:
    """(H, W, C) as the base64 of a PNG file, shrunk to what a page needs."""
    from PIL import Image

    pixels = image if image.dtype == np.uint8 else (np.clip(image, 0.0, 1.0) * 255).round().astype(np.uint8)
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((MOST_SIDE, MOST_SIDE))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
