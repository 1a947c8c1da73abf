"""A little public data: what each step of the way gains, how private optimisers compare, and what they cost in time."""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.public_parts import NETWORK, PUBLIC, SAMPLES, Parts, scratch
from benchmarks.results import Figure, device_options, main
from benchmarks.shared_data import at_hand
from benchmarks.trainings import Case, Done, difference, figures, table, trained
from dpvision.audit.geometry import load_subject
from dpvision.audit.hessian import curvature
from dpvision.models import build
from dpvision.private.engine import ClippedSum, Public
from dpvision.private.training import train
from dpvision.private.training.network import each_loss
from dpvision.public import assist
from dpvision.settings.training import Config

EPSILON, SEEDS = 2.0, 3
DATA = ("fashion_mnist", "cifar10")
OPTIONS = argparse.ArgumentParser(add_help=False, parents=[device_options()])
OPTIONS.add_argument("--data", choices=DATA, action="append", help="this data set only; may repeat")
LADDER = {  # Table 1: recipe and warm-up
    "cold": ("cold-small", None),
    "warm": ("warm-small", "warm"),
    "warmsyn": ("warmsyn-small", "warmsyn"),
    "warmsyn augmented": ("warmsyn-small", "warmsyn augmented"),
    "+ sam": ("warmsyn-small", "warmsyn augmented sam"),
    "+ weight multiplicity": ("extended-small", "warmsyn augmented sam"),
}
OPTIMISERS = ("dope", "mirror", "adadps")  # Table 9, in addition to "+ sam" and "+ weight multiplicity"
RECOGNISED, MINUTES, OVERHEAD = 0.85, 60.0, 1.10
CLIMB = ("cold", "warm", "warmsyn", "warmsyn augmented")


@dataclass(frozen=True)
class Assisted(Case):
    """A training on the private part, from a warm-up with the same seed."""

    parts: Parts | None = None
    warm_up: str | None = None

    def config(self, seed: int) -> Config:
        assert self.parts is not None
        config = super().config(seed)
        if self.warm_up:
            config = replace(config, pretrained=str(self.parts.warmed(self.warm_up, seed=seed)))
        return replace(config, synthetic=self.parts.synthetic) if config.assist != "none" else config

    def prepared(self, seed: int, folder: Path) -> train.Prepared:
        assert self.parts is not None
        return train.prepare(self.parts.private, self.config(seed))


def ladder(parts: Parts) -> dict[str, Assisted]:
    """The steps of Table 1 and the optimisers of Table 9, by name."""

    def case(name: str, recipe: str, warm_up: str | None, **settings: Any) -> Assisted:
        pairs = tuple(settings.items())
        return Assisted(
            parts.name, recipe, EPSILON, seeds=SEEDS, settings=pairs, name=name, parts=parts, warm_up=warm_up
        )

    measured = {name: case(name, *how) for name, how in LADDER.items()}
    return measured | {m: case(m, "extended-small", "warmsyn augmented sam", assist=m) for m in OPTIMISERS}


class PublicPart:
    def __init__(self) -> None:
        self.measured: dict[Case, list[Done]] = {}

    def measure(self, quick: bool) -> list[Figure]:
        every = overheads(quick)
        if at_hand():
            with tempfile.TemporaryDirectory() as place:
                folder = scratch(Path(place))
                every += sharpness(Parts("fashion_mnist", folder), quick) if quick else self.full(folder)
        return every

    def full(self, folder: Path) -> list[Figure]:
        every = []
        for name in OPTIONS.parse_known_args()[0].data or DATA:
            parts = Parts(name, folder)
            every += samples(parts) + sharpness(parts, quick=False)
            cases = ladder(parts)
            self.measured |= trained(cases.values(), keep=True)
            every += figures({c: self.measured[c] for c in cases.values()}) + self.gains(cases, name)
        return every

    def gains(self, cases: dict[str, Assisted], name: str) -> list[Figure]:
        """Each step of the ladder over the one before, and each optimiser over DP-SGD from the same weights."""
        steps = list(LADDER)
        pairs = list(zip(steps[1:], steps[:-1], strict=True)) + [(m, "+ sam") for m in OPTIMISERS]
        every = []
        for one, other in pairs:
            gain, half = difference(self.measured[cases[one]], self.measured[cases[other]])
            # The order of the first steps is what the paper shows; the others are reported as they are.
            low = 0.0 if one in CLIMB else None
            title = f"{name}: {one} minus {other}, +- {100 * half:.2f}"
            every.append(Figure(title, 100 * gain, low, unit="points"))
        return every


def samples(parts: Parts) -> list[Figure]:
    """Whether a classifier that knows real images recognises samples."""
    test, made = parts.recognised()
    low = RECOGNISED if parts.name == "fashion_mnist" else None
    every = [
        Figure(f"{parts.name}: test images that the judge names right", test),
        Figure(f"{parts.name}: samples of EDM that it names right", made, low),
    ]
    if "edm" in parts.minutes:
        spent = parts.minutes["edm"]
        every.append(Figure(f"{parts.name}: processor time of EDM", spent, high=MINUTES, unit="minutes"))
    return every


