"""Random images as PNG files, with a contact sheet of the first ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpvision.core import files
from dpvision.errors import ConfigError
from dpvision.public.random import Bytes, stream
from dpvision.public.sheets import encode_png, tile

BATCH = 64
MAX_COUNT = 10_000_000
SHEET, GAP = (8, 12), 2  # maximum rows and columns, and pixels between images


def write_gallery(
    process: str,
    out: Path,
    *,
    count: int,
    side: int,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Write OUT/images/000000.png and so on, OUT/contact_sheet.png, and OUT/about.json with the settings."""
    if count < 1:
        raise ConfigError(f"count is {count}: it must be at least 1.")
    if count > MAX_COUNT:
        raise ConfigError(f"count is {count:,}: it must be at most {MAX_COUNT:,}.")
    if not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed is {seed}: it must be at least 0 and below 2^63.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: is not empty. Fix: another --out.")
    batches = [range(i, min(count, i + BATCH)) for i in range(0, count, BATCH)]
    first: list[Bytes] = []
    for batch, images in zip(batches, stream(process, batches, side=side, seed=seed, workers=workers), strict=True):
        (out / "images").mkdir(parents=True, exist_ok=True)
        for index, image in zip(batch, images, strict=True):
            files.write(out / "images" / f"{index:06d}.png", encode_png(image), mode=0o644)
        if batch.start < SHEET[0] * SHEET[1]:
            first.append(images)
        progress(batch.stop, count)
    files.write(out / "contact_sheet.png", encode_png(contact_sheet(np.concatenate(first))), mode=0o644)
    about = {"process": process, "seed": seed, "count": count, "side": side}
    files.write(out / "about.json", json.dumps(about, indent=1) + "\n", mode=0o644)


def contact_sheet(images: Bytes) -> Bytes:
    """A grid of the first images on a white background."""
    columns = min(SHEET[1], len(images))
    return tile(images[: SHEET[0] * columns], columns=columns, gap=GAP)[:-GAP, :-GAP]
