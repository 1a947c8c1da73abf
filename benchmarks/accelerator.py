"""Everything about a card that we would like to know, as one JSON: `python -m benchmarks.accelerator --device cuda`.

    card        its name, memory, libraries, and what names its computation in the noise of a run
    trials      what is tried before a charge, for each network and precision: passed, or the refusal, and seconds
    speed       images per second of clipped sums, each image with all its views

It uses random images, charges nothing and contains nothing about any data set. `--quick` takes one small network.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.results import machine
from dpvision.core.certify import require_exact_sums
from dpvision.errors import DPVisionError
from dpvision.models.device import find_device, name_computation, total_memory
from dpvision.private.training.prepare import Prepared, images_per_second, prepare
from dpvision.settings.training import PRECISIONS, Config

FORMAT = "dpvision-accelerator-1"
NETWORKS, VIEWS = ("wrn-16-4", "wrn-40-4", "vit-tiny", "resnet-9", "small-cnn"), (1, 4, 16)
QUICK = (("small-cnn",), (4,))
SIDE, CLASSES, SECONDS = 32, 10, 3.0


def measure(name: str, *, quick: bool) -> dict[str, Any]:
    """Return all results of a device, as plain JSON values."""
    device = find_device(name)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # as every run sets it
    networks, views = QUICK if quick else (NETWORKS, VIEWS)
    with tempfile.TemporaryDirectory() as place:
        os.environ["DPVISION_HOME"] = str(Path(place) / "home")
        data = Path(place) / "random.npz"
        images = np.random.default_rng(0).integers(0, 256, (128, SIDE, SIDE, 3), dtype=np.uint8)
        np.savez(data, train_images=images, train_labels=np.arange(128) % CLASSES)
        cases = list(_cases(str(data), name, device, networks, views))
    return {
        "format": FORMAT,
        "card": _card(device),
        "exact float64": _outcome(lambda: require_exact_sums(device)),
        "trials": [case for case in cases if "passed" in case],
        "speed": [case for case in cases if "images_per_second" in case],
    }


def _card(device: torch.device) -> dict[str, Any]:
    return {
        "device": device.type,
        "computation": {precision: name_computation(device, precision) for precision in PRECISIONS},
        "memory_bytes": total_memory(device) if device.type != "cpu" else None,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "host": machine(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cases(
    data: str, name: str, device: torch.device, networks: tuple[str, ...], views: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    """Try and time every network, number of views and precision; a refusal is a result."""
    for network in networks:
        for count in views:
            for precision in PRECISIONS:
                if precision == "tf32" and device.type == "cpu":
                    continue
                case = {"network": network, "views": count, "precision": precision}
                config = Config(epsilon=3.0, budget=1e4, n=50_000, batch=4096, steps=1, model=network, device=name)
                config = replace(config, precision=precision, k_base=count, augment=("crop", "flip"))
                prepared = prepare(data, config)
                trial = _outcome(prepared.require_certificate)
                yield {**case, "passes": prepared.network.passes, **trial}
                if trial["passed"]:
                    yield {**case, **_speed(prepared, device)}


def _outcome(attempt: Any) -> dict[str, Any]:
    """Run a trial: whether it passed, the reason if it did not, and its seconds."""
    began = time.perf_counter()
    try:
        attempt()
    except DPVisionError as error:
        return {"passed": False, "reason": str(error), "seconds": round(time.perf_counter() - began, 2)}
    return {"passed": True, "seconds": round(time.perf_counter() - began, 2)}


def _speed(prepared: Prepared, device: torch.device) -> dict[str, Any]:
    module = getattr(torch, device.type)
    if device.type != "cpu":
        module.reset_peak_memory_stats(device)
    rate = images_per_second(prepared, seconds=SECONDS)
    peak = int(module.max_memory_allocated(device)) if device.type != "cpu" else None
    return {"images_per_second": round(rate, 2), "peak_bytes": peak}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="the device, by name")
    parser.add_argument("--quick", action="store_true", help="one small network")
    given = parser.parse_args()
    print(json.dumps(measure(given.device, quick=given.quick), indent=1))
