"""Time and memory against the size of the problem: rows, views, ranks, pixels, steps and charges.

Each point is measured in its own process. A slope is that of log time against log size between the two ends of an
axis: 1 means that twice the size takes twice the time.
"""

from __future__ import annotations

import json
import math
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.results import Figure, main

ROOT = Path(__file__).parents[1]
SIDE, CLASSES = 8, 10  # of the images of a store
BATCH = 256  # expected, of a step on a store of any size
BUDGET = 8.0, 1e-5
PICTURE = Path(__file__).with_suffix(".png")


@dataclass(frozen=True)
class Axis:
    """What grows, the sizes in the full form and with --quick, and the largest slopes of time and of memory."""

    name: str
    unit: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    time: float
    memory: float | None = None


@dataclass(frozen=True)
class Point:
    """Seconds of one repetition, the median of several, and the growth of the largest resident memory in bytes."""

    size: int
    seconds: float
    growth: int


AXES = (
    Axis("reading a packed store", "images", (1000, 10_000, 100_000, 1_000_000), (1000, 10_000, 100_000), 1.1, 1.1),
    Axis("a step on a packed store", "images", (1000, 10_000, 100_000, 1_000_000), (1000, 10_000, 100_000), 0.3, 0.5),
    Axis("a clipped sum", "views of each image", (1, 2, 4, 8, 16), (1, 4, 16), 1.1, 1.1),
    Axis("a clipped sum of images", "pixels", (16**2, 32**2, 64**2, 128**2), (16**2, 32**2, 64**2), 1.1, 1.1),
    Axis("features by patches", "pixels", (32**2, 64**2, 127**2), (32**2, 64**2), 1.15, 1.1),
    Axis("a step", "ranks", (1, 2, 4), (1, 2), 0.5),
    Axis("the epsilon of a training", "steps", (10, 1000, 100_000, 1_000_000), (10, 1000, 100_000), 0.5),
    Axis("one more charge", "charges", (10, 30, 100, 200), (10, 30, 100), 1.1),
)
SHARE = 0.25  # of the peak rate of matrix products, by features of patches
LEAST_GROWTH = 1 << 20  # bytes; less is noise
# Steps of two trainings, whose difference is free of the start and the end.
FEW, MANY = 3, 13


def reading(images: int) -> Callable[[], object]:
    """Open a packed store and compute the digest by which its account is found."""
    from dpvision.data import identify, load

    store = _store(images)
    return lambda: identify(load(store).train)


def step(images: int) -> Callable[[], object]:
    """Draw a batch of BATCH expected images, clip, sum, and add noise."""
    import torch
    from torch.nn.functional import cross_entropy

    from dpvision.core.keys import Key
    from dpvision.core.noise import add_noise
    from dpvision.core.sampling import PoissonSampler
    from dpvision.data import load
    from dpvision.models import build
    from dpvision.models.inputs import Inputs
    from dpvision.private.engine import ClippedSum
    from dpvision.private.training.private_sum import fetcher

    split = load(_store(images)).train
    fetch = fetcher(split, "image", Inputs(split), None)
    model = build("small-cnn", (1, SIDE, SIDE), classes=CLASSES, seed=0)
    engine = ClippedSum(model, lambda x, y: cross_entropy(x, y, reduction="none"), clip=1.0, one_view=True)
    sampler, key = PoissonSampler(n=images, batch=BATCH, steps=1000), Key.for_tests("scaling")
    number = iter(range(1000))

    def once() -> torch.Tensor:
        at = next(number)
        drawn = sampler.draw(images, key.stream("sampling", step=at))
        total = engine(*fetch(drawn, 0)).numpy()
        return torch.from_numpy(add_noise(total, key.stream("noise", step=at), sensitivity=1.0, sigma=1.0))

    return once


def views(count: int) -> Callable[[], object]:
    """Sum the clipped gradients of 16 units of `count` images."""
    return _sum("wrn-10-1", units=16, views=count, side=32)


def pixels(count: int) -> Callable[[], object]:
    """Sum the clipped gradients of 16 images of this size."""
    return _sum("wrn-10-1", units=16, views=1, side=math.isqrt(count))


def patches(count: int) -> Callable[[], object]:
    """Compute features of a piece of images of this size by 1,024 patches of three sizes."""
    import torch

    from dpvision.models import build
    from dpvision.models.featured import PIECE

    side = math.isqrt(count)
    model = build("patches-scales", (3, side, side), classes=CLASSES, seed=0)
    images = torch.rand(PIECE, 3, side, side) * 2 - 1
    return lambda: model.features(images)


