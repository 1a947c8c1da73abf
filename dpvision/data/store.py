"""The packed store, a folder with meta.json and memory-mapped .npy arrays; and the destinations of arrays.

A destination allocates the arrays of a source, in memory or in the files of a store that is being written. Both kinds
have the same methods.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dpvision.core.files import sync_folder
from dpvision.data import facts, limits
from dpvision.data.dataset import DIGEST, SPLITS, Dataset, Split
from dpvision.data.files import Refusal, file_length, name_errors, open_inside, printable
from dpvision.data.npy_zip import format_header, parse_header, read_exactly

META = "meta.json"
_FORMAT, _VERSION = "dpvision store", 1
_BLOCK = 4 * limits.MIB
_Described = tuple[tuple[int, int, int, int], np.dtype, bool, bool]


def read_store(path: Path, declared: facts.Declared) -> Dataset:
    """Read a store; its images stay on disk. Every header is compared with meta.json and with the file's size."""
    root = str(path.resolve())
    with name_errors(path / META), open_inside(root, META) as file:
        names, stored_inferred, skipped_broken, described, stored_task = _parse_meta(file)
    with name_errors(path):
        if "labels" in (stored_task, declared.task) and stored_task != declared.task:
            raise Refusal(f"was packed with --task {stored_task}. Fix: use --task {stored_task}.")
        agreed = facts.match_stored(names, declared)
        facts.require_shape(described["train"][0], declared)
    width = len(names) if stored_task == "labels" else None
    splits = {
        split: _read_split(path, root, split=split, described=described[split], width=width) for split in described
    }
    with name_errors(path):
        MemoryDestination().require((16 + (width or 0)) * sum(len(split) for split in splits.values()))
        ids = {split: part.persons for split, part in splits.items() if part.persons is not None}
        persons = facts.index_persons(ids)
    for split, part in splits.items():
        with name_errors(path / f"{split}_labels.npy"):
            if width is not None:
                facts.as_labels(part.labels, name="labels")
            elif part.labels.min() < 0 or part.labels.max() >= len(names):
                raise Refusal(f"has labels that are not among the {len(names)} classes.")
    final = {split: replace(part, persons=persons.get(split)) for split, part in splits.items()}
    undeclared = {*declared.inferred, *(() if agreed else ("classes",))}
    inferred = tuple(fact for fact in facts.INFERABLE if fact in stored_inferred and fact in undeclared)
    parts = final["train"], final.get("val"), final.get("test")
    name = printable(path.resolve().name)
    return Dataset(name, names, *parts, inferred, skipped_broken=skipped_broken, task=declared.task)


