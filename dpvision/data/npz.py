"""Reads an .npz file with the keys of MedMNIST: train_images, train_labels, and optionally val_*, test_*, *_persons.

A file of features has train_features (N, d), train_labels, and optionally test_* and *_persons: one row of numbers for
each image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dpvision.data import facts, limits
from dpvision.data.dataset import SPLITS, Dataset, Split, Unlabelled
from dpvision.data.files import Refusal, file_length, name_errors, open_regular, printable
from dpvision.data.listing import group_name
from dpvision.data.npy_zip import ArrayHeader, Member, MemberStream, list_members, parse_header
from dpvision.data.store import Destination, MemoryDestination

_BLOCK = 4 * limits.MIB
Shape = tuple[int, int, int, int]


def read_npz(path: Path, declared: facts.Declared, *, destination: Destination) -> Dataset:
    """Read the data set in the file. All headers are checked before the first array is read."""
    with name_errors(path), open_regular(path) as file:
        arrays = Arrays(file)
        present = [split for split in SPLITS if f"{split}_images" in arrays.headers]
        if "train" not in present:
            fix = " Fix: use `dpvision train` for features." if "train_features" in arrays.headers else ""
            raise Refusal(f"has no train_images; its arrays are: {arrays.names}.{fix}")
        shapes, dtypes = _image_kinds(arrays, present, task=declared.task)
        facts.require_shape(shapes["train"], declared)
        arrays.require(destination, shapes, dtypes)
        labels, names = _read_labels(arrays, present, declared)
        persons = _persons(arrays, present)
        splits = {
            split: Split(
                images=arrays.images(f"{split}_images", shape=shapes[split], destination=destination),
                labels=labels[split],
                persons=persons.get(split),
            )
            for split in present
        }
        splits = _with_groups(arrays, splits, declared)
    parts = splits["train"], splits.get("val"), splits.get("test")
    return Dataset(printable(path.stem), names, *parts, declared.inferred, task=declared.task)


def read_unlabelled_npz(path: Path, *, size: facts.Size, channels: int, at_a_time: int) -> Iterator[Unlabelled]:
    """Yield the array test_images or images in batches, named by number. Grey images may become colour."""
    with name_errors(path), open_regular(path) as file:
        declared = facts.declare(size=size)
        arrays = Arrays(file)
        key = next((key for key in ("test_images", "images") if key in arrays.headers), None)
        if key is None:
            raise Refusal(f"has neither test_images nor images; its arrays are: {arrays.names}.")
        header = arrays.headers[key]
        shape = facts.image_shape(header.shape, name=key)
        facts.require_shape(shape, declared)
        dtype = facts.image_dtype(header.dtype, name=key)
        arrays.require(MemoryDestination() if header.fortran else None, {key: shape}, {key: dtype})
        if shape[3] == 3 and channels == 1:
            raise Refusal("contains colour images where grey ones are needed. Fix: save them as (N, H, W).")
        done = 0
        for block in arrays.blocks(key, shape=shape, count=at_a_time):
            images = block.astype(dtype)
            images = np.repeat(images, 3, axis=3) if channels > images.shape[3] else images
            names = [str(number) for number in range(done, done + len(images))]
            done += len(images)
            yield Unlabelled(names, [None] * len(images), images, shape[0])


def read_npz_rows(path: Path, declared: facts.Declared) -> Dataset:
    """Read the features in the file: a row of d numbers is an "image" (1, d, 1) of float32, and may contain NaN."""
    with name_errors(path), open_regular(path) as file:
        arrays = Arrays(file)
        present = [split for split in ("train", "test") if f"{split}_features" in arrays.headers]
        if "train" not in present:
            raise Refusal(f"has no train_features; its arrays are: {arrays.names}.")
        shapes = {split: _row_shape(arrays, f"{split}_features") for split in present}
        for split in present:
            _require_labels(arrays, split, f"{split}_features", count=shapes[split][0], task=declared.task)
            _require_persons(arrays, split, count=shapes[split][0])
        facts.require_same_kind(shapes, dict.fromkeys(present, np.dtype(np.float32)))
        destination = MemoryDestination()
        arrays.require(destination, shapes, dict.fromkeys(present, np.dtype(np.float32)))
        labels, names = _read_labels(arrays, present, declared)
        persons = _persons(arrays, present)
        splits = {
            split: Split(
                arrays.images(f"{split}_features", shape=shapes[split], destination=destination),
                labels[split],
                persons.get(split),
            )
            for split in present
        }
        splits = _with_groups(arrays, splits, declared)
    inferred = () if declared.names is not None else ("classes",)
    return Dataset(printable(path.stem), names, splits["train"], None, splits.get("test"), inferred, task=declared.task)


def read_unlabelled_rows(path: Path, *, width: int, at_a_time: int) -> Iterator[Unlabelled]:
    """Yield the rows of test_features or features in batches, in the form of `read_npz_rows`, named by number."""
    with name_errors(path), open_regular(path) as file:
        arrays = Arrays(file)
        key = next((key for key in ("test_features", "features") if key in arrays.headers), None)
        if key is None:
            raise Refusal(f"has neither test_features nor features; its arrays are: {arrays.names}.")
        shape = _row_shape(arrays, key)
        if shape[2] != width:
            raise Refusal(f"has {key} with {shape[2]:,} columns; the model takes {width:,}.")
        whole = MemoryDestination() if arrays.headers[key].fortran else None
        arrays.require(whole, {key: shape}, {key: np.dtype(np.float32)})
        done = 0
        for block in arrays.blocks(key, shape=shape, count=at_a_time):
            names = [str(number) for number in range(done, done + len(block))]
            done += len(block)
            yield Unlabelled(names, [None] * len(block), _as_float32(block), shape[0])


def has_features(path: Path) -> bool:
    """Return whether the file is an .npz with train_features and no train_images."""
    with name_errors(path), open_regular(path) as file:
        present = Arrays(file).headers
    return "train_features" in present


def _row_shape(arrays: Arrays, key: str) -> Shape:
    header = arrays.headers[key]
    if header.dtype.kind != "f":
        raise Refusal(f"has {key} of type {header.dtype}. Fix: save features as float32.")
    if len(header.shape) != 2 or 0 in header.shape or header.shape[1] > limits.COLUMNS:
        raise Refusal(
            f"has {key} of shape {header.shape}. Fix: save features as (N, d), with d from 1 to {limits.COLUMNS:,}."
        )
    return header.shape[0], 1, header.shape[1], 1


def _as_float32(block: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # values that are too large become infinite: their rows are in no sum
        return block.astype(np.float32)


def _read_labels(
    arrays: Arrays, present: list[str], declared: facts.Declared
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the labels of each split, and the names of the classes or of the labels."""
    keys = {split: f"{split}_labels" for split in present}
    if declared.task != "labels":
        numbers = {split: arrays.integers(key) for split, key in keys.items()}
        return numbers, facts.resolve_numbered(numbers, declared)
    names = facts.resolve_columns({split: arrays.headers[key].shape[1] for split, key in keys.items()}, declared)
    return {split: facts.as_labels(arrays.whole(key), name=key) for split, key in keys.items()}, names


