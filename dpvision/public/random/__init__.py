"""Random images from mathematical processes: no photograph is involved, so learning from them costs no privacy.

An image is a pure function of (process, seed, index, side): it is the same alone, in a batch of any size, in any order
and on any number of cores. There is one file per family of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError, did_you_mean
from dpvision.public.random import dead_leaves, fractals, image_statistics, programs, stylegan
from dpvision.public.random.image_random import ImageRandom

__all__ = ["PROCESSES", "draw", "stream"]

MAX_WORKERS = 256
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
    """Draw the images with these indices: (N, side, side, 3)."""
    _require(process, side)
    images = [PROCESSES[process](ImageRandom(process, seed, index), side) for index in indices]
    pixels = np.reshape(images, (len(images), side, side, 3))
    return np.rint(np.clip(pixels, 0.0, 1.0) * 255.0).astype(np.uint8)


def stream(
    process: str, batches: Iterable[Sequence[int]], *, side: int, seed: int = 0, workers: int = 1
) -> Iterator[Bytes]:
    """Yield batches of images in their order, drawn by worker processes a few batches ahead."""
    _require(process, side)
    if workers > MAX_WORKERS:
        raise ConfigError(f"workers is {workers}: at most {MAX_WORKERS}. Fix: --workers, one per core.")
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


def _require(process: str, side: int) -> None:
    if process not in PROCESSES:
        raise ConfigError(f"there is no random process named {process!r}. {did_you_mean(process, PROCESSES)}")
    if not 8 <= side <= 1024:
        raise ConfigError(f"side is {side}: random images have from 8 to 1024 pixels per side.")
