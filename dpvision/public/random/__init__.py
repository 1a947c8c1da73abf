"""Random images from mathematical processes. No photograph is involved, so learning from them costs no privacy.

An image is a pure function of (process, seed, index, side): it does not depend on the batch it is drawn in, on the
order of drawing or on the number of cores. There is one file per family of processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.errors import ConfigError, did_you_mean
from dpvision.public.random import dead_leaves, fractals, image_statistics, programs, stylegan
from dpvision.public.random.image_random import ImageRandom
from dpvision.public.sheets import encode_png, tile

__all__ = ["PROCESSES", "draw", "stream", "write_gallery"]

MAX_WORKERS = 256
MAX_COUNT, GALLERY_BATCH = 10_000_000, 64  # images in a gallery, and images drawn at once
SHEET, GAP = (8, 12), 2  # maximum rows and columns of a contact sheet, and pixels between its images
Bytes = NDArray[np.uint8]
Process = Callable[[ImageRandom, int], NDArray[np.floating]]  # (random numbers, side) -> (side, side, 3) in [0, 1]

PROCESSES: dict[str, Process] = {
    "dead-leaves-squares": dead_leaves.draw_squares,
    "dead-leaves-oriented": dead_leaves.draw_oriented_squares,
    "dead-leaves-mixed": dead_leaves.draw_mixed,
    "dead-leaves-textured": dead_leaves.draw_textured,
    "dead-leaves-features": dead_leaves.draw_features,
    "spectrum": image_statistics.draw_spectrum,
    "wmm": image_statistics.draw_wavelet_marginals,
    "colour": image_statistics.draw_colours,
    "spectrum-colour-wmm": image_statistics.draw_combined,
    "stylegan-random": stylegan.draw_random,
    "stylegan-high-freq": stylegan.draw_high_freq,
    "stylegan-sparse": stylegan.draw_sparse,
    "stylegan-oriented": stylegan.draw_oriented,
    "programs": programs.draw_program,
    "fractals": fractals.draw_fractals,
}


def draw(process: str, indices: Iterable[int], *, side: int, seed: int = 0) -> Bytes:
    """Draw the images with these indices, as (N, side, side, 3)."""
    _require(process, side)
    images = [PROCESSES[process](ImageRandom(process, seed, index), side) for index in indices]
    pixels = np.reshape(images, (len(images), side, side, 3))
    return np.rint(np.clip(pixels, 0.0, 1.0) * 255.0).astype(np.uint8)


def stream(
    process: str, batches: Iterable[Sequence[int]], *, side: int, seed: int = 0, workers: int = 1
) -> Iterator[Bytes]:
    """Yield batches of images in order, drawn by worker processes a few batches ahead."""
    _require(process, side)
    if workers > MAX_WORKERS:
        raise ConfigError(f"workers is {workers}: it must be at most {MAX_WORKERS}. Fix: use one worker per core.")
    if workers < 2:
        yield from (draw(process, batch, side=side, seed=seed) for batch in batches)
        return
    ahead, pending = 2 * workers, []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for batch in batches:
            pending.append(pool.submit(draw, process, batch, side=side, seed=seed))
            if len(pending) > ahead:
                yield pending.pop(0).result()
        yield from (future.result() for future in pending)


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
    if not 1 <= count <= MAX_COUNT:
        raise ConfigError(f"count is {count:,}: it must be from 1 to {MAX_COUNT:,}.")
    if not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed is {seed}: it must be at least 0 and below 2^63.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: is not empty. Fix: use another --out.")
    batches = [range(i, min(count, i + GALLERY_BATCH)) for i in range(0, count, GALLERY_BATCH)]
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
    """Arrange the first images in a grid on a white background."""
    columns = min(SHEET[1], len(images))
    return tile(images[: SHEET[0] * columns], columns=columns, gap=GAP)[:-GAP, :-GAP]


def _require(process: str, side: int) -> None:
    if process not in PROCESSES:
        raise ConfigError(f"there is no random process named {process!r}. {did_you_mean(process, PROCESSES)}")
    if not 8 <= side <= 1024:
        raise ConfigError(f"side is {side}: random images have 8 to 1024 pixels per side.")
