"""Measures of a model on test images: counts, recall, AUROC, average precision, kappa, calibration, and 95% intervals.

The values are those of scikit-learn. They are exact, without noise: epsilon does not cover test images.

An interval is Wilson's score interval at the sample size at which a share would have the standard error of the value.
That error is estimated from the influence of each test image on the value:

    accuracy, recall    the interval is Wilson's own; labels of one image count as one draw, not as several
    balanced accuracy   each image moves the recall of its class
    AUROC               DeLong et al. 1988; of the mean over classes, by the sum of an image's influences (a value of 0
                        or 1 has no such error: the interval is that of a share of the smaller side)
    kappa               the normal interval with the error of Fleiss, Cohen and Everitt 1969

Intervals are about the sampling of test images alone: not about the noise of the training, nor about other hospitals.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpvision.data.dataset import UNKNOWN

if TYPE_CHECKING:  # reports are written without torch
    from dpvision.models.inputs import Predictions
    from dpvision.models.tasks import Task

BINS = 15  # of confidence (Guo et al. 2017)
MAX_CLASSES = 100  # up to which the whole confusion matrix is stored, and classes are ranked
MAX_PAIRS = 20  # number of the most frequent confusions that are stored
Z = 1.959963984540054  # the 97.5% quantile of the normal distribution, for intervals of 95%

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Estimate = list[float]  # a value, and the ends of its interval


def measure(predictions: Predictions, labels: NDArray[Any], task: Task) -> dict[str, Any]:
    """Return counts for every class or label, confusions, calibration and measures, as plain values."""
    labels = np.asarray(labels, dtype=np.int64)
    counted = _count_labels if task.kind == "labels" else _count_classes
    return {
        "task": task.kind,
        **counted(predictions, labels, task.classes),
        "measures": _measures(predictions, labels, task),
    }


def interval(value: float, influences: Floats, *, least: int) -> Estimate:
    """Return a value in [0, 1] with its interval; without any influence, that of a share of `least` draws."""
    square = float(np.square(influences).sum())
    size = value * (1 - value) / square if square > 0 and 0 < value < 1 else float(least)
    return [value, *wilson(value, size)]


def wilson(share: float, size: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share of `size` draws."""
    if not size > 0:
        return 0.0, 1.0
    middle = (share + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * math.sqrt(share * (1 - share) / size + Z**2 / (4 * size**2))
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def auroc(scores: Floats, present: Bools) -> tuple[float, Floats] | None:
    """Return the area under the ROC curve, and the influence of each image on it; None if all are on one side."""
    from scipy.stats import rankdata
    from sklearn.metrics import roc_auc_score

    inside, outside = scores[present], scores[~present]
    if not len(inside) or not len(outside):
        return None
    value = min(1.0, float(roc_auc_score(present, scores)))  # rounding may exceed 1
    ranks, influences = rankdata(scores), np.empty(len(scores))
    influences[present] = ((ranks[present] - rankdata(inside)) / len(outside) - value) / len(inside)
    influences[~present] = (1 - (ranks[~present] - rankdata(outside)) / len(inside) - value) / len(outside)
    return value, influences


def calibration(chances: Floats, right: Bools) -> dict[str, Any]:
    """Return bins of equal width, and the expected calibration error: the mean gap of accuracy and confidence."""
    confidence = np.clip(np.nan_to_num(chances, nan=0.0), 0.0, 1.0)
    place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    hits, sums = (np.bincount(place, weights=w, minlength=BINS) for w in (right.astype(np.float64), confidence))
    bins = [
        {"images": int(c), "accuracy": float(h / c) if c else None, "confidence": float(s / c) if c else None}
        for c, h, s in zip(counts, hits, sums, strict=True)
    ]
    return {"bins": bins, "calibration_error": float(np.abs(hits - sums).sum() / max(1, len(confidence)))}


def _count_classes(predictions: Predictions, labels: Ints, classes: int) -> dict[str, Any]:
    guesses = predictions.answers
    right = guesses == labels
    pairs, times = np.unique(labels[~right] * classes + guesses[~right], return_counts=True)
    often = np.argsort(-times, kind="stable")[:MAX_PAIRS]
    table = None
    if classes <= MAX_CLASSES:
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
        **calibration(predictions.confidence, right),
    }


def _count_labels(predictions: Predictions, labels: Ints, classes: int) -> dict[str, Any]:
    """Return counts of each label where it is known; calibration is that of all labels together."""
    known, present, named = labels != UNKNOWN, labels == 1, predictions.answers == 1
    return {
        "images": len(labels),
        "right": int((known & (present == named)).sum()),
        "classes": {
            "known": known.sum(0).tolist(),
            "images": present.sum(0).tolist(),
            "named": (known & named).sum(0).tolist(),
            "right": (present & named).sum(0).tolist(),
        },
        "confusion": None,
        "confused": [],
        **calibration(predictions.confidence[known], present[known]),
    }


