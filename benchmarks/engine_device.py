"""The clipping engine on an accelerator, compared with plain training and Opacus on the same device.

On a card, images per second and peak memory. On the stand-in of the tests, whose speed means nothing, what decides the
speed on a card: kernels, waits of the host for the device, bytes that are copied to it, and peak memory.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.engine_networks import load
from benchmarks.engine_peers import Pass, ready
from benchmarks.results import Figure, main
from dpvision.errors import ConfigError
from dpvision.models.device import find_device, fix_arithmetic

STAND_IN = "standin"
PEERS = ("hooks", "ew", "vmap")
# Units and views: on a card, as many images as a pass has by default.
SIZES = {"card": ((64, 16), (256, 4), (1024, 1)), "stand-in": ((64, 16),), "quick": ((4, 4),)}
NETWORKS = {"card": ("wrn-16-4", "wrn-16-4-ws", "tanh-cnn", "vit-s-16"), "stand-in": ("wrn-16-4-ws",)}
MAX_KERNELS, MAX_WAITS, MAX_BYTES, MAX_MEMORY = 2500, 4, 1.2, 2.5
PEER_CUT = 64  # images at a time: more rarely fit, as peers keep a gradient for each


@dataclass
class Row:
    """What one way to a clipped sum needs for a pass over all images."""

    network: str
    views: int
    units: int
    mode: str
    seconds: float
    memory: int
    counts: dict[str, Any]

    def total(self, what: str) -> int:
        return sum(self.counts.get(what, {}).values())

    @property
    def cells(self) -> list[str]:
        speed = f"{self.units * self.views / self.seconds:.4g}" if not self.counts else "-"
        counts = [str(self.total("kernels")), str(self.total("waits"))] if self.counts else ["-", "-"]
        return [self.network, str(self.views), str(self.units), self.mode, speed, f"{self.memory / 1e6:.0f}", *counts]


class OnDevice:
    """All rows of one device."""

    def __init__(self, name: str) -> None:
        self.stand_in: Any = None
        if name.startswith(STAND_IN):
            import tests.standin as stand_in

            self.stand_in = stand_in
        self._device = find_device(name)
        if self._device.type == "cpu":
            raise ConfigError("--device cpu: that is this benchmark without --device.")
        self.rows: list[Row] = []

    def measure(self, quick: bool) -> list[Figure]:
        """Measure every network, number of views and mode, one after the other in this process."""
        warnings.simplefilter("ignore")
        fix_arithmetic(self._device)
        kind = "stand-in" if self.stand_in else "card"
        figures = []
        for network in NETWORKS[kind][: 1 if quick else None]:
            for units, views in SIZES["quick" if quick else kind]:
                figures += self._case(network, units, views)
        return figures

    def _case(self, network: str, units: int, views: int) -> list[Figure]:
        plain, ours = (self._row(mode, network, units, views) for mode in ("plain", "ours"))
        few = self._row("ours", network, max(1, units // 8), views, places=units)
        peers = [row for mode in PEERS if (row := self._attempt(mode, network, units, views))]
        name = f"{network}, {units} units of {views}"
        figures = [Figure(f"{name}: peak memory / plain training", ours.memory / plain.memory, high=MAX_MEMORY)]
        if self.stand_in:
            images = load(network, units * views)[1]
            copied = ours.counts["bytes_to_device"] / images.nbytes
            grown = ours.total("kernels") - few.total("kernels")
            return [
                *figures,
                Figure(f"{name}: kernels", ours.total("kernels"), high=MAX_KERNELS),
                Figure(f"{name}: kernels more than for an eighth of the units", abs(grown), high=0.5),
                Figure(f"{name}: waits", ours.total("waits"), high=MAX_WAITS),
                Figure(f"{name}: bytes to the device / images", copied, high=MAX_BYTES),
            ]
        figures.append(Figure(f"{name}: speed / plain training", plain.seconds / ours.seconds))
        if peers:
            figures.append(Figure(f"{name}: speed / fastest peer", min(p.seconds for p in peers) / ours.seconds))
        return figures

    def _attempt(self, mode: str, network: str, units: int, views: int) -> Row | None:
        """Return the row of a peer, or None where it fails; the stand-in has none, as speed means nothing there."""
        try:
            return None if self.stand_in else self._row(mode, network, units, views)
        except Exception as error:
            print(f"left out: {mode} on {network}: {type(error).__name__}: {str(error).splitlines()[0]}")
            return None

    def _row(self, mode: str, network: str, units: int, views: int, *, places: int = 0) -> Row:
        model, images, targets = load(network, units * views)
        model = model.to(self._device)
        if mode != "ours":  # which moves its images itself
            images, targets = images.to(self._device), targets.to(self._device)
        cut = (places or units) * views if mode in ("ours", "plain") else PEER_CUT
        once = ready(mode, model, images, targets, views=views, cut=cut, layout="contiguous")
        self._run(once)
        gc.collect()
        base = self._in_use()
        self._reset()
        seconds = [self._run(once) for _ in range(1 if self.stand_in else 5)]
        counts = dict(self.stand_in.counts()) if self.stand_in else {}
        row = Row(network, views, units, mode, statistics.median(seconds), self._peak() - base, counts)
        self.rows.append(row)
        return row

    def _run(self, once: Pass) -> float:
        started = time.perf_counter()
        once()
        self._module("synchronize")(self._device)
        return time.perf_counter() - started

    def _module(self, name: str) -> Callable[..., Any]:
        return getattr(getattr(torch, self._device.type), name)

    def _in_use(self) -> int:
        return int(self._module("memory_allocated")(self._device))

    def _peak(self) -> int:
        return int(self._module("max_memory_allocated")(self._device))

    def _reset(self) -> None:
        if self.stand_in:
            self.stand_in.reset()
        else:
            self._module("reset_peak_memory_stats")(self._device)

    def markdown(self) -> str:
        """All rows in one table."""
        columns = ("network", "K", "units", "mode", "images/s", "peak memory growth MB", "kernels", "waits")
        lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        return "\n".join([*lines, *(f"| {' | '.join(row.cells)} |" for row in self.rows)])


def run(more: argparse.ArgumentParser) -> None:
    """Measure on the device that the command line names."""
    name = more.parse_known_args()[0].device
    on_device = OnDevice(name)
    main(
        "engine_device",
        on_device.measure,
        about="One clipped sum on an accelerator, compared with plain training on the same images, which lie on the "
        "device already; ours moves its own. One process, medians of wall time.",
        below=on_device.markdown,
        more=more,
    )


def options() -> argparse.ArgumentParser:
    """The options of this benchmark and of benchmarks.engine."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", default="cpu", help="an accelerator by name; standin: counts instead of speed")
    return parser


if __name__ == "__main__":
    run(options())
