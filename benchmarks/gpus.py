"""Estimates for accelerators, on docs/gpus.md: `python -m benchmarks.gpus` regenerates its two tables.

They are computed by models/cost.py from counted operations and the cards' data sheets. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from dpvision.models import build
from dpvision.models.cost import Cost, Described, Prediction, count, predict
from dpvision.settings.recipes import recipe
from dpvision.settings.training import PRECISIONS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpus.md"
CARDS = ("a100", "rtx4090")
NETWORKS = ("wrn-16-4", "wrn-40-4", "vit-tiny", "resnet-9", "small-cnn")
VIEWS = (1, 4, 16)
IN = " / ".join(PRECISIONS)
SHAPE, CLASSES, BATCH, STEPS = (3, 32, 32), 10, 4096, 875
# The papers' settings: recipe, and steps at an epsilon (De et al. 2022; DP-Mix takes theirs).
PAPERS = (("self-aug", 1, 875), ("self-aug", 8, 2468), ("dp-mix-self", 1, 875), ("dp-mix-self", 8, 2468))


def write_tables(text: str) -> str:
    """Return the page with both tables computed again, between their marks."""
    for name, rows in (("by network", _by_network()), ("papers", _papers())):
        first, last = f"<!-- estimates {name} -->\n", "<!-- end of estimates -->"
        before, _, rest = text.partition(first)
        if not rest:
            raise ValueError(f"{PAGE.name} has no mark {first.strip()!r}")
        text = before + first + "\n".join(rows) + "\n" + rest[rest.index(last) :]
    return text


def _by_network() -> Iterator[str]:
    yield f"| card | network | K | units in a pass | GB of a pass | images/s {IN} | hours of {STEPS} steps {IN} |"
    yield "|---|---|---|---|---|---|---|"
    for card in CARDS:
        device = describe(card)
        for network in NETWORKS:
            for views in VIEWS:
                results = [_predict(network, device, views=views, batch=BATCH, precision=p) for p in PRECISIONS]
                speeds = " / ".join(f"{_round(p.images_per_second):,}" for p in results)
                size = f"{results[0].units:,} | {results[0].memory / 1e9:.2g}"
                yield f"| {device.name} | {network} | {views} | {size} | {speeds} | {_hours(results, STEPS)} |"


def _papers() -> Iterator[str]:
    yield "| recipe | epsilon | K | steps | " + " | ".join(f"hours, {describe(card).name}" for card in CARDS) + " |"
    yield "|---|---|---|---|---|---|"
    for name, epsilon, steps in PAPERS:
        config = recipe(name, epsilon=epsilon)
        assert config.model and config.batch
        hours = []
        for card in CARDS:
            results = [
                _predict(config.model, describe(card), views=config.views, batch=config.batch, precision=p)
                for p in PRECISIONS
            ]
            hours.append(_hours(results, steps))
        yield f"| `{name}` | {epsilon} | {config.views} | {steps:,} | {' | '.join(hours)} |"


def describe(card: str) -> Described:
    """Read the description of a card in examples/devices."""
    return Described.read(ROOT / "examples" / "devices" / f"{card}.toml")


def _predict(network: str, device: Described, *, views: int, batch: int, precision: str) -> Prediction:
    return predict(_cost(network), device, batch=batch, views=views, precision=precision)


@cache
def _cost(network: str) -> Cost:
    return count(build(network, SHAPE, classes=CLASSES, seed=0), each_loss, SHAPE)


def each_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per image."""
    return F.cross_entropy(outputs, targets, reduction="none")


def _hours(results: list[Prediction], steps: int) -> str:
    return " / ".join(f"{p.step * steps / 3600:.2g}" for p in results)


def _round(value: float) -> int:
    """Round to two digits, which is more than an estimate has."""
    return int(float(f"{value:.2g}"))


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
