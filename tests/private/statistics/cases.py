"""Data and settings that the tests of heads share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpvision.core.events import Budget
from dpvision.core.ledger import Ledger
from dpvision.private.statistics import Whitening

CLASSES, WIDTH = 4, 6
BUDGET = Budget(3.0, 1e-5)
PUBLIC = np.random.default_rng(99).normal(size=(50, WIDTH)) * np.linspace(0.5, 2, WIDTH) + 0.3

# Every released vector there is, by the settings that make it.
SETTINGS: dict[str, dict[str, Any]] = {
    "gd": {"method": "gd", "steps": 4, "total_rate": 40.0},
    "gd, intercept": {"method": "gd", "steps": 3, "intercept": 0.5, "unit": True, "keep": "ema"},
    "gd, much clipped": {"method": "gd", "steps": 3, "clip": 0.1, "bound": 2.5, "keep": "last"},
    "gd, never clipped": {"method": "gd", "steps": 3, "clip": 10.0},
    "gd, whitened": {"method": "gd", "steps": 3, "whitening": Whitening.of(PUBLIC)},
    "gd, centred": {"method": "gd", "steps": 3, "unit": True, "centre": True},
    "newton, centred": {"method": "newton", "steps": 2, "public": PUBLIC, "centre": True},
    "newton": {"method": "newton", "steps": 3, "public": PUBLIC},
    "moments": {"method": "moments", "intercept": 0.3},
    "moments, uneven": {"method": "moments", "share": 0.9, "unit": True},
    "lda": {"method": "lda"},
    "lda, balanced": {"method": "lda", "balanced": True, "unit": True},
    "lda, private covariance": {"method": "lda", "covariance": "private"},
    "lda, balanced, private covariance": {"method": "lda", "covariance": "private", "balanced": True},
    "gd, for balance": {"method": "gd", "steps": 3, "unit": True, "centre": True, "objective": "balanced"},
    "newton, for balance": {"method": "newton", "steps": 2, "public": PUBLIC, "objective": "balanced"},
    "lda, for balance": {"method": "lda", "covariance": "private", "objective": "balanced"},
    "lda, public covariance": {"method": "lda", "covariance": "public", "public": PUBLIC},
}


def new_ledger(folder: Path, budget: Budget | None = None) -> Ledger:
    """One that has been opened with `budget`, or one that the head opens."""
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder, "ab" * 16)
    if budget:
        ledger.open(budget)
    return ledger


def some_rows(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(count, WIDTH)), rng.integers(0, CLASSES, count)


def nasty_row(rng: np.random.Generator, kind: str, others: np.ndarray) -> np.ndarray:
    row = rng.normal(size=WIDTH)
    match kind:
        case "huge":
            return row * 1e30
        case "out of range":
            return row * 1e300
        case "tiny":
            return row * 1e-12
        case "below measure":
            return np.full(WIDTH, 2.7e-162) * np.sign(row)  # its square is rounded to 0.7 of what it is
        case "denormal":
            return np.full(WIDTH, 5e-324)
        case "zero":
            return np.zeros(WIDTH)
        case "nan":
            row[2] = np.nan
        case "inf":
            row[3] = -np.inf
        case "one feature":
            return np.eye(WIDTH)[1] * 50
        case "duplicate":
            return others[0].copy() if len(others) else row
        case "opposite":
            return -7 * others[0] if len(others) else row
    return row


NASTY = (
    "usual",
    "huge",
    "out of range",
    "tiny",
    "below measure",
    "denormal",
    "zero",
    "nan",
    "inf",
    "one feature",
    "duplicate",
    "opposite",
)


def separable(rng: np.random.Generator, count: int, *, spread: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Classes at the corners of a simplex, well apart."""
    labels = rng.integers(0, CLASSES, count)
    return np.eye(WIDTH)[labels] * 2 + 0.2 + rng.normal(size=(count, WIDTH)) * spread, labels
