"""Private trainings on real data, several of each, with the mean and the spread of the last weights' test accuracy."""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.results import Figure, main
from benchmarks.shared_data import unpacked
from dpvision import train
from dpvision.privacy import accountant
from dpvision.recipes import recipe


@dataclass(frozen=True)
class Case:
    """One recipe on one data set at one epsilon, trained `seeds` times."""

    data: str
    recipe: str
    epsilon: float = 3.0
    seeds: int = 3
    least: float | None = None  # what the mean must reach
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    @property
    def title(self) -> str:
        return f"{self.data}, {self.name or self.recipe}, epsilon {self.epsilon:g}"


@dataclass
class Done:
    accuracies: list[float] = field(default_factory=list)
    epsilons: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies)

    @property
    def spread(self) -> float:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case("mnist", "scatter-linear", least=0.985, seeds=1)]
    return [
        *(Case("mnist", "scatter-linear", e, least={3.0: 0.985}.get(e)) for e in (1.0, 2.0, 3.0)),
        *(Case("fashion_mnist", "scatter-linear", e, least={3.0: 0.89}.get(e)) for e in (1.0, 2.0, 3.0)),
        Case("cifar10", "scatter-linear", least=0.665),
        Case("cifar10", "scatter-cnn", least=0.69),
    ]


class Trainings:
    """All cases, one after the other."""

    def __init__(self) -> None:
        self.done: dict[Case, Done] = {}

    def measure(self, quick: bool) -> list[Figure]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            os.environ["DPVISION_HOME"] = str(folder / "home")
            for number, case in enumerate(cases(quick)):
                source = unpacked(case.data, folder)
                if source is None:
                    print(f"left out: {case.title}: the shared data is not at hand", file=sys.stderr)
                    continue
                self.done[case] = run(case, source, folder / str(number))
        return self.figures()

    def figures(self) -> list[Figure]:
        found = []
        for case, done in self.done.items():
            found += [
                Figure(f"{case.title}: mean of {len(done.accuracies)}", done.mean, case.least),
                Figure(f"{case.title}: spread", done.spread),
                Figure(f"{case.title}: epsilon", max(done.epsilons), high=case.epsilon),
                Figure(f"{case.title}: minutes", statistics.median(done.seconds) / 60, unit="min"),
            ]
        return found


def run(case: Case, source: str, folder: Path) -> Done:
    done = Done()
    for seed in range(case.seeds):
        began = time.monotonic()
        config = replace(
            recipe(case.recipe), epsilon=case.epsilon, budget=1e4, seed=seed, release="ema", **case.settings
        )
        prepared = train.prepare(source, config)
        outcome = train.proceed(train.begin(prepared, folder / str(seed)), prepared)
        assert outcome.accuracy is not None
        done.accuracies.append(outcome.accuracy)
        done.epsilons.append(accountant.epsilon(outcome.event, config.delta))
        done.seconds.append(outcome.seconds)
        print(
            f"{case.title}, seed {seed}: {outcome.accuracy:.4f} in {outcome.seconds:.0f} s "
            f"({time.monotonic() - began:.0f} s with features)",
            file=sys.stderr,
            flush=True,
        )
    return done


def difference(a: Done, b: Done) -> tuple[float, float]:
    """Mean of a minus mean of b, and half the width of Welch's 95% interval."""
    from scipy import stats

    test = stats.ttest_ind(a.accuracies, b.accuracies, equal_var=False)
    interval = test.confidence_interval(0.95)
    return a.mean - b.mean, (interval.high - interval.low) / 2 if math.isfinite(interval.high) else math.inf


if __name__ == "__main__":
    trainings = Trainings()
    main(
        "train",
        trainings.measure,
        about="Test accuracy of the released weights (EMA, fixed before training) at delta 1e-5, epsilon by PLD.",
    )
