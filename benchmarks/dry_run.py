"""The time that `--dry-run` predicts, compared with the first step of De et al.'s run on CIFAR-10."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.results import Figure, main
from benchmarks.shared_data import at_hand, unpacked
from dpvision.private.training import train
from dpvision.settings.recipes import recipe

QUICK = {"batch": 128}  # 1/32 of a step's images; a step of the whole recipe takes a quarter of an hour here


def measure(quick: bool) -> list[Figure]:
    """The recipe is begun and charged as any run, and stopped after its first step."""
    if not at_hand():
        print("left out: the shared data is not at hand", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPVISION_HOME"] = str(Path(folder) / "home")
        config = replace(recipe("self-aug"), epsilon=1.0, **(QUICK if quick else {}))
        prepared = train.prepare(unpacked("cifar10", Path(folder)), config)
        before = prepared.estimate_seconds()
        seconds = _of_a_step(prepared, Path(folder) / "run")
        after = prepared.estimate_seconds()
    predicted = (before + after) / 2  # the machine may have changed its pace meanwhile
    hours = seconds * prepared.sampler.steps / 3600
    return [
        Figure("predicted by --dry-run", predicted / 3600, unit="hours"),
        Figure("at the pace of the first step", hours, unit="hours"),
        Figure("predicted / measured", predicted / 3600 / hours, 0.8, 1.2),
    ]


def _of_a_step(prepared: train.Prepared, folder: Path) -> float:
    """Seconds of the first step, scaled from the images that were drawn to those that are expected."""
    run = train.begin(prepared, folder)
    first: list[tuple[float, int]] = []
    began = time.monotonic()
    train.proceed(
        run,
        prepared,
        watch=lambda p: first.append((time.monotonic() - began, p.images)),
        stop=lambda: bool(first),
    )
    seconds, views = first[0]
    return seconds / views * prepared.config.views * prepared.sampler.batch


if __name__ == "__main__":
    main(
        "dry_run",
        measure,
        about="De et al.'s recipe (`self-aug`: WRN-16-4, B 4096, K 16, T 875) on CIFAR-10 is begun as any run; its "
        "first step is timed, with all that comes before it (quick: a batch of 128 instead of 4096).",
    )