def _with_groups(arrays: Arrays, splits: dict[str, Split], declared: facts.Declared) -> dict[str, Split]:
    """Return the splits with the groups of the test split, from the array test_GROUP, if groups were asked for."""
    if declared.group is None or "test" not in splits:
        return splits
    key, count = f"test_{declared.group}", len(splits["test"])
    header = arrays.read_header(key)
    if header is None or header.shape not in ((count,), (count, 1)) or header.dtype.kind not in "iuUSb":
        raise Refusal(f"has no array {printable(key)} of groups, one for each test image. Fix: name another (--group).")
    names = (v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in arrays.whole(key).reshape(-1))
    return {**splits, "test": replace(splits["test"], groups=np.array([group_name(v) for v in names], dtype=object))}


def _require_labels(arrays: Arrays, split: str, of: str, *, count: int, task: str) -> None:
    """Refuse a split without the labels of each of its records."""
    key = f"{split}_labels"
    if key not in arrays.headers:
        raise Refusal(f"has {of} but no {key}; its arrays are: {arrays.names}.")
    facts.require_labels(arrays.headers[key].shape, arrays.headers[key].dtype, name=key, count=count, task=task)


def _require_persons(arrays: Arrays, split: str, *, count: int) -> None:
    """Refuse persons that do not fit the records of a split, if there are any."""
    owners = arrays.headers.get(f"{split}_persons")
    if owners is not None:
        facts.require_person_ids(owners.shape, owners.dtype, name=f"{split}_persons", count=count)


def _persons(arrays: Arrays, present: list[str]) -> dict[str, np.ndarray]:
    """Return the number of each record's person, for the splits that name persons."""
    owners = [split for split in present if f"{split}_persons" in arrays.headers]
    return facts.index_persons({split: arrays.whole(f"{split}_persons") for split in owners})


def _image_kinds(
    arrays: Arrays, present: list[str], *, task: str
) -> tuple[dict[str, tuple[int, int, int, int]], dict[str, np.dtype]]:
    """Return the shapes and types of the images; refuse labels and persons that do not fit them."""
    shapes: dict[str, Shape] = {}
    dtypes: dict[str, np.dtype] = {}
    for split in present:
        images = f"{split}_images"
        if f"{split}_labels" not in arrays.headers:
            raise Refusal(f"has {images} but no {split}_labels; its arrays are: {arrays.names}.")
        shapes[split] = facts.image_shape(arrays.headers[images].shape, name=images)
        dtypes[split] = facts.image_dtype(arrays.headers[images].dtype, name=images)
        count = shapes[split][0]
        _require_labels(arrays, split, images, count=count, task=task)
        _require_persons(arrays, split, count=count)
    facts.require_same_kind(shapes, dtypes)
    return shapes, dtypes


