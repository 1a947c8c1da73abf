"""Hostile packed stores: a meta.json or an array that is not what pack would have written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from builders import good_arrays
from hostile_case import Case, pickle_payload, python_payload
from hostile_npz import npy_raw
from hostile_tables import special_files

from dpvision.data import pack

Change = Callable[[Path], object]
OBJECTS = b"{'descr': '|O', 'fortran_order': False, 'shape': (12,)}"


@cache
def good_store() -> dict[str, bytes]:
    """The files of a good store; packed once, because a pack waits for the disk."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/source.npz", **good_arrays(persons=True))
        return {file.name: file.read_bytes() for file in pack(f"{folder}/source.npz", f"{folder}/set").iterdir()}


def store(change: Change) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        root = folder / "set"
        root.mkdir()
        for name, data in good_store().items():
            (root / name).write_bytes(data)
        change(root)
        return root

    return build


def edited(edit: Callable[[dict], object]) -> Callable[[Path], Path]:
    def change(root: Path) -> None:
        meta = json.loads((root / "meta.json").read_text())
        edit(meta)
        (root / "meta.json").write_text(json.dumps(meta))

    return store(change)


def meta_text() -> Iterator[Case]:
    yield Case("store-good", store(lambda root: None), want="valid")
    texts = {
        "empty": b"",
        "null": b"null",
        "list": b"[]",
        "number": b"7",
        "object": b"{}",
        "deep": b"[" * 100_000,
        "deep-object": b'{"a":' * 50_000,
        "nan": b"NaN",
        "huge": b" " * (5 * 2**20),
        "many-objects": b"[" + b"{}," * 1_300_000 + b"{}]",
        "long-number": b"9" * 10**6,
        "bytes": b"\xff\xfe\xfd",
        "utf-16": '{"format": "dpvision store"}'.encode("utf-16"),
        "nul": bytes(100),
        "surrogate": b'"\\ud800"',
        "twice": b'{"format": "x", "format": "dpvision store"}',
        "half": b'{"format": "dpvision store", "version": 1',
        "exponent": b'{"format": "dpvision store", "version": 1e999}',
        "comment": b"// hi\n{}",
        "single": b"{'format': 1}",
    }
    for name, text in texts.items():
        yield Case(
            f"meta-{name}",
            store(lambda root, text=text: (root / "meta.json").write_bytes(text)),
            blames="set/meta.json",
        )
    for name, payload in (("pickle", pickle_payload), ("python", python_payload)):
        yield Case(
            f"meta-{name}", store(lambda root, p=payload: (root / "meta.json").write_bytes(p(root.parent))), blames=""
        )


def meta_fields() -> Iterator[Case]:
    for key in ("format", "version", "classes", "inferred", "splits"):
        yield Case(f"meta-no-{key}", edited(lambda meta, key=key: meta.pop(key)), blames="set/meta.json")
        for number, value in enumerate(
            (None, 0, -1, 2, "x", [], {}, [[]], [0], True, 1.5, ["a"], ["a", "a"], ["", "b"])
        ):
            if (key, value) in (("inferred", []), ("version", True)):
                continue
            change = edited(lambda meta, key=key, value=value: meta.update({key: value}))
            yield Case(f"meta-{key}-{number}", change, blames="set/meta.json")
    for number, value in enumerate((None, 0, 1, "yes", [], {})):
        change = edited(lambda meta, value=value: meta.update(skipped_broken=value))
        yield Case(f"meta-skipped-broken-{number}", change, blames="set/meta.json")
    yield Case("meta-classes-escape", edited(lambda m: m.update(classes=["a", "b", "\x1b[2J"])), blames="set/meta.json")
    yield Case("meta-classes-few", edited(lambda m: m.update(classes=["a", "b"])), blames="set/train_labels.npy")
    yield Case("meta-no-train", edited(lambda m: m["splits"].pop("train")), blames="set/meta.json")
    yield Case(
        "meta-path-split", edited(lambda m: m["splits"].update({"../x": m["splits"]["train"]})), blames="set/meta.json"
    )
    shapes = (
        [12, 6, 6, 2],
        [12, 6, 6],
        [12, 6, 6, 1, 1],
        [0, 6, 6, 1],
        [-12, 6, 6, -1],
        [12.0, 6, 6, 1],
        [True, 6, 6, 1],
        [10**30, 6, 6, 1],
        [12, 10**9, 10**9, 1],
        "12",
        None,
        [[12], 6, 6, 1],
    )
    for number, shape in enumerate(shapes):
        change = edited(lambda meta, shape=shape: meta["splits"]["train"].update(images=shape))
        yield Case(f"meta-shape-{number}", change, blames="" if number == 7 else "set/meta.json")
    for shape in ([13, 6, 6, 1], [11, 6, 6, 1], [432, 1, 1, 1]):
        change = edited(lambda meta, shape=shape: meta["splits"]["train"].update(images=shape))
        yield Case(f"meta-other-shape-{shape[0]}", change, blames="")
    for value in ("float32", "uint16", "object", "|O", 1, None, [], {}):
        change = edited(lambda meta, value=value: meta["splits"]["train"].update(dtype=value))
        yield Case(f"meta-dtype-{value}", change, blames="")
    for value in (1, None, "yes"):
        change = edited(lambda meta, value=value: meta["splits"]["train"].update(persons=value))
        yield Case(f"meta-persons-{value}", change, blames="set/meta.json")


