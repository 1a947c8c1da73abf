"""Released data sets: accuracy of what anyone can learn from them, under a sound account.

For comparison: NeuroMixGDP's figures. MNIST has scattering features, which are not trained.
CIFAR-10 has those of DINOv2 ViT-S/14, where the weights are
at hand ($DPVISION_DINOV2, a safetensors file: see ../shared/weights); for comparison, a private head on the same
rows. The full form takes a quarter of an hour, and for CIFAR-10 the features an hour more unless they are in
$DPVISION_SCRATCH/home.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.results import Figure, chosen_device, device_options, main
from benchmarks.shared_data import at_hand, unpacked
from dpvision.audit.hierarchical import published_sigma
from dpvision.core import accountant
from dpvision.core.events import Budget
from dpvision.core.ledger import Ledger
from dpvision.models.device import find_device
from dpvision.private.statistics import fit_head
from dpvision.private.statistics.release import Encoded, PreparedRelease, make, prepare
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import with_changes
from dpvision.storage.home import home

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
ROWS, MOMENTS = "linear discriminant of the rows", "linear discriminant of the moments"
# Li et al. 2023, on MNIST at a claimed epsilon of 1: Poisson and hierarchical sampling; CIFAR-10 with SimCLR's r152 3x.
PAPER = {"neuromix": 0.898, "neuromix-hs": 0.927, "cifar10": 0.905}
# A head on DINOv2's rows, chosen on training images.
HEAD = {"method": "gd", "steps": 100, "total_rate": 1400, "clip": 0.5, "centre": True, "unit": True}
HEAD_SEEDS = SEEDS = 5


class Releases:
    """One data set with one kind of features; each release is charged to its own ledger, as the data is public."""

    def __init__(self, source: str, **settings: object) -> None:
        self.source, self.settings = source, settings
        self.encoded: Encoded | None = None

    def prepared(self, recipe: str, epsilon: float, seed: int = 0) -> PreparedRelease:
        settings = {**self.settings, "epsilon": epsilon, "budget": 1e6, "seed": seed}
        return prepare(self.source, with_changes(release_recipe(recipe), settings))

    def accuracy(self, recipe: str, epsilon: float, *, seeds: Iterable[int] = range(SEEDS)) -> dict[str, list[float]]:
        prepared = self.prepared(recipe, epsilon)
        self.encoded = self.encoded or Encoded(prepared, _told, device=find_device(chosen_device()))
        measured: dict[str, list[float]] = {}
        for seed in seeds:
            with tempfile.TemporaryDirectory(dir=os.environ.get("DPVISION_SCRATCH")) as place:
                card = make(
                    self.prepared(recipe, epsilon, seed),
                    Path(place) / "out",
                    encoded=self.encoded,
                )
                assert card["status"] == "private" and card["guarantee"]["epsilon"] <= epsilon
            shutil.rmtree(home() / "ledgers")  # the data is public: each release has its own account
            for name, value in card["accuracy"].items():
                measured.setdefault(name, []).append(value)
        print(f"{recipe} at {epsilon:g}: {measured}", file=sys.stderr, flush=True)
        return measured

    def head(self, epsilon: float, *, seeds: int = HEAD_SEEDS) -> list[float]:
        assert self.encoded is not None and self.encoded.test is not None
        rows, (x, y), measured = self.encoded.rows, self.encoded.test, []
        for _ in range(seeds):
            with tempfile.TemporaryDirectory() as place:
                head = fit_head(
                    rows.x,
                    rows.labels,
                    Budget(epsilon, 1e-5),
                    classes=rows.classes,
                    n=len(rows.x),
                    ledger=Ledger(Path(place), "ab" * 16),
                    **HEAD,
                )
            measured.append(float((head.classes_of(x) == y).mean()))
        return measured


def _told(what: str, done: int, of: int) -> None:
    if done % 5120 == 0:
        print(f"{what} {done:,}/{of:,}", file=sys.stderr, flush=True)


class Benchmark:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def measure(self, quick: bool) -> list[Figure]:
        if not at_hand():
            print("left out: all of it, as the shared data is not at hand", file=sys.stderr)
            return []
        scratch = os.environ.get("DPVISION_SCRATCH")
        with tempfile.TemporaryDirectory() as place:
            os.environ["DPVISION_HOME"] = f"{scratch or place}/home"
            self.folder = Path(scratch or place)
            measured = self._mnist(quick)
            weights = os.environ.get("DPVISION_DINOV2")
            if quick:
                return measured
            if weights is None:
                print("left out: CIFAR-10; $DPVISION_DINOV2 names no weights", file=sys.stderr)
                return measured
            return measured + self._cifar10(weights)

    def _figures(self, name: str, seeds: list[float], low: float | None = None) -> Figure:
        self.lines.append(
            f"| {name} | {len(seeds)} | {statistics.mean(seeds):.2%} | "
            f"{statistics.stdev(seeds) if len(seeds) > 1 else 0:.2%} | {min(seeds):.2%} |"
        )
        return Figure(f"{name}: mean of {len(seeds)}", statistics.mean(seeds), low=low)

    def _mnist(self, quick: bool) -> list[Figure]:
        data, seeds = Releases(unpacked("mnist", self.folder)), 1 if quick else SEEDS
        measured: list[Figure] = []
        began = time.monotonic()
        for epsilon in (1.0,) if quick else EPSILONS:
            for name, values in data.accuracy("moments", epsilon, seeds=range(seeds)).items():
                low = 0.95 if epsilon == 1.0 else None
                measured.append(self._figures(f"mnist, moments, {name.split()[-1]}, epsilon {epsilon:g}", values, low))
        for recipe, low in (("neuromix", 0.89), ("neuromix-hs", None), ("class-schedule", None)):
            for epsilon in (1.0,) if quick else (0.1, 1.0, 8.0):
                values = data.accuracy(recipe, epsilon, seeds=range(seeds))[ROWS]
                least = low if epsilon == 1.0 else None
                measured.append(self._figures(f"mnist, {recipe}, epsilon {epsilon:g}", values, least))
        if not quick:
            pixels = Releases(unpacked("mnist", self.folder)).accuracy("dpmix", 1.0)[ROWS]
            measured.append(self._figures("mnist, dpmix, epsilon 1", pixels))
        hs = data.prepared("neuromix-hs", 1.0)
        hs = replace(hs, config=replace(hs.config, degree=64.0))
        truly = accountant.epsilon(hs.config.event(published_sigma(hs.config), 10), 1e-5)
        measured.append(Figure("mnist, neuromix-hs: epsilon of the paper's noise for 1, degree 64", truly))
        measured.append(Figure("mnist: minutes", (time.monotonic() - began) / 60, unit="min"))
        return measured

    def _cifar10(self, weights: str) -> list[Figure]:
        data = Releases(unpacked("cifar10", self.folder), encoder="dinov2-vits14", weights=weights)
        measured = []
        for epsilon in EPSILONS:
            low = {0.1: 0.90, 1.0: 0.94}.get(epsilon)
            for name, values in data.accuracy("moments", epsilon).items():
                measured.append(
                    self._figures(f"cifar10, moments, {name.split()[-1]}, epsilon {epsilon:g}", values, low)
                )
        measured.append(self._figures("cifar10, neuromix, epsilon 1", data.accuracy("neuromix", 1.0)[ROWS]))
        for epsilon in (0.1, 1.0, 8.0):
            low = 0.955 if epsilon == 1.0 else None
            measured.append(self._figures(f"cifar10, private head, epsilon {epsilon:g}", data.head(epsilon), low))
        return measured

    def below(self) -> str:
        head = ["| release | seeds | mean | deviation | worst |", "|---|---|---|---|---|"]
        paper = (
            f"The paper, at a claimed epsilon of 1: MNIST {PAPER['neuromix']:.1%} with Poisson sampling and "
            f"{PAPER['neuromix-hs']:.1%} with hierarchical sampling; CIFAR-10 {PAPER['cifar10']:.1%}."
        )
        return "\n".join([*head, *self.lines, "", paper])


if __name__ == "__main__":
    benchmark = Benchmark()
    main(
        "release",
        benchmark.measure,
        about="Test accuracy of classifiers made from released data sets alone; delta 1e-5, sound accounts.",
        below=benchmark.below,
        more=device_options(),
    )
