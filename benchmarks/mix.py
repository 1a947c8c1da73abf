"""DP-Mix compared with Self-Aug: the same budget, network and private images; accuracy with its interval, and time."""

from __future__ import annotations

import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.results import Figure, device_options, main
from benchmarks.shared_data import at_hand
from benchmarks.trainings import Case, Done, difference, figures, table, trained
from dpvision.private.training.prepare import images_per_second

SEEDS, PUBLIC = 5, 2000
BASE, SELF, DIFF = 4, 4, 2
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "self-aug": ("self-aug", {"k_base": BASE}),
    "self-aug, as long": ("self-aug", {"k_base": BASE + SELF}),
    "dp-mix-self": ("dp-mix-self", {"k_base": BASE, "k_self": SELF}),
    "dp-mix-diff": ("dp-mix-diff", {"k_base": BASE, "k_self": SELF, "k_diff": DIFF}),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "fashion_mnist": {"model": "tanh-cnn", "batch": 512, "steps": 120, "lr": 4.0, "momentum": 0.9, "clip": 0.1},
    "cifar10": {"model": "small-cnn", "batch": 512, "steps": 120, "lr": 4.0, "momentum": 0.9, "clip": 0.1},
}
PAPER = (7 + 33 / 60) / (2 + 12 / 60)  # hours of DP-Mix_Self and of Self-Aug there, K 16 + 18 and 16


def case(data: str, method: str) -> Case:
    recipe, views = METHODS[method]
    settings = {**NETWORKS[data], "ema": 0.98, **views}
    return Case(data, recipe, seeds=SEEDS, settings=tuple(settings.items()), public=PUBLIC, name=method)


class Mix:
    def __init__(self) -> None:
        self.measured: dict[Case, list[Done]] = {}

    def measure(self, quick: bool) -> list[Figure]:
        every = self.times(rounds=3 if quick else 7) if at_hand() else []
        if not quick:
            self.measured = trained([case(*c) for c in product(NETWORKS, METHODS)], keep=True)
            every += figures(self.measured) + self.differences()
        return every

    def times(self, rounds: int) -> list[Figure]:
        """Seconds of one private image with all its views, relative to Self-Aug's, taking turns."""
        every = []
        with tempfile.TemporaryDirectory() as folder:
            for data in NETWORKS:
                prepared = {m: case(data, m).prepared(0, Path(folder)) for m in METHODS}
                rates = [{m: images_per_second(p, seconds=2.0) for m, p in prepared.items()} for _ in range(rounds)]
                for method, views in (("dp-mix-self", BASE + SELF), ("dp-mix-diff", BASE + SELF + DIFF)):
                    ratio = statistics.median(r["self-aug"] / r[method] for r in rates)
                    most = views / BASE * 1.15
                    every.append(Figure(f"{data}: time of {method} / self-aug (paper {PAPER:.1f})", ratio, high=most))
        return every

    def differences(self) -> list[Figure]:
        every = []
        for data in NETWORKS:
            for one, other in (
                ("dp-mix-self", "self-aug"),
                ("dp-mix-self", "self-aug, as long"),
                ("dp-mix-diff", "dp-mix-self"),
            ):
                a, b = self.measured.get(case(data, one)), self.measured.get(case(data, other))
                if a and b:
                    gain, half = difference(a, b)
                    every.append(Figure(f"{data}: {one} minus {other}, +- {100 * half:.2f}", 100 * gain, unit="points"))
        return every


if __name__ == "__main__":
    mix = Mix()
    main(
        "mix",
        mix.measure,
        about=f"{SEEDS} trainings of each at epsilon 3, delta 1e-5. The first {PUBLIC:,} training images are public: "
        "dp-mix-diff mixes them in, the others do not see them. "
        f"K_BASE {BASE} (as long: {BASE + SELF}), K_SELF {SELF}, K_DIFF {DIFF}. "
        "Intervals are Welch's, 95%. Times are of one private image with all its views, methods taking turns.",
        below=lambda: table(mix.measured),
        more=device_options(),
    )
