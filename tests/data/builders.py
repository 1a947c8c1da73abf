"""Writes small good data sets in every form that dpvision reads."""

from __future__ import annotations

import csv
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

Arrays = dict[str, np.ndarray]


def good_arrays(seed: int = 0, *, channels: int = 1, persons: bool = False, classes: int = 3, side: int = 6) -> Arrays:
    """A few random images per split, every class in every split."""
    draw = np.random.default_rng(seed)
    arrays: Arrays = {}
    for split, count in (("train", 4 * classes), ("val", classes), ("test", 2 * classes)):
        shape = (count, side, side) if channels == 1 else (count, side, side, channels)
        arrays[f"{split}_images"] = draw.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % classes).astype(np.int64)
        if persons:
            arrays[f"{split}_persons"] = draw.integers(0, 4, count) * 7 + 100
    return arrays


def save_npz(path: Path, arrays: Arrays, *, compressed: bool = False) -> Path:
    if compressed:
        np.savez_compressed(path, **arrays)
    else:
        np.savez(path, **arrays)
    return path


def save_folder(path: Path, arrays: Arrays) -> Path:
    for split in ("train", "val", "test"):
        for number, (image, label) in enumerate(
            zip(arrays.get(f"{split}_images", ()), arrays.get(f"{split}_labels", ()), strict=True)
        ):
            place = path / split / str(int(label))
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{number:05d}.png")
    return path


def save_csv(path: Path, arrays: Arrays) -> Path:
    """path/data.csv and path/images/*.png."""
    (path / "images").mkdir(parents=True)
    with_persons = "train_persons" in arrays
    with (path / "data.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split", *(["person"] if with_persons else [])])
        for split in ("test", "train", "val"):
            for number, image in enumerate(arrays.get(f"{split}_images", ())):
                name = f"images/{split}{number}.png"
                Image.fromarray(image).save(path / name)
                person = [f"p{arrays[f'{split}_persons'][number]}"] if with_persons else []
                writer.writerow([name, int(arrays[f"{split}_labels"][number]), split, *person])
    return path / "data.csv"


def png_chunk(kind: bytes, data: bytes = b"", *, crc: int | None = None, length: int | None = None) -> bytes:
    crc = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data) if length is None else length) + kind + data + struct.pack(">I", crc)


def png_header(width: int, height: int, *, depth: int = 8, colour: int = 0, interlace: int = 0) -> bytes:
    return png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


def png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + png_chunk(b"IEND")