def share_of_peak() -> float:
    """The rate of the matrix products of `patches`, 64x64, over that of the fastest product of 1024x1024 numbers."""
    import torch

    from dpvision.models import build
    from dpvision.models.device import product
    from dpvision.models.featured import PIECE

    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    banks = build("patches-scales", (3, 64, 64), classes=CLASSES, seed=0).prefix.banks
    each = 0
    for bank in banks:
        size, count, places = len(bank.offset), len(bank.dictionary), math.prod(bank.positions)
        each += 2 * places * (size * len(bank.whitening) + size * count + 2 * count * bank.windows.shape[1])
    once = patches(64**2)
    times: list[list[float]] = [[], [], []]
    for _ in range(7):
        for place, compute in enumerate((once, lambda: product(a, b), lambda: a @ b)):
            start = time.perf_counter()
            compute()
            times[place].append(time.perf_counter() - start)
    features, *products = (min(seconds) for seconds in times)
    return (2 * PIECE * each / features) / (2 * 1024**3 / min(products))  # and its mirror image


def epsilon(steps: int) -> Callable[[], object]:
    """Compute epsilon of a training, which is kept for a run, so each repetition has another noise."""
    from dpvision.core import accountant
    from dpvision.core.events import PoissonGaussian

    sigmas = iter(np.linspace(1, 1.1, 100) * math.sqrt(max(1, steps / 1000)))
    return lambda: accountant.epsilon(PoissonGaussian(0.01, float(next(sigmas)), steps), 1e-6)


def charge(charges: int) -> Callable[[], object]:
    """Charge a ledger that has `charges` charges."""
    from dpvision.core.events import Budget, PoissonGaussian
    from dpvision.storage.home import ledger_of

    ledger = ledger_of("ab" * 32)
    ledger.open(Budget(*BUDGET))
    number = iter(range(charges + 100))

    def once() -> object:
        at = next(number)
        return ledger.spend(PoissonGaussian(1e-3, 40.0, 10), id=f"{at:x}", run=f"run {at}")

    for _ in range(charges):
        once()
    return once


MEASURES: dict[str, Callable[[int], Callable[[], object]]] = dict(
    zip(
        (axis.name for axis in AXES if axis.unit != "ranks"),
        (reading, step, views, pixels, patches, epsilon, charge),
        strict=True,
    )
)


def _sum(name: str, *, units: int, views: int, side: int) -> Callable[[], object]:
    import torch
    from torch.nn.functional import cross_entropy

    from dpvision.models import build
    from dpvision.private.engine import ClippedSum

    model = build(name, (3, side, side), classes=CLASSES, seed=0)
    engine = ClippedSum(model, lambda x, y: cross_entropy(x, y, reduction="none"), clip=1.0, one_view=views == 1)
    images, targets = torch.randn(units * views, 3, side, side), torch.randint(0, CLASSES, (units * views,))
    return lambda: engine(images, targets, [views] * units)


def _store(images: int) -> Path:
    """Pack random images into a store, once."""
    from dpvision.data import pack

    folder = Path(os.environ["DPVISION_HOME"])
    path = folder / f"store-{images}"
    if not path.exists():
        rng, source = np.random.default_rng(0), folder / f"{images}.npz"
        pictures = rng.integers(0, 256, (images, SIDE, SIDE, 1), dtype=np.uint8)
        labels = rng.integers(0, CLASSES, images)
        np.savez(source, train_images=pictures, train_labels=labels, test_images=pictures[:10], test_labels=labels[:10])
        pack(source, path, classes=CLASSES)
        source.unlink()
    return path


def work(name: str, size: int, repeats: int) -> None:
    """Measure a point in this process, and print it."""
    import torch

    torch.set_num_threads(1)
    once = MEASURES[name](size)
    before = _largest()
    once()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": statistics.median(seconds), "growth": max(LEAST_GROWTH, _largest() - before)}))


