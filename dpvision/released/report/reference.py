"""Results of dpvision on public data sets, for comparison with a run: test accuracy at delta 1e-5, as measured.

Every figure is in README.md or benchmarks/RESULTS.md, with date, machine and command. A run is compared with them only
where its data has the name of the data set, and its size, shape and number of classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any


@dataclass(frozen=True)
class Known:
    """A public data set, by the facts of its training split."""

    name: str
    n: int
    shape: tuple[int, int, int]
    classes: int


@dataclass(frozen=True)
class Result:
    """The mean test accuracy of some runs."""

    data: str
    recipe: str
    epsilon: float
    accuracy: float
    runs: int


KNOWN = {
    "digits": Known("digits", 1_437, (1, 8, 8), 10),
    "mnist": Known("MNIST", 60_000, (1, 28, 28), 10),
    "fashionmnist": Known("Fashion-MNIST", 60_000, (1, 28, 28), 10),
    "cifar10": Known("CIFAR-10", 50_000, (3, 32, 32), 10),
    "dermamnist": Known("DermaMNIST", 7_007, (3, 28, 28), 7),
}

RESULTS = (
    Result("digits", "linear", 3, 0.9544, 10),
    Result("digits", "small-cnn", 3, 0.9483, 5),
    Result("mnist", "linear", 3, 0.9135, 1),
    Result("mnist", "scatter-linear", 1, 0.9794, 3),
    Result("mnist", "scatter-linear", 2, 0.9850, 3),
    Result("mnist", "scatter-linear", 3, 0.9858, 3),
    Result("fashionmnist", "scatter-linear", 1, 0.8777, 3),
    Result("fashionmnist", "scatter-linear", 2, 0.8886, 3),
    Result("fashionmnist", "scatter-linear", 3, 0.8924, 3),
    Result("cifar10", "scatter-linear", 3, 0.6705, 3),
    Result("cifar10", "patches", 0.1, 0.5349, 5),
    Result("cifar10", "patches", 0.5, 0.6654, 5),
    Result("cifar10", "patches", 1, 0.7026, 5),
    Result("cifar10", "patches", 2, 0.7310, 5),
    Result("cifar10", "patches", 3, 0.7475, 5),
    Result("dermamnist", "linear", 3, 0.6723, 1),
    Result("dermamnist", "small-cnn", 3, 0.6748, 1),
    Result("dermamnist", "patches", 1, 0.6956, 5),
    Result("dermamnist", "patches", 4, 0.7273, 5),
    Result("dermamnist", "patches", 7.42, 0.7361, 5),
)


def known(source: Any, *, n: int | None, shape: list[Any], classes: int) -> str | None:
    """Return the public data set that a run was trained on, by its file's name and public facts; None if unknown."""
    key = _key(source)
    data = KNOWN.get(key)
    if data is None or (list(data.shape), data.classes) != (shape, classes):
        return None
    return key if n and abs(n - data.n) <= data.n / 100 else None


def results(key: str | None) -> dict[str, list[Result]]:
    """Return the results on a data set by recipe, each by rising epsilon."""
    by_recipe: dict[str, list[Result]] = {}
    for result in sorted((r for r in RESULTS if r.data == key), key=lambda r: r.epsilon):
        by_recipe.setdefault(result.recipe, []).append(result)
    return by_recipe


def _key(source: Any) -> str:
    stem = PurePath(source).stem if isinstance(source, str) else ""
    return "".join(c for c in stem.lower() if c.isalnum())
