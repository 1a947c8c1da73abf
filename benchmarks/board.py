"""Accuracy at equal privacy: every task at several epsilons, next to the goals and to what papers publish.

Nothing public is used but random images, unless a line says so. Trainings and releases are kept one by one in
trainings.jsonl, so the whole can be measured in several goes: `--train` runs what is missing (hours), and without it
only what is kept is shown. Settings were chosen on held-out training images or on other data sets, never on test
images.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.board_plot import draw
from benchmarks.release import ROWS, Releases
from benchmarks.results import Figure, machine, main
from benchmarks.shared_data import at_hand, unpacked
from benchmarks.trainings import KEPT, Case, Done, kept, trained
from dpvision.core import accountant
from dpvision.private.features import public_map
from dpvision.public import dictionary
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import Release
from dpvision.settings.setting import to_dict

PICTURE = Path(__file__).with_name("board.png")


@dataclass(frozen=True)
class Task:
    """One line of the board: what is measured, what it should reach, and what a paper publishes, with its data."""

    case: Case
    goal: float | None = None
    paper: float | None = None
    source: str = ""

    @property
    def released(self) -> bool:
        """Whether a data set of features is released, from which anyone can train."""
        return self.case.recipe == "moments"


def _tasks() -> tuple[Task, ...]:
    last = (("release", "last"),)
    probe, phases = "DP-RandP, linear probe (Tang et al. 2023)", "DP-RandP (Tang et al. 2023)"
    cifar = (
        (0.1, 0.575, 0.571, probe),
        (1.0, 0.724, 0.723, phases),
        (2.0, 0.755, 0.773, phases),
        (3.0, 0.775, 0.800, phases),
        (8.0, 0.800, 0.853, phases),
    )
    # On held-out training images, few coarse patches are better at epsilon 1, and both sizes at 4 and above.
    coarse, both = "patches-coarse", "patches-pyramid"
    skin = ((1.0, coarse, 0.712), (4.0, both, 0.737), (7.42, both, 0.750))
    made = "images of {}, on which a classifier is trained"
    return (
        *(Task(Case("cifar10", "patches", e, seeds=5, settings=last), *rest) for e, *rest in cifar),
        *(Task(_turned(e, model), published, published, phases) for e, model, published in skin),
        *(Task(_release("mnist", e)) for e in (0.1, 8.0)),
        Task(_release("mnist", 1.0), 0.980, 0.973, made.format("FETA-Pro")),
        Task(_release("fashion_mnist", 1.0), 0.870, 0.834, made.format("FETA-Pro")),
        Task(_release("cifar10", 1.0), 0.680, 0.351, made.format("DP-FETA")),
        Task(_release("cifar10", 10.0), 0.730),
    )


def _turned(epsilon: float, model: str, **more: Any) -> Case:
    settings = (("release", "last"), ("model", model), ("symmetry", "rotations"))
    return Case("dermamnist", "patches", epsilon, name=f"{model}, rotations", settings=settings, **{"seeds": 5, **more})


def _release(data: str, epsilon: float, **settings: Any) -> Case:
    return Case(data, "moments", epsilon, seeds=5, settings=tuple(settings.items()))


# Images, classes and channels of the data that is released.
SHAPES = {"mnist": (60_000, 10, 1), "fashion_mnist": (60_000, 10, 1), "cifar10": (50_000, 10, 3)}
TASKS = _tasks()
# From nothing in less than 5 minutes, with limits a little below what was measured.
QUICK = (
    Task(_turned(1.0, "patches-coarse", seeds=1, least=0.66), 0.712),
    Task(replace(_release("mnist", 1.0), seeds=1, least=0.965), 0.980),
)


def released(cases: Iterable[Case], *, keep: bool, make: bool) -> dict[Case, list[Done]]:
    """Each case's releases: those that are kept and, with `make`, the others now."""
    found: dict[Case, list[Done]] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("DPVISION_SCRATCH")) as place:
        scratch = Path(os.environ.get("DPVISION_SCRATCH") or place)
        os.environ["DPVISION_HOME"] = str(scratch / "home")  # never the operator's own ledgers
        sources: dict[tuple[Any, ...], Releases] = {}
        for case in cases:
            old = _kept(case) if keep else {}
            for seed in range(case.seeds):
                if seed in old or not (make and at_hand()):
                    continue
                which = (case.data, *case.settings)
                if which not in sources:
                    sources[which] = Releases(unpacked(case.data, scratch), **dict(case.settings))
                old[seed] = _make(sources[which], case, seed)
                if keep:
                    with KEPT.open("a") as file:
                        file.write(json.dumps(asdict(old[seed])) + "\n")
            if old:
                found[case] = [old[seed] for seed in sorted(old)]
    return found