def _measures(predictions: Predictions, labels: Ints, task: Task) -> dict[str, Any]:
    if task.kind == "labels":
        known, present, right = labels != UNKNOWN, labels == 1, predictions.answers == labels
    else:
        known = np.ones((len(labels), 1), dtype=np.bool_)
        present, right = None, (predictions.answers == labels)[:, None]
    total = int(known.sum())
    accuracy = float(right[known].mean()) if total else 0.0
    # The labels of an image are not independent draws: its influence is the sum of theirs.
    own = np.where(known, right - accuracy, 0.0).sum(1) / max(1, total)
    measures: dict[str, Any] = {"accuracy": interval(accuracy, own, least=len(labels))}
    if task.kind == "labels":
        assert present is not None
        measures["balanced_accuracy"] = _balanced(
            [(right[:, l], [known[:, l] & (present[:, l] == s) for s in (0, 1)]) for l in range(task.classes)]
        )
    else:
        sides = [labels == c for c in np.unique(labels)]
        measures["balanced_accuracy"] = _balanced([(right[:, 0], sides)])
    if task.kind == "grades":
        measures["kappa"] = _kappa(labels, predictions.answers, task.classes)
    return measures | _ranking(predictions, labels, task)


def _balanced(questions: list[tuple[Bools, list[Bools]]]) -> Estimate | None:
    """Return the mean recall over the sides (classes) of each question, averaged over the questions."""
    values, influences, fewest = [], 0.0, []
    for right, sides in questions:
        sides = [side for side in sides if side.any()]
        if not sides:
            continue
        recalls = [float(right[side].mean()) for side in sides]
        values.append(float(np.mean(recalls)))
        fewest.append(min(int(side.sum()) for side in sides))
        influences = influences + sum(
            np.where(side, right - recall, 0.0) / side.sum() / len(sides)
            for side, recall in zip(sides, recalls, strict=True)
        )
    if not values:
        return None
    return interval(float(np.mean(values)), np.asarray(influences) / len(values), least=min(fewest))


def _ranking(predictions: Predictions, labels: Ints, task: Task) -> dict[str, Any]:
    """Return AUROC and average precision of each class against all others, or of each label, and their means."""
    from sklearn.metrics import average_precision_score

    empty = {"auroc": None, "average_precision": None, "macro_auroc": None, "macro_average_precision": None}
    if predictions.chances is None or not np.isfinite(predictions.chances).all():
        return empty
    areas: list[Estimate | None] = []
    precisions: list[float | None] = []
    influences, fewest = np.zeros(len(labels)), []
    for place in range(task.classes):
        known = labels[:, place] != UNKNOWN if task.kind == "labels" else np.ones(len(labels), dtype=np.bool_)
        present = (labels[:, place] == 1 if task.kind == "labels" else labels == place)[known]
        scores = predictions.chances[known, place]
        area = auroc(scores, present)
        least = int(min(present.sum(), (~present).sum()))
        areas.append(None if area is None else interval(*area, least=least))
        precisions.append(None if area is None else min(1.0, float(average_precision_score(present, scores))))
        if area is not None:
            influences[known] += area[1]
            fewest.append(least)
    found = [area[0] for area in areas if area is not None]
    if not found:
        return empty
    return {
        "auroc": areas,
        "average_precision": precisions,
        "macro_auroc": interval(float(np.mean(found)), influences / len(found), least=min(fewest)),
        "macro_average_precision": float(np.mean([p for p in precisions if p is not None])),
    }


def _kappa(labels: Ints, answers: Ints, grades: int) -> Estimate | None:
    """Return Cohen's kappa with quadratic weights; None if it is not defined, as when all images have one grade."""
    from sklearn.metrics import cohen_kappa_score

    places = np.arange(grades)
    weights = np.square(places[:, None] - places[None, :]).astype(np.float64)
    table = np.bincount(labels * grades + answers, minlength=grades * grades).reshape(grades, grades) / len(labels)
    rows, columns = table.sum(1), table.sum(0)
    observed, expected = float((weights * table).sum()), float(rows @ weights @ columns)
    if expected <= 0:
        return None
    value = min(1.0, float(cohen_kappa_score(labels, answers, labels=places, weights="quadratic")))
    slope = -weights / expected + observed / expected**2 * ((weights @ columns)[:, None] + (rows @ weights)[None, :])
    influence = slope - float((slope * table).sum())
    half = Z * math.sqrt(float((table * np.square(influence)).sum()) / len(labels))
    return [value, max(-1.0, value - half), min(1.0, value + half)]
