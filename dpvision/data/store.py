"""The packed store: a folder with meta.json and plain .npy arrays, read by memory-mapping them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dpvision.data import limits, records
from dpvision.data.classes import Classes, check_names, declared_names, match_stored
from dpvision.data.dataset import SPLITS, Dataset, Split
from dpvision.data.identity import DIGEST
from dpvision.data.npy_header import ArrayHeader, parse_header
from dpvision.data.refusal import Refusal, named, shown
from dpvision.data.regular_file import file_length, open_inside
from dpvision.data.room import MemoryRoom

META = "meta.json"
_FORMAT, _VERSION = "dpvision store", 1
_INFERABLE = ("classes", "image size", "channels")
_BLOCK = 4 * limits.MIB


def read_store(path: Path, *, classes: Classes, size: records.Size, channels: int | None) -> Dataset:
    """The store with its images left on disk. Every header is compared with meta.json and with the file's length."""
    root = str(path.resolve())
    with named(path / META), open_inside(root, META) as file:
        names, stored_inferred, skipped_broken, described = _parse_meta(file)
    with named(path):
        declared, sides = declared_names(classes), records.declared_size(size)
        agreed = match_stored(names, declared, numbered=isinstance(classes, int))
        inferred_size = records.settle_size(described["train"][0], sides)
        inferred_channels = records.settle_channels(described["train"][0], channels)
    splits = {split: _read_split(path, root, split=split, described=described[split]) for split in described}
    with named(path):
        MemoryRoom().require(16 * sum(len(split) for split in splits.values()))
        ids = {split: part.persons for split, part in splits.items() if part.persons is not None}
        persons = records.index_persons(ids)
    for split, part in splits.items():
        with named(path / f"{split}_labels.npy"):
            if part.labels.min() < 0 or part.labels.max() >= len(names):
                raise Refusal(f"has labels that are none of the {len(names)} classes.")
    final = {split: replace(part, persons=persons.get(split)) for split, part in splits.items()}
    settled = {"classes": agreed, "image size": not inferred_size, "channels": not inferred_channels}
    inferred = tuple(fact for fact in _INFERABLE if fact in stored_inferred and not settled[fact])
    parts = final["train"], final.get("val"), final.get("test")
    return Dataset(shown(path.resolve().name), names, *parts, inferred, skipped_broken=skipped_broken)


def written_meta(dataset: Dataset) -> bytes:
    """meta.json of a data set."""
    parts = {split: getattr(dataset, split) for split in SPLITS}
    meta = {
        "format": _FORMAT,
        "version": _VERSION,
        "classes": list(dataset.classes),
        "inferred": list(dataset.inferred),
        "skipped_broken": dataset.skipped_broken,
        "splits": {
            split: {
                "images": list(part.images.shape),
                "dtype": part.images.dtype.name,
                "persons": part.persons is not None,
                "originals": part.originals is not None,
            }
            for split, part in parts.items()
            if part is not None
        },
    }
    text = (json.dumps(meta, indent=1) + "\n").encode("ascii")
    if len(text) > limits.META_BYTES:
        raise Refusal(f"has names of classes that take more than {limits.META_BYTES // limits.MIB} MiB.")
    return text


_Described = tuple[tuple[int, int, int, int], np.dtype, bool, bool]


def _parse_meta(file: BinaryIO) -> tuple[tuple[str, ...], tuple[str, ...], bool, dict[str, _Described]]:
    if file_length(file) > limits.META_BYTES:
        raise Refusal(f"takes more than {limits.META_BYTES // limits.MIB} MiB.")
    try:
        meta = json.loads(file.read(limits.META_BYTES), object_pairs_hook=_unique_keys)
    except ValueError:
        raise Refusal("is not valid JSON. Fix: pack the data again.") from None
    if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
        raise Refusal("does not describe a packed store. Fix: pack the data again.")
    if meta.get("version") != _VERSION:
        raise Refusal(f"is not of version {_VERSION}, the only one this dpvision reads. Fix: pack the data again.")
    names, inferred, splits = meta.get("classes"), meta.get("inferred"), meta.get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Refusal("has malformed classes. Fix: pack the data again.")
    check_names(names)
    if not isinstance(inferred, list) or not all(fact in _INFERABLE for fact in inferred):
        raise Refusal("has a malformed 'inferred'. Fix: pack the data again.")
    skipped_broken = meta.get("skipped_broken", True)  # a store that does not say may have been packed either way
    if type(skipped_broken) is not bool:
        raise Refusal("has a malformed 'skipped_broken'. Fix: pack the data again.")
    if not isinstance(splits, dict) or "train" not in splits or not set(splits) <= set(SPLITS):
        raise Refusal("has malformed splits. Fix: pack the data again.")
    described = {split: _describe(splits[split], split=split) for split in SPLITS if split in splits}
    records.check_same_kind(
        {split: entry[0] for split, entry in described.items()},
        {split: entry[1] for split, entry in described.items()},
    )
    return tuple(names), tuple(inferred), skipped_broken, described


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key is there twice")
    return fields


def _describe(entry: object, *, split: str) -> _Described:
    entry = entry if isinstance(entry, dict) else {}
    shape, dtype, persons = entry.get("images"), entry.get("dtype"), entry.get("persons")
    originals = entry.get("originals")
    if not isinstance(shape, list) or len(shape) != 4 or any(type(n) is not int or n < 1 for n in shape):
        raise Refusal(f"has a malformed shape for {split}. Fix: pack the data again.")
    if dtype not in ("uint8", "float32") or type(persons) is not bool or type(originals) is not bool:
        raise Refusal(f"has a malformed entry for {split}. Fix: pack the data again.")
    return records.image_shape(tuple(shape), name=f"{split}_images"), np.dtype(dtype), persons, originals


def _read_split(path: Path, root: str, *, split: str, described: _Described) -> Split:
    shape, dtype, has_persons, has_originals = described
    images = _mapped(path, root, name=f"{split}_images", shape=shape, dtype=dtype)
    with named(path / f"{split}_images.npy"):
        if dtype.kind == "f":
            step = max(1, _BLOCK * len(images) // images.nbytes)
            for start in range(0, len(images), step):
                records.check_pixels(images[start : start + step], name="images")
    whole = np.dtype(np.int64)
    labels = _mapped(path, root, name=f"{split}_labels", shape=shape[:1], dtype=whole)
    persons = _mapped(path, root, name=f"{split}_persons", shape=shape[:1], dtype=whole) if has_persons else None
    digests, byte = (shape[0], DIGEST), np.dtype(np.uint8)
    originals = _mapped(path, root, name=f"{split}_originals", shape=digests, dtype=byte) if has_originals else None
    return Split(images=images, labels=np.asarray(labels), persons=persons, originals=originals)


def _mapped(path: Path, root: str, *, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    with named(path / f"{name}.npy"), open_inside(root, f"{name}.npy") as file:
        header: ArrayHeader = parse_header(_exactly(file), file_length(file))
        if header.shape != shape or header.dtype != dtype or header.fortran:
            raise Refusal(f"has shape {header.shape} of {header.dtype}; meta.json says {shape} of {dtype}.")
        # The type of meta.json, not of the header: equal, but known to be one of three.
        return np.memmap(file, dtype=dtype, mode="r", offset=header.offset, shape=shape)


def _exactly(file: BinaryIO) -> Callable[[int], bytes]:
    def read(count: int) -> bytes:
        data = file.read(count)
        if len(data) != count:
            raise Refusal("is cut short.")
        return data

    return read