def sharpness(parts: Parts, quick: bool) -> list[Figure]:
    """Largest eigenvalues of the loss on the public images, after SGD and after SAM (Table 4)."""
    kinds = ("short", "short sam") if quick else ("warmsyn augmented", "warmsyn augmented sam")
    every, largest = [], []
    for kind in kinds:
        weights = parts.warmed(kind, seed=0)
        subject = load_subject(weights, parts.public, private=False, model=NETWORK, most=256 if quick else 1000)
        bent = curvature(subject.network, each_loss, subject.inputs, subject.targets, top=5, probes=4 if quick else 16)
        largest.append(bent.eigenvalues.values[0])
        every.append(Figure(f"{parts.name}: lambda_max after {kind}", largest[-1]))
        if not quick:
            every.append(Figure(f"{parts.name}: lambda_1 / lambda_5 after {kind}", bent.ratio or math.nan))
            every.append(Figure(f"{parts.name}: trace after {kind}", bent.trace.value))
    title = f"{parts.name}: lambda_max of SAM / SGD (paper 0.44 / 1.38 = 0.32)"
    return [*every, Figure(title, largest[1] / largest[0], high=1.0)]


# What a step of each method does, at the paper's sizes: 4,096 private images, 64 public ones for a public gradient.
PAPERS_BATCH, PAPERS_PUBLIC = 4096, 64
SIZES = {"wrn-16-4": ((3, 32, 32), ((4, 32), (16, 28))), NETWORK: ((1, 28, 28), ((4, 128), (16, 64)))}


def overheads(quick: bool) -> list[Figure]:
    """Time of a step relative to DP-SGD's with as many views, taking turns, processor time of one thread."""
    torch.set_num_threads(1)
    every = []
    for network, (shape, sizes) in SIZES.items():
        for views, units in sizes:
            if quick and network == "wrn-16-4" and views == 16:
                continue  # minutes
            rounds = (2 if quick else 5) if network == "wrn-16-4" else 7
            ratios = _overheads(network, shape, views=views, units=units, rounds=rounds)
            for method, ratio in ratios.items():
                # The paper's network is what the paper's 3% are of; small ones are reported.
                high = OVERHEAD if network == "wrn-16-4" else None
                title = f"{network}, K {views}: time of {method} / DP-SGD"
                every.append(Figure(title, ratio, high=high))
    return every


def _overheads(network: str, shape: Any, *, views: int, units: int, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = build(network, shape, classes=10, seed=0)
    images, targets = torch.randn(units * views, *shape), torch.randint(0, 10, (units * views,))
    clipped = ClippedSum(model, each_loss, clip=1.0)
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    public = torch.randn(views, len(weights))
    assisted = {
        "DP-SGD": None,
        "weights": assist.weight_multiplicity(public, weights, radius=0.1).public,
        "dope": assist.dope(public[0]).public,
        "adadps": assist.adadps(public[0].square(), floor=0.1).public,
    }
    # Public gradients in a step, and the public images in each, for the number of private images that is timed here.
    gradients = {"DP-SGD": 0.0, "weights": float(views), "dope": 1.0, "adadps": 16 / 12}
    share = units / PAPERS_BATCH

    def private(given: Public | None) -> Callable[[], Tensor]:
        return lambda: clipped(images, targets, [views] * units, given)

    def gradient() -> Tensor:
        return assist.mean_gradient(model, each_loss, images[:PAPERS_PUBLIC], targets[:PAPERS_PUBLIC])

    loops: dict[str, Callable[[], Tensor]] = {m: private(p) for m, p in assisted.items()} | {"gradient": gradient}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(1 + rounds):
        for name, go in loops.items():
            began = time.process_time()
            go()
            if turn:  # the first sets things up
                seconds[name].append(time.process_time() - began)
    extra = {m: g * share * statistics.median(seconds["gradient"]) for m, g in gradients.items()}
    return {
        m: statistics.median((a + extra[m]) / b for a, b in zip(seconds[m], seconds["DP-SGD"], strict=True))
        for m in assisted
        if m != "DP-SGD"
    }


if __name__ == "__main__":
    part = PublicPart()
    main(
        "public",
        part.measure,
        about=f"{PUBLIC:,} images of each data set are public, {PUBLIC // 10} of each class; an EDM that saw these "
        f"alone draws {SAMPLES:,} more. {SEEDS} trainings of each on the rest, epsilon {EPSILON:g}, delta 1e-5: "
        f"{NETWORK}, 2 views, 40 steps of 512 images. Intervals are Welch's, 95%. Overheads: processor time of "
        f"one thread, methods taking turns, public gradients in the paper's proportion ({PAPERS_PUBLIC} public images "
        f"for {PAPERS_BATCH:,} private ones).",
        below=lambda: table(part.measured),
        more=OPTIONS,
    )
