"""How fast image files are read, against Pillow decoding the same files, and how that grows with their number."""

from __future__ import annotations

import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.results import Figure, main
from dpvision.data import check, load, parallel

SIDE = 64


def make_photos(folder: Path, count: int) -> list[Path]:
    """Write made-up photos, of many sizes around 380 x 500 pixels, with two classes and a split."""
    draw, paths = np.random.default_rng(0), []
    for number in range(count):
        height, width = int(draw.integers(300, 460)), int(draw.integers(400, 600))
        coarse = draw.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        pixels = (smooth + draw.integers(-8, 9, (height, width, 1))).clip(0, 255).astype(np.uint8)
        path = folder / ("test" if number % 5 == 0 else "train") / "ab"[number % 2] / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)
        paths.append(path)
    return paths


def pillow(paths: list[Path], *, resize: bool = False, digest: bool = False) -> None:
    """What no reader can do without: decode each file, and perhaps resize it and digest its pixels."""
    for path in paths:
        with Image.open(path) as image:
            image.load()
            if resize:
                image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            if digest:
                blake2b(image.tobytes(), digest_size=32).digest()


def rate(work: Callable[[], object], count: int, *, repeats: int, clock: Callable[[], float]) -> float:
    """Images per second, the best of some repeats: other processes only ever slow it down."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return count / min(times)


def measure(quick: bool) -> list[Figure]:
    count, repeats = (200, 3) if quick else (900, 5)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPVISION_HOME"] = f"{folder}/home"
        os.environ["DPVISION_CACHE_IMAGES"] = "no"
        root, part = Path(folder) / "photos", Path(folder) / "part"
        paths = make_photos(root, count)
        make_photos(part, count // 4)

        def cpu(work: Callable[[], object]) -> float:
            return rate(work, count, repeats=repeats, clock=time.process_time)

        def wall(work: Callable[[], object], number: int = count) -> float:
            return rate(work, number, repeats=repeats, clock=time.perf_counter)

        def read() -> object:
            return load(root, size=SIDE, channels=3)

        check(root)  # the first call imports
        decode = cpu(lambda: pillow(paths))
        resized = cpu(lambda: pillow(paths, resize=True))
        digested = cpu(lambda: pillow(paths, resize=True, digest=True))
        checked, loaded, undeclared = cpu(lambda: check(root)), cpu(read), cpu(lambda: load(root))
        threads = parallel.count_threads()
        parallel_rate = wall(read)
        single = parallel.count_threads
        try:
            parallel.count_threads = lambda: 1  # type: ignore[assignment]
            alone = wall(read)
        finally:
            parallel.count_threads = single  # type: ignore[assignment]
        fewer = rate(lambda: load(part, size=SIDE, channels=3), count // 4, repeats=repeats, clock=time.process_time)
        tracemalloc.start()
        data = read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        stored = sum(split.images.nbytes for split in data.splits.values())  # type: ignore[attr-defined]
        del os.environ["DPVISION_CACHE_IMAGES"]
        cached = 0.0
        if not quick:
            from dpvision.data import image_cache, limits

            limits.CACHE_FROM, image_cache._SETTLED_NS = 1, 0
            read()
            cached = cpu(read)
        figures = [
            Figure("Pillow decodes", decode, unit="images/s"),
            Figure("`check` / Pillow decodes", checked / decode, low=0.8),
            Figure("`load` / Pillow decodes and resizes", loaded / resized, low=0.5),
            Figure("`load` / Pillow decodes, resizes; and BLAKE2b of the pixels", loaded / digested, low=0.8),
            Figure("`load`, size and channels not declared / the same", undeclared / digested, low=0.7),
            Figure(f"`load` with {threads} threads / with one, by the clock", parallel_rate / alone),
            Figure("`load`, processor time per image / with a quarter of the images", fewer / loaded, high=1.25),
            Figure("memory above the images, of Python's objects", (peak - stored) / 2**20, high=40, unit="MiB"),
        ]
        if cached:
            figures.append(Figure("second `load`, from the cache / Pillow decodes", cached / decode, low=4))
        return figures


if __name__ == "__main__":
    main(
        "reading",
        measure,
        about="Reading made-up JPEG photos of many sizes, about 380 x 500 pixels, to 64 x 64. Rates are of processor "
        "time, so that other processes do not matter, and the best of some repeats. A digest of the original pixels "
        "names the account of a data set; it takes more than half as long as decoding.",
    )
