"""Accuracy of the first learner at epsilon 3 on real data, with the settings that a user gets without asking."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results import Figure, chosen_device, device_options, main
from benchmarks.shared_data import at_hand, unpacked
from dpvision.core import accountant
from dpvision.private.training import train
from dpvision.settings.training import Config

# small-cnn on MNIST takes minutes; it is left out here.
REAL = {"mnist": ("linear",), "dermamnist": ("linear", "small-cnn")}


def _train(source: str, folder: Path, **settings: Any) -> tuple[float, float, float]:
    """Return (accuracy, epsilon, seconds) of one run, on a new ledger."""
    prepared = train.prepare(source, Config(epsilon=3.0, budget=1000.0, device=chosen_device(), **settings))
    outcome = train.proceed(train.begin(prepared, folder), prepared)
    assert outcome.accuracy is not None
    return outcome.accuracy, accountant.epsilon(outcome.event, 1e-5), outcome.seconds


def measure(quick: bool) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["DPVISION_HOME"] = str(folder / "home")
        runs = [_train("digits", folder / f"digits-{i}") for i in range(3 if quick else 10)]
        figures += [
            Figure("digits, mean test accuracy", statistics.mean(r[0] for r in runs), 0.90),
            Figure("digits, worst of the runs", min(r[0] for r in runs), 0.90),
            Figure("digits, epsilon", max(r[1] for r in runs), high=3.0),
            Figure("digits, seconds of training", statistics.median(r[2] for r in runs), high=60.0, unit="s"),
        ]
        cnn = [_train("digits", folder / f"cnn-{i}", model="small-cnn") for i in range(1 if quick else 5)]
        figures.append(Figure("digits with small-cnn", statistics.mean(r[0] for r in cnn)))
        if not quick:
            figures += _real_data(folder)
    return figures


def _real_data(folder: Path) -> list[Figure]:
    figures = []
    for name, models in REAL.items() if at_hand() else ():
        source = unpacked(name, folder)
        for model in models:
            began = time.monotonic()
            accuracy, epsilon, _ = _train(source, folder / f"{name}-{model}", model=model)
            figures += [
                Figure(f"{name}, {model}", accuracy),
                Figure(f"{name}, {model}, epsilon", epsilon, high=3.0),
                Figure(f"{name}, {model}, minutes", (time.monotonic() - began) / 60, unit="min"),
            ]
    return figures


if __name__ == "__main__":
    main(
        "first_learner",
        measure,
        about="Test accuracy at epsilon 3, delta 1e-5, default settings, EMA weights.",
        more=device_options(),
    )