def _largest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Scaling:
    """All axes with their points."""

    def __init__(self) -> None:
        self.points: dict[Axis, list[Point]] = {}
        self.share = 0.0

    def measure(self, quick: bool) -> list[Figure]:
        with tempfile.TemporaryDirectory() as home:
            import torch

            torch.set_num_threads(1)
            environment = {**os.environ, "DPVISION_HOME": home, "OMP_NUM_THREADS": "1"}
            for axis in AXES:
                sizes = axis.quick if quick else axis.sizes
                if axis.unit == "ranks":
                    self.points[axis] = [_of_ranks(size, environment) for size in sizes]
                else:
                    self.points[axis] = [_of_process(axis.name, size, environment, 3 if quick else 7) for size in sizes]
                _say(f"{axis.name}: " + ", ".join(f"{p.size:,}: {p.seconds:.4g} s" for p in self.points[axis]))
        self.share = share_of_peak()
        measured = [figure for axis, points in self.points.items() for figure in _figures(axis, points)]
        return [
            *measured,
            Figure("features by patches, 64x64: rate of products / the peak rate", self.share, low=SHARE),
        ]

    def markdown(self) -> str:
        _draw(self.points)
        lines = ["![time and memory against the size of the problem](scaling.png)", ""]
        lines += ["| axis | size | seconds | memory growth MB |", "|---|---|---|---|"]
        for axis, points in self.points.items():
            for p in points:
                lines.append(f"| {axis.name} | {p.size:,} {axis.unit} | {p.seconds:.4g} | {p.growth / 1e6:.0f} |")
        return "\n".join(lines)


def _of_process(name: str, size: int, environment: dict[str, str], repeats: int) -> Point:
    words = [sys.executable, "-m", "benchmarks.scaling", "--work", json.dumps([name, size, repeats])]
    ran = subprocess.run(words, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return Point(size, **json.loads(ran.stdout.splitlines()[-1]))


def _of_ranks(ranks: int, environment: dict[str, str]) -> Point:
    """Processor seconds of a step, of all ranks together, and the memory of the largest rank."""
    (few, _), (many, largest) = (_train(ranks, steps, environment) for steps in (FEW, MANY))
    return Point(ranks, max(1e-6, (many - few) / (MANY - FEW)), largest)


def _train(ranks: int, steps: int, environment: dict[str, str]) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as home, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        words = f"train digits --epsilon 3 --model wrn-10-1 --batch 256 --steps {steps} --out {home}/run"
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "DPVISION_HOME": home}
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "dpvision", *words.split()],
                env={**environment, **meeting, "RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]
        used = [os.wait4(process.pid, 0) for process in started]
        if any(status for _, status, _ in used):
            raise RuntimeError(f"{words} failed on {ranks} ranks")
        return sum(u.ru_utime + u.ru_stime for _, _, u in used), max(u.ru_maxrss for _, _, u in used) * 1024


def slope(sizes: list[int], values: list[float]) -> float:
    """Return the slope of log value against log size between the ends."""
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


def _figures(axis: Axis, points: list[Point]) -> list[Figure]:
    sizes = [p.size for p in points]
    measured = [
        Figure(
            f"{axis.name}: slope of time against {axis.unit}", slope(sizes, [p.seconds for p in points]), high=axis.time
        )
    ]
    if axis.memory is not None:
        grown = slope(sizes, [float(p.growth) for p in points])
        measured.append(Figure(f"{axis.name}: slope of memory growth against {axis.unit}", grown, high=axis.memory))
    return measured


def _draw(table: dict[Axis, list[Point]]) -> None:
    """Draw a panel for each axis: seconds and megabytes, both on logarithmic scales."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(14, 6), constrained_layout=True)
    for panel, (axis, points) in zip(axes.flat, table.items(), strict=False):
        sizes = [p.size for p in points]
        panel.loglog(sizes, [p.seconds for p in points], "o-", color="#0b6e4f")
        panel.set_title(axis.name, loc="left", fontsize=10)
        panel.set_xlabel(axis.unit)
        panel.set_ylabel("seconds", color="#0b6e4f")
        if axis.memory is not None:
            other = panel.twinx()
            other.loglog(sizes, [p.growth / 1e6 for p in points], "s--", color="#4f81bd")
            other.set_ylabel("memory growth, MB", color="#4f81bd")
    for panel in list(axes.flat)[len(table) :]:
        panel.set_visible(False)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*json.loads(sys.argv[2]))
        sys.exit()
    scaling = Scaling()
    main(
        "scaling",
        scaling.measure,
        about="Time and memory against the size of the problem, one process and one thread for each point. A slope is "
        "that of the logarithms between the smallest and the largest size. For ranks, the seconds are processor "
        "seconds of all ranks together.",
        below=scaling.markdown,
    )
