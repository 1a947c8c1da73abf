"""Images that no camera took. One family of random processes per file; what is learned from them costs no privacy.

An image is a pure function of (process, seed, index, side): the same one alone, in a batch of any size, in any order,
and on any number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from dpvision.errors import ConfigError, did_you_mean
from dpvision.public.random import dead_leaves, stylegan
from dpvision.public.random.fractals import fractals
from dpvision.public.random.image_random import ImageRandom
from dpvision.public.random.image_statistics import all_statistics, colours, falling_spectra, wavelet_marginals
from dpvision.public.random.programs import programs
from dpvision.public.random.windows import feature_leaves, textured_leaves

__all__ = ["PROCESSES", "draw", "stream"]

MOST_WORKERS = 256
Bytes = NDArray[np.uint8]
# Coins of N images and a side -> (N, side, side, 3) in [0, 1].
Process = Callable[[Sequence[ImageRandom], int], NDArray[np.floating]]

PROCESSES: dict[str, Process] = {
    "dead-leaves-squares": dead_leaves.squares,
    "dead-leaves-oriented": dead_leaves.oriented,
    "dead-leaves-mixed": dead_leaves.mixed,
    "dead-leaves-textured": textured_leaves,
    "dead-leaves-features": feature_leaves,
    "spectrum": falling_spectra,
    "wmm": wavelet_marginals,
    "colour": colours,
    "spectrum-colour-wmm": all_statistics,
    "stylegan-random": stylegan.random,
    "stylegan-high-freq": stylegan.high_freq,
    "stylegan-sparse": stylegan.sparse,
    "stylegan-oriented": stylegan.oriented,
    "programs": programs,
    "fractals": fractals,
}


def draw(process: str, indices: Iterable[int], *, side: int, seed: int = 0) -> Bytes:
    """The images with these numbers: (N, side, side, 3)."""
    _require(process, side)
    draws = [ImageRandom(process, seed, index) for index in indices]
    images = PROCESSES[process](draws, side) if draws else np.empty((0, side, side, 3))
    return np.rint(np.clip(images, 0.0, 1.0) * 255.0).astype(np.uint8)


def stream(
    process: str, batches: Iterable[Sequence[int]], *, side: int, seed: int = 0, workers: int = 1
) -> Iterator[Bytes]:
    """Batches of images in their order, made by so many processes, a few batches ahead."""
    _require(process, side)
    if workers > MOST_WORKERS:
        raise ConfigError(
            f"{workers} processes cannot draw: {MOST_WORKERS} at most. Fix: --workers, one for each core."
        )
    if workers < 2:
        yield from (draw(process, batch, side=side, seed=seed) for batch in batches)
        return
    ahead, waiting = 2 * workers, []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for batch in batches:
            waiting.append(pool.submit(draw, process, batch, side=side, seed=seed))
            if len(waiting) > ahead:
                yield waiting.pop(0).result()
        yield from (each.result() for each in waiting)


def _require(process: str, side: int) -> None:
    if process not in PROCESSES:
        raise ConfigError(f"there is no random process named {process!r}. {did_you_mean(process, PROCESSES)}")
    if not 8 <= side <= 1024:
        raise ConfigError(f"images of {side} pixels a side cannot be drawn: from 8 to 1024.")
