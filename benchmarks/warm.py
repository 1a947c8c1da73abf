"""The speed of a warm-up compared with a plain torch loop over the same network: steps of 100 images, taking turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.results import Figure, main
from dpvision.models import build
from dpvision.models.device import keep_freed_memory
from dpvision.public.batches import Source
from dpvision.public.warmup import WarmUp, WarmUpSettings

BATCH, CLASSES = 100, 10
COMMON = ("crop", "flip", "cutout")
NETWORKS = {"small-cnn": (28, 28, 1), "wrn-10-1": (28, 28, 1), "wrn-16-4": (32, 32, 3)}
WARM = {
    "sgd, images as they are": WarmUpSettings(optimiser="sgd", augment=()),
    "sgd, crop, flip, cutout": WarmUpSettings(optimiser="sgd", augment=COMMON),
    "sgd, autoaugment": WarmUpSettings(optimiser="sgd", augment=("autoaugment",)),
    "sam, crop, flip, cutout": WarmUpSettings(optimiser="sam", augment=COMMON),
}
# Steps in turn; a step of wrn-16-4 takes seconds.
TURNS = {"small-cnn": 60, "wrn-10-1": 12, "wrn-16-4": 3}


def plain(network: str, source: Source, layout: torch.memory_format) -> Callable[[], None]:
    """What anybody would write: all pixels as floats, no augmentation, torch's own optimiser."""
    height, width, channels = source.images.shape[1:]
    model = build(network, (channels, height, width), classes=CLASSES, seed=0).to(memory_format=layout)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    images = (torch.from_numpy(source.images).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    images, labels = images.clone(memory_format=layout), torch.from_numpy(source.labels)
    step = [0]

    def go() -> None:
        rows = torch.arange(BATCH) + step[0] * BATCH % len(labels)
        step[0] += 1
        optimiser.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()

    return go


def measure(quick: bool) -> list[Figure]:
    torch.set_num_threads(1)
    keep_freed_memory()
    figures = []
    for network, shape in NETWORKS.items():
        if quick and network == "wrn-16-4":
            continue
        pixels = np.random.default_rng(0).integers(0, 256, (2000, *shape), dtype=np.uint8)
        source = Source("random", pixels, np.arange(2000) % CLASSES, "random")
        loops: dict[str, Callable[[], object]] = {
            f"plain {n}": plain(network, source, layout)
            for n, layout in (("contiguous", torch.contiguous_format), ("channels last", torch.channels_last))
        }
        for name, settings in WARM.items():
            asked = {**settings.__dict__, "model": network, "batch": BATCH}
            loops[name] = WarmUp(WarmUpSettings(**asked), [source], classes=[str(c) for c in range(CLASSES)]).train_step
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(1 + TURNS[network]):
            for name, go in loops.items():
                began = time.process_time()
                go()
                if turn:  # the first sets things up
                    seconds[name].append(time.process_time() - began)
        typical = {name: statistics.median(measured) for name, measured in seconds.items()}
        best = min(typical[name] for name in typical if name.startswith("plain"))
        figures.append(Figure(f"{network}: plain loop in its best layout", BATCH / best, unit="images/s"))
        low = {"sgd, images as they are": 0.9}
        figures += [Figure(f"{network}: {n} / plain", best / typical[n], low=low.get(n)) for n in WARM]
    return figures


if __name__ == "__main__":
    main(
        "warm",
        measure,
        about="Speed of a step of warm-up relative to a plain loop of torch without augmentation, batches of 100, one "
        "thread, processor time, medians of steps that take turns. SAM takes two slopes for each step.",
    )