class Arrays:
    """The arrays of an open .npz file: headers are read at once, contents on request."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members = list_members(file, file_length(file))
        self.headers: dict[str, ArrayHeader] = {}
        _require_plausible(self._members)
        of_images = any(key.endswith("images") for key in self._members)
        for key, member in self._members.items():
            # Other arrays are never read, so they may have any type; so may features next to images.
            if _is_known(key) and not (of_images and key.endswith("features")):
                self.headers[key] = self._read_header(MemberStream(file, member), member)

    def read_header(self, key: str) -> ArrayHeader | None:
        """Read the header of an array that is not read otherwise; None if there is no such array."""
        if key not in self.headers and key in self._members:
            self.headers[key] = self._read_header(MemberStream(self._file, self._members[key]), self._members[key])
        return self.headers.get(key)

    @property
    def names(self) -> str:
        """The names of all arrays, for messages."""
        return printable(", ".join(sorted(self._members)) or "none")

    def require(
        self,
        destination: Destination | None,
        shapes: Mapping[str, Shape],
        dtypes: Mapping[str, np.dtype],
    ) -> None:
        """Refuse arrays that take too much space: a label takes 8 bytes, a person id as much as the widest.

        Without a destination, the images are read in batches and only their growth is limited.
        """
        owners = [header.dtype for key, header in self.headers.items() if key.endswith("_persons")]
        widest = max((dtype.itemsize * (4 if dtype.kind == "S" else 1) for dtype in owners), default=0)
        needed = sum(int(np.prod(shape, dtype=object)) * dtypes[key].itemsize for key, shape in shapes.items())
        needed += sum((16 + widest) * shape[0] for shape in shapes.values())
        needed += sum(2 * h.bytes for key, h in self.headers.items() if key.endswith("_labels") and len(h.shape) == 2)
        _require_growth(needed, file_length(self._file))
        if destination is not None:
            destination.require(needed)

    def images(self, key: str, *, shape: Shape, destination: Destination) -> np.ndarray:
        """Return all images of an array, copied block by block into the destination."""
        header = self.headers[key]
        out = destination.create(key, shape=shape, dtype=facts.image_dtype(header.dtype, name=key))
        step = max(1, _BLOCK * shape[0] // max(1, header.bytes))
        for number, block in enumerate(self.blocks(key, shape=shape, count=step)):
            out[number * step : number * step + len(block)] = _as_float32(block) if block.dtype.kind == "f" else block
        return out

    def blocks(self, key: str, *, shape: Shape, count: int) -> Iterator[np.ndarray]:
        """Yield images in order with their stored type, `count` at a time. The checksum is compared after the last."""
        header, of_features = self.headers[key], key.endswith("features")
        if header.fortran:
            whole = self.whole(key).reshape(shape)
            if not of_features:
                facts.require_unit_range(whole, name=key)
            yield from (whole[start : start + count] for start in range(0, shape[0], count))
            return
        stream = self._open_data(key)
        for start in range(0, shape[0], count):
            length = min(count, shape[0] - start)
            data = stream.read(length * header.bytes // shape[0])
            block = np.frombuffer(data, header.dtype).reshape(length, *shape[1:])
            if not of_features:
                facts.require_unit_range(block, name=key)
            yield block
        stream.finish()

    def integers(self, key: str) -> np.ndarray:
        """Return labels as (N,) int64."""
        values = self.whole(key).reshape(-1)
        if values.dtype.kind == "u" and int(values.max()) > np.iinfo(np.int64).max:
            raise Refusal(f"has {key} with numbers that are too large.")
        return values.astype(np.int64)

    def whole(self, key: str) -> np.ndarray:
        """Return one array in memory."""
        header = self.headers[key]
        stream = self._open_data(key)
        values = np.frombuffer(stream.read(header.bytes), header.dtype)
        stream.finish()
        return values.reshape(header.shape, order="F" if header.fortran else "C")

    def _open_data(self, key: str) -> MemberStream:
        """Return the bytes of an array after its header."""
        stream = MemberStream(self._file, self._members[key])
        self._read_header(stream, self._members[key])
        return stream

    def _read_header(self, stream: MemberStream, member: Member) -> ArrayHeader:
        try:
            return parse_header(stream.read, member.size)
        except Refusal as exc:
            raise Refusal(f"the member {member.name} {exc}") from None


def _is_known(key: str) -> bool:
    split, _, what = key.partition("_")
    return key in ("images", "features") or (split in SPLITS and what in ("images", "features", "labels", "persons"))


def _require_plausible(members: Mapping[str, Member]) -> None:
    """Refuse an archive that grows like a decompression bomb, in total or in one member."""
    packed = sum(member.packed for member in members.values())
    _require_growth(sum(member.size for member in members.values()), packed)
    for member in members.values():
        _require_growth(member.size, member.packed)


def _require_growth(size: int, packed: int) -> None:
    """Refuse a growth from `packed` to `size` bytes beyond the limits."""
    if size > max(limits.EXPANSION_FREE, limits.EXPANSION_RATIO * packed):
        raise Refusal(
            f"grows from {packed:,} to {size:,} bytes when it is read, as a decompression bomb does. "
            "Fix: save it without compression (numpy.savez), if you trust it."
        )