def finish_store(dataset: Dataset, folder: Path, *, destination: FolderDestination) -> None:
    """Write the rest of a store, whose images are in the destination already, and sync all of its files."""
    for split, part in dataset.splits.items():
        part.images.flush()  # type: ignore[attr-defined]
        for field in ("labels", "persons", "originals"):
            values = getattr(part, field)
            if values is not None:
                destination.copy(f"{split}_{field}", values).flush()  # type: ignore[attr-defined]
    (folder / META).write_bytes(_format_meta(dataset))
    present = {f"{split}_images.npy" for split in dataset.splits}
    for file in sorted(folder.iterdir()):
        # All images of a split may have been broken: its reserved file is removed.
        if file.name.endswith("_images.npy") and file.name not in present:
            file.unlink()
        else:
            _sync(file)
    sync_folder(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _format_meta(dataset: Dataset) -> bytes:
    """Return the content of meta.json for a data set."""
    meta = {
        "format": _FORMAT,
        "version": _VERSION,
        "classes": list(dataset.classes),
        "inferred": list(dataset.inferred),
        "skipped_broken": dataset.skipped_broken,
        **({} if dataset.task == "classes" else {"task": dataset.task}),
        "splits": {
            split: {
                "images": list(part.images.shape),
                "dtype": part.images.dtype.name,
                "persons": part.persons is not None,
                "originals": part.originals is not None,
            }
            for split, part in dataset.splits.items()
        },
    }
    text = (json.dumps(meta, indent=1) + "\n").encode("ascii")
    if len(text) > limits.META_BYTES:
        raise Refusal(f"has class names of more than {limits.META_BYTES // limits.MIB} MiB.")
    return text


def _parse_meta(file: BinaryIO) -> tuple[tuple[str, ...], tuple[str, ...], bool, dict[str, _Described], str]:
    if file_length(file) > limits.META_BYTES:
        raise Refusal(f"is larger than {limits.META_BYTES // limits.MIB} MiB.")
    try:
        meta = json.loads(file.read(limits.META_BYTES), object_pairs_hook=_unique_keys)
    except ValueError:
        raise Refusal("is not valid JSON. Fix: pack the data again.") from None
    if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
        raise Refusal("does not describe a packed store. Fix: pack the data again.")
    if meta.get("version") != _VERSION:
        raise Refusal(f"has a version other than {_VERSION}, which this dpvision needs. Fix: pack the data again.")
    names, inferred, splits = meta.get("classes"), meta.get("inferred"), meta.get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Refusal("has malformed classes. Fix: pack the data again.")
    task = meta.get("task", "classes")
    if not isinstance(task, str) or task not in facts.MOST:
        raise Refusal("has a malformed 'task'. Fix: pack the data again.")
    facts.require_class_names(names, task)
    if not isinstance(inferred, list) or not all(fact in facts.INFERABLE for fact in inferred):
        raise Refusal("has a malformed 'inferred'. Fix: pack the data again.")
    skipped_broken = meta.get("skipped_broken", True)  # absent: files may have been left out
    if type(skipped_broken) is not bool:
        raise Refusal("has a malformed 'skipped_broken'. Fix: pack the data again.")
    if not isinstance(splits, dict) or "train" not in splits or not set(splits) <= set(SPLITS):
        raise Refusal("has malformed splits. Fix: pack the data again.")
    described = {split: _describe(splits[split], split=split) for split in SPLITS if split in splits}
    facts.require_same_kind(
        {split: entry[0] for split, entry in described.items()},
        {split: entry[1] for split, entry in described.items()},
    )
    return tuple(names), tuple(inferred), skipped_broken, described, task


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate key")
    return fields


def _describe(entry: object, *, split: str) -> _Described:
    entry = entry if isinstance(entry, dict) else {}
    shape, dtype, persons = entry.get("images"), entry.get("dtype"), entry.get("persons")
    originals = entry.get("originals")
    if not isinstance(shape, list) or len(shape) != 4 or any(type(n) is not int or n < 1 for n in shape):
        raise Refusal(f"has a malformed shape for {split}. Fix: pack the data again.")
    if dtype not in ("uint8", "float32") or type(persons) is not bool or type(originals) is not bool:
        raise Refusal(f"has a malformed entry for {split}. Fix: pack the data again.")
    return facts.image_shape(tuple(shape), name=f"{split}_images"), np.dtype(dtype), persons, originals


def _read_split(path: Path, root: str, *, split: str, described: _Described, width: int | None) -> Split:
    shape, dtype, has_persons, has_originals = described
    images = _map_array(path, root, name=f"{split}_images", shape=shape, dtype=dtype)
    with name_errors(path / f"{split}_images.npy"):
        if dtype.kind == "f":
            step = max(1, _BLOCK * len(images) // images.nbytes)
            for start in range(0, len(images), step):
                facts.require_unit_range(images[start : start + step], name="images")
    integer = np.dtype(np.int64)
    shape_of, kind = (shape[:1], integer) if width is None else ((shape[0], width), np.dtype(np.int8))
    labels = _map_array(path, root, name=f"{split}_labels", shape=shape_of, dtype=kind)
    persons = _map_array(path, root, name=f"{split}_persons", shape=shape[:1], dtype=integer) if has_persons else None
    digests, byte = (shape[0], DIGEST), np.dtype(np.uint8)
    originals = _map_array(path, root, name=f"{split}_originals", shape=digests, dtype=byte) if has_originals else None
    return Split(images=images, labels=np.asarray(labels), persons=persons, originals=originals)


def _map_array(path: Path, root: str, *, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    with name_errors(path / f"{name}.npy"), open_inside(root, f"{name}.npy") as file:
        header = parse_header(partial(read_exactly, file), file_length(file))
        if header.shape != shape or header.dtype != dtype or header.fortran:
            raise Refusal(f"has shape {header.shape} of {header.dtype}; meta.json declares {shape} of {dtype}.")
        # The dtype of meta.json equals that of the header, and is known to be one of four.
        return np.memmap(file, dtype=dtype, mode="r", offset=header.offset, shape=shape)


class MemoryDestination:
    """Arrays in memory."""

    copies = False  # whether `copy` copies, and needs space

    def require(self, count: int) -> None:
        """Refuse `count` bytes if they do not fit, before anything is allocated."""
        if count > limits.TOTAL_BYTES:
            raise Refusal(
                f"needs {count / limits.GIB:,.1f} GiB of memory; the limit is {limits.TOTAL_BYTES / limits.GIB:,.0f}. "
                "Fix: pack it first (dpvision data pack); a packed store stays on disk."
            )

    def create(self, name: str, *, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return a new array with undefined values."""
        return np.empty(shape, dtype)

    def copy(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return the values as an array of this destination."""
        return array

    def truncate(self, name: str, *, count: int, array: np.ndarray) -> np.ndarray:
        """Return the first `count` records of an array of this destination and discard the others."""
        return array[:count]


class FolderDestination:
    """Arrays as memory-mapped .npy files in a folder, which may be larger than memory."""

    copies = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def require(self, count: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if count > free:
            raise Refusal(
                f"needs {count / limits.GIB:,.1f} GiB of disk space, {free / limits.GIB:,.1f} are free. "
                "Fix: write the store to another disk."
            )

    def create(self, name: str, *, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        header = format_header(shape, dtype)
        with self._path(name).open("xb") as file:
            file.write(header)
            _reserve(file, len(header) + math.prod(shape) * dtype.itemsize)
        return np.memmap(self._path(name), dtype=dtype, mode="r+", offset=len(header), shape=shape)

    def copy(self, name: str, array: np.ndarray) -> np.ndarray:
        out = self.create(name, shape=array.shape, dtype=array.dtype)
        step = max(1, _BLOCK * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), step):
            out[start : start + step] = array[start : start + step]
        return out

    def truncate(self, name: str, *, count: int, array: np.ndarray) -> np.ndarray:
        shape = (count, *array.shape[1:])
        header = format_header(shape, array.dtype)
        array.flush()  # type: ignore[attr-defined]
        with self._path(name).open("r+b") as file:
            file.write(header)
            file.truncate(len(header) + math.prod(shape) * array.dtype.itemsize)
        return np.memmap(self._path(name), dtype=array.dtype, mode="r+", offset=len(header), shape=shape)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"


Destination = MemoryDestination | FolderDestination


def _reserve(file: BinaryIO, length: int) -> None:
    """Reserve the disk space now: a full disk must be an error here, not a crash at a later page fault."""
    file.flush()
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, length)
    else:
        file.truncate(length)