def arrays() -> Iterator[Case]:
    for name in ("train_images", "train_labels", "train_persons", "test_images", "val_labels"):
        file, blames = f"{name}.npy", f"set/{name}.npy"
        yield Case(f"store-no-{name}", store(lambda root, f=file: (root / f).unlink()), blames=blames)
        for cut in (0, 5, 9, 60, 127, 128, -1):
            change = store(lambda root, f=file, cut=cut: (root / f).write_bytes((root / f).read_bytes()[:cut]))
            yield Case(f"store-cut-{name}-{cut}", change, blames=blames)
        longer = store(lambda root, f=file: (root / f).write_bytes((root / f).read_bytes() + b"\0"))
        yield Case(f"store-longer-{name}", longer, blames=blames)
        sparse = store(lambda root, f=file: os.truncate(root / f, 2**40))
        yield Case(f"store-sparse-{name}", sparse, blames=blames)
        pickled = store(lambda root, f=file: (root / f).write_bytes(npy_raw(OBJECTS, pickle_payload(root.parent))))
        yield Case(f"store-pickle-{name}", pickled, blames=blames)
    for name, make in special_files().items():

        def change(root: Path, make: Change = make) -> None:
            (root / "train_images.npy").unlink()
            make(root / "train_images.npy")

        yield Case(f"store-{name}", store(change), blames="set/train_images.npy")
    whole = {
        "labels-negative": ("train_labels", np.full(12, -1)),
        "labels-large": ("train_labels", np.full(12, 3)),
        "labels-huge": ("test_labels", np.full(6, 2**62)),
        "labels-short": ("train_labels", np.zeros(11, np.int64)),
        "labels-int32": ("train_labels", np.zeros(12, np.int32)),
        "labels-float": ("train_labels", np.zeros(12)),
        "persons-int32": ("train_persons", np.zeros(12, np.int32)),
        "images-fortran": ("train_images", np.zeros((12, 6, 6, 1), np.uint8, "F")),
        "images-float": ("train_images", np.zeros((12, 6, 6, 1), np.float32)),
        "images-flat": ("train_images", np.zeros((12, 36), np.uint8)),
        "images-swapped": ("train_images", np.zeros((6, 12, 6, 1), np.uint8)),
    }
    for name, (key, array) in whole.items():
        change = store(lambda root, key=key, array=array: np.save(root / f"{key}.npy", array, allow_pickle=False))
        yield Case(f"store-{name}", change, blames=f"set/{key}.npy")
    for value in (np.nan, np.inf, -1.0, 2.0):

        def poison(root: Path, value: float = value) -> None:
            meta = json.loads((root / "meta.json").read_text())
            for split, entry in meta["splits"].items():
                images = np.full(entry["images"], 0.5, np.float32)
                images[-1, -1, -1, -1] = value if split == "train" else 0.5
                np.save(root / f"{split}_images.npy", images, allow_pickle=False)
                entry["dtype"] = "float32"
            (root / "meta.json").write_text(json.dumps(meta))

        yield Case(f"store-value-{value}", store(poison), blames="set/train_images.npy")


def cases() -> Iterator[Case]:
    for group in (meta_text, meta_fields, arrays):
        yield from group()
