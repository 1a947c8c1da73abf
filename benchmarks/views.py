"""How long views take on one core: crops and flips for a batch of CIFAR's size, AutoAugment, mixtures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.results import Figure, chosen_device, device_options, main
from dpvision.models.device import find_device
from dpvision.views import UnitRandom, Views

SHAPE = (3, 32, 32)
CLASSES = 10


def _seconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Measure the median of processor time, or of wall time until an accelerator is done."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    work()  # the first call sets things up
    measured = []
    for _ in range(repeats):
        start = clock()
        work()
        if device.type != "cpu":
            getattr(torch, device.type).synchronize(device)
        measured.append(clock() - start)
    return statistics.median(measured)


def measure(quick: bool) -> list[Figure]:
    torch.set_num_threads(1)
    device = find_device(chosen_device())
    limits = (0.5, 2.0) if device.type == "cpu" else (None, None)
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (4096, *SHAPE), dtype=np.uint8))
    images, labels = (pixels.float() / 255 - 0.5) / 0.5, torch.arange(4096) % CLASSES
    pixels, images, labels = (t.to(device) for t in (pixels, images, labels))
    public = (pixels[:1000], labels[:1000])

    def seconds(views: Views, count: int) -> float:
        rng = UnitRandom(1, np.arange(count))
        return _seconds(lambda: views(images[:count], labels[:count], rng), 3 if quick else 9, device)

    shift = Views(("crop", "flip"), base=16, classes=CLASSES)
    auto = Views(("autoaugment",), base=1, classes=CLASSES)
    colours = Views(("jitter", "grayscale"), base=1, classes=CLASSES)
    resized = Views(("resized-crop", "flip"), base=1, classes=CLASSES)
    mixed = Views(("crop", "flip"), base=16, diff=2, self_mix=18, classes=CLASSES, public=public)
    return [
        Figure("crop and flip, 1024 images x 16 views", seconds(shift, 1024), high=limits[0], unit="s"),
        Figure("AutoAugment, 4096 images", seconds(auto, 4096), high=limits[1], unit="s"),
        Figure("colour jitter and greyness, 4096 images", seconds(colours, 4096), unit="s"),
        Figure("resized crop and flip, 4096 images", seconds(resized, 4096), unit="s"),
        Figure("DP-Mix_Diff, 1024 images x (16 + 2 + 18) views", seconds(mixed, 1024), unit="s"),
    ]


if __name__ == "__main__":
    main(
        "views",
        measure,
        about="CPU seconds for views of 32x32 colour images, one thread, medians.",
        more=device_options(),
    )
