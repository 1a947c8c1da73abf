"""Hostile .npz files whose containers are perfect and whose arrays are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from builders import good_arrays, save_npz
from hostile_case import Case


def write(*dropped: str, **changed: np.ndarray) -> Callable[[Path], Path]:
    arrays = {**good_arrays(), **changed}
    kept = {key: array for key, array in arrays.items() if key not in dropped}
    return lambda folder: save_npz(folder / "data.npz", kept)


def types_and_shapes() -> Iterator[Case]:
    for dtype in ("i1", "i2", "u2", "i4", "u4", "i8", "u8", "?", "c8", "c16", "U3", "S3", "M8[s]", "m8[s]", "g"):
        images = np.ones((12, 6, 6), np.int64).astype(dtype)
        yield Case(f"array-images-{dtype}", write(train_images=images))
    for dtype in ("f2", "f4", "f8", "?", "c8", "U3", "S3", "M8[s]"):
        yield Case(f"array-labels-{dtype}", write(train_labels=(np.arange(12) % 3).astype(dtype)))
    for dtype in ("f4", "?", "c8", "M8[s]"):
        yield Case(f"array-persons-{dtype}", write(train_persons=np.arange(12).astype(dtype)))
    structured = np.zeros(12, dtype=[("a", "u1")])
    yield Case("array-images-structured", write(train_images=structured))
    for shape in ((), (432,), (12, 36), (12, 3, 6, 6), (12, 6, 6, 2), (12, 6, 6, 4), (12, 6, 6, 1, 1), (0, 6, 6),
                  (12, 0, 6), (12, 6, 0), (12, 6, 6, 0), (11, 6, 6), (13, 6, 6), (1, 6, 6)):  # fmt: skip
        name = "x".join(map(str, shape)) or "scalar"
        yield Case(f"array-images-shape-{name}", write(train_images=np.zeros(shape, np.uint8)))
    for shape in ((), (0,), (11,), (13,), (1, 12), (12, 2), (12, 1, 1), (6, 2)):
        name = "x".join(map(str, shape)) or "scalar"
        yield Case(f"array-labels-shape-{name}", write(train_labels=np.zeros(shape, np.int64)))
        yield Case(f"array-persons-shape-{name}", write(train_persons=np.zeros(shape, np.int64)))
    for split in ("val", "test"):
        for shape in ((3, 7, 6), (3, 6, 6, 3), (4, 6, 6), (0, 6, 6)):
            name = "x".join(map(str, shape))
            images, labels = np.zeros(shape, np.uint8), np.zeros(3 if split == "val" else shape[0], np.int64)
            changed = {f"{split}_images": images, f"{split}_labels": labels}
            if not (split == "test" and shape[0] == 4):
                yield Case(f"array-{split}-shape-{name}", write(**changed))
        floats = {f"{split}_images": np.zeros((3, 6, 6), np.float32), f"{split}_labels": np.zeros(3, np.int64)}
        yield Case(f"array-{split}-float", write(**floats))
        yield Case(f"array-no-{split}-labels", write(f"{split}_labels"))
    yield Case("array-no-train-images", write("train_images"))
    yield Case("array-no-train-labels", write("train_labels"))
    yield Case("array-persons-mixed", write(train_persons=np.arange(12), test_persons=np.array(list("abcdef"))))


def values() -> Iterator[Case]:
    for dtype in ("<f2", "<f4", ">f4", "<f8"):
        for value in (np.nan, np.inf, -np.inf, -0.01, 1.01, 255.0):
            for place in (0, 431):
                images = np.full((12, 6, 6), 0.5, dtype)
                images.reshape(-1)[place] = value
                rest = ("val_images", "val_labels", "test_images", "test_labels")
                yield Case(f"array-value-{dtype}-{value}-{place}", write(*rest, train_images=images))
    for value in (-1, -(2**63), 100_000, 2**31, 2**63 - 1):
        labels = np.arange(12) % 3
        labels[7] = value
        yield Case(f"array-label-{value}", write(train_labels=labels))
        yield Case(f"array-label-declared-{value}", write(train_labels=labels), options={"classes": 3})
    yield Case("array-label-uint64", write(train_labels=np.full(12, 2**64 - 1, np.uint64)))
    yield Case("array-label-one-class", write(train_labels=np.zeros(12, np.int64)))
    for split, count in (("val", 3), ("test", 6)):
        for value in (-1, 3, 2**62):
            yield Case(f"array-{split}-label-{value}", write(**{f"{split}_labels": np.full(count, value)}))
    yield Case("array-declared-2", write(), options={"classes": 2})
    yield Case("array-declared-names", write(), options={"classes": ["a", "b"]})
    yield Case("array-declared-size", write(), options={"size": 7})


def cases() -> Iterator[Case]:
    yield from types_and_shapes()
    yield from values()
