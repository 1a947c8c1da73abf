"""How the precision of products changes test accuracy: the same small training in each, several seeds.

    STANDIN=tf32=1 python -m tests.standin -m benchmarks.precision --device standin

On the stand-in of the tests, products of tf32 round their inputs to 10 bits and products of bf16 to 7, and add up in
float32, as on a card. Every run has its own noise, so the accuracies differ by chance as well.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from scipy import stats

from benchmarks.results import Figure, chosen_device, device_options, main
from dpvision.private.training import train
from dpvision.settings.training import PRECISIONS, Config

SEEDS, EPSILON = 10, 3.0
MODELS = {"digits": "small-cnn"}


def measure(quick: bool) -> list[Figure]:
    """Train every model in every precision of the device."""
    device, figures = chosen_device(), []
    with tempfile.TemporaryDirectory(dir=os.environ.get("DPVISION_SCRATCH")) as place:
        os.environ["DPVISION_HOME"] = str(Path(place) / "home")
        for data, model in MODELS.items():
            measured = {
                precision: [
                    _accuracy(data, model, device, precision, seed, Path(place) / f"{data}-{precision}-{seed}")
                    for seed in range(1 if quick else SEEDS)
                ]
                for precision in PRECISIONS
                if (device, precision) != ("cpu", "tf32")
            }
            for precision, each in measured.items():
                figures.append(Figure(f"{data}, {model}, {precision}: mean of {len(each)}", statistics.mean(each)))
                figures.append(Figure(f"{data}, {model}, {precision}: worst", min(each)))
                if precision != "float32" and not quick:
                    figures.append(_difference(f"{data}, {model}, {precision}", each, measured["float32"]))
    return figures


def _accuracy(data: str, model: str, device: str, precision: str, seed: int, folder: Path) -> float:
    """Return the test accuracy of one run, on the ledger of all runs, whose budget is no limit."""
    config = Config(epsilon=EPSILON, budget=1e4, model=model, seed=seed, device=device, precision=precision)
    prepared = train.prepare(data, config)
    outcome = train.proceed(train.begin(prepared, folder), prepared)
    assert outcome.accuracy is not None
    return outcome.accuracy


def _difference(name: str, each: list[float], usual: list[float]) -> Figure:
    """Return the mean difference from float32 in points, with half the width of Welch's 95% interval in its name."""
    interval = stats.ttest_ind(each, usual, equal_var=False).confidence_interval(0.95)
    points = 100 * (statistics.mean(each) - statistics.mean(usual))
    return Figure(f"{name} minus float32, +- {50 * (interval.high - interval.low):.2f}", points, unit="points")


if __name__ == "__main__":
    main(
        "precision",
        measure,
        about=f"Test accuracy at epsilon {EPSILON:g}, delta 1e-5, default settings, in each precision of products. "
        "On the stand-in accelerator, which rounds the inputs of products as a card does (`STANDIN=tf32=1 python -m "
        "tests.standin -m benchmarks.precision --device standin`). Each run has its own noise; intervals "
        "are Welch's, 95%.",
        more=device_options(),
    )