def _make(source: Releases, case: Case, seed: int) -> Done:
    began, config = time.monotonic(), complete(case)
    assert config.sigma
    accuracy = source.accuracy("moments", case.epsilon, seeds=range(seed, seed + 1))[ROWS][0]
    return Done(
        title=case.title,
        settings=named(config),
        seed=seed,
        accuracy=accuracy,
        last=accuracy,
        epsilon=accountant.epsilon(config.event(config.sigma, 10), config.delta),
        seconds=time.monotonic() - began,
        day=str(date.today()),
        machine=machine(),
    )


def complete(case: Case) -> Release:
    """The complete settings of a release, from public numbers."""
    n, classes, channels = SHAPES[case.data]
    config = replace(release_recipe("moments"), epsilon=case.epsilon, **dict(case.settings))
    return config.complete(n, classes, channels)


def named(config: Release) -> str:
    """Names the settings of a release and of its public map: changed settings are measured again."""
    chosen = {k: v for k, v in to_dict(config).items() if k != "seed"}
    public = [public_map.FORMAT, public_map.PROCESS, public_map.IMAGES, dictionary.FORMAT]
    return hashlib.blake2b(json.dumps([chosen, *public], sort_keys=True).encode(), digest_size=16).hexdigest()


def _kept(case: Case) -> dict[int, Done]:
    settings = named(complete(case))
    return {d.seed: d for d in kept() if d.title == case.title and d.seed < case.seeds and d.settings == settings}


class Board:
    def __init__(self, *, train: bool) -> None:
        self.train = train

    def measure(self, quick: bool) -> list[Figure]:
        self.tasks = QUICK if quick else TASKS
        if quick and not at_hand():
            print("left out: all of it, as the shared data is not at hand", file=sys.stderr)
            return []
        make = quick or self.train
        of_training = [t.case for t in self.tasks if not t.released]
        of_release = [t.case for t in self.tasks if t.released]
        self.found = trained(of_training, keep=not quick, make=make) | released(of_release, keep=not quick, make=make)
        if not make:  # runs of the same title by earlier code, which the table dates
            for case in of_training:
                if case not in self.found and (earlier := [d for d in kept() if d.title == case.title]):
                    self.found[case] = earlier[-case.seeds :]
        self.tasks = tuple(t for t in self.tasks if t.case in self.found)
        if not quick:
            draw([(t.case, t.released, t.paper, self._each(t)) for t in self.tasks], PICTURE)
        return [figure for task in self.tasks for figure in self._figures(task)]

    def _each(self, task: Task) -> list[float]:
        return [d.accuracy for d in self.found[task.case]]

    def _figures(self, task: Task) -> list[Figure]:
        done, title = self.found[task.case], task.case.title
        return [
            Figure(f"{title}: mean of {len(done)}", statistics.mean(self._each(task)), low=task.case.least),
            Figure(f"{title}: epsilon", max(d.epsilon for d in done), high=task.case.epsilon),
        ]

    def table(self) -> str:
        """Each task: ours, the goal and whether it is reached, and what a paper publishes and releases."""
        rows = [
            "| task | kind | epsilon | ours | worst | runs | minutes | day | goal | reached | published | by |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for task in self.tasks:
            each, done = self._each(task), self.found[task.case]
            mean = statistics.mean(each)
            kind = "release of features" if task.released else task.case.name or task.case.recipe
            minutes = statistics.median(d.seconds for d in done) / 60
            goal = "" if task.goal is None else f"{task.goal:.1%}"
            below = 100 * (task.goal - mean) if task.goal is not None else None
            reached = "" if below is None else "yes" if below <= 0 else f"no, {below:.1f} points below"
            paper = "" if task.paper is None else f"{task.paper:.1%}"
            rows.append(
                f"| {task.case.data} | {kind} | {task.case.epsilon:g} | {mean:.1%} | {min(each):.1%} | {len(each)} | "
                f"{minutes:.1f} | {max(d.day for d in done)} | {goal} | {reached} | {paper} | {task.source} |"
            )
        return "\n".join([*rows, "", f"![accuracy against epsilon]({PICTURE.name})"])


if __name__ == "__main__":
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--train", action="store_true", help="train and release what is not kept yet; hours")
    board = Board(train=options.parse_known_args()[0].train)
    main(
        "board",
        board.measure,
        about="Test accuracy at delta 1e-5, epsilon by PLD, with no image that a camera took but the private ones; 2 "
        "CPU cores. Releases are noisy moments of features, and their accuracy is that of a classifier trained on the "
        "released rows; FETA-Pro and DP-FETA release images, which can be looked at. Minutes without features.",
        below=board.table,
        more=options,
    )
