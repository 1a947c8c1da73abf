"""Reads an .npz file with the keys of MedMNIST: train_images, train_labels, and val_*, test_*, *_persons if there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dpvision.data import facts, limits
from dpvision.data.dataset import SPLITS, Dataset, Split
from dpvision.data.files import Refusal, file_length, named, open_regular, shown
from dpvision.data.npy_zip import ArrayHeader, Member, MemberStream, list_members, parse_header
from dpvision.data.store import MemoryRoom, Room

_BLOCK = 4 * limits.MIB


def read_npz(path: Path, declared: facts.Declared, *, room: Room) -> Dataset:
    """The whole file. Headers are proved and compared before the first array is read."""
    with named(path), open_regular(path) as file:
        arrays = Arrays(file)
        present = [split for split in SPLITS if f"{split}_images" in arrays.headers]
        if "train" not in present:
            raise Refusal(f"has no train_images; its arrays are: {arrays.listed}.")
        shapes, dtypes = _kinds(arrays, present)
        facts.require_shape(shapes["train"], declared)
        arrays.require(room, shapes, dtypes)
        labels = {split: arrays.integers(f"{split}_labels") for split in present}
        names = facts.name_numbered(labels, declared)
        owners = [split for split in present if f"{split}_persons" in arrays.headers]
        persons = facts.index_persons({split: arrays.whole(f"{split}_persons") for split in owners})
        splits = {
            split: Split(
                images=arrays.images(f"{split}_images", shape=shapes[split], room=room),
                labels=labels[split],
                persons=persons.get(split),
            )
            for split in present
        }
    parts = splits["train"], splits.get("val"), splits.get("test")
    return Dataset(shown(path.stem), names, *parts, declared.inferred)


def read_npz_images(path: Path, *, size: facts.Size, at_a_time: int) -> Iterator[tuple[np.ndarray, int]]:
    """Only the images to predict, test_images or images: some at a time, and how many there are in all."""
    with named(path), open_regular(path) as file:
        declared = facts.declare(size=size)
        arrays = Arrays(file)
        key = next((key for key in ("test_images", "images") if key in arrays.headers), None)
        if key is None:
            raise Refusal(f"has neither test_images nor images; its arrays are: {arrays.listed}.")
        header = arrays.headers[key]
        shape = facts.image_shape(header.shape, name=key)
        facts.require_shape(shape, declared)
        dtype = facts.image_dtype(header.dtype, name=key)
        arrays.require(MemoryRoom() if header.fortran else _Passing(), {key: shape}, {key: dtype})
        for block in arrays.blocks(key, shape=shape, count=at_a_time):
            yield block.astype(dtype), shape[0]


class _Passing(MemoryRoom):
    """What only passes through needs no room."""

    def require(self, count: int) -> None:
        pass


def _kinds(arrays: Arrays, present: list[str]) -> tuple[dict[str, tuple[int, int, int, int]], dict[str, np.dtype]]:
    """Shapes and types of the images, after labels and persons were found to fit them."""
    shapes: dict[str, tuple[int, int, int, int]] = {}
    dtypes: dict[str, np.dtype] = {}
    for split in present:
        images, labels = f"{split}_images", f"{split}_labels"
        if labels not in arrays.headers:
            raise Refusal(f"has {images} but no {labels}; its arrays are: {arrays.listed}.")
        shapes[split] = facts.image_shape(arrays.headers[images].shape, name=images)
        dtypes[split] = facts.image_dtype(arrays.headers[images].dtype, name=images)
        count = shapes[split][0]
        header = arrays.headers[labels]
        facts.check_label_array(header.shape, header.dtype, name=labels, count=count)
        owners = arrays.headers.get(f"{split}_persons")
        if owners is not None:
            facts.check_person_array(owners.shape, owners.dtype, name=f"{split}_persons", count=count)
    facts.check_same_kind(shapes, dtypes)
    return shapes, dtypes


class Arrays:
    """The arrays of an open .npz file: headers at once, contents when asked for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members = list_members(file, file_length(file))
        self.headers: dict[str, ArrayHeader] = {}
        _refuse_bomb(self._members)
        for key, member in self._members.items():
            # A foreign array is neither read nor trusted, so it may have any type.
            if _is_ours(key):
                self.headers[key] = self._header(MemberStream(file, member), member)

    @property
    def listed(self) -> str:
        return shown(", ".join(sorted(self._members)) or "none")

    def require(
        self, room: Room, shapes: Mapping[str, tuple[int, int, int, int]], dtypes: Mapping[str, np.dtype]
    ) -> None:
        """Refuses what would take too much in memory: a label takes 8 bytes, a person's id as much as the widest."""
        owners = [header.dtype for key, header in self.headers.items() if key.endswith("_persons")]
        widest = max((dtype.itemsize * (4 if dtype.kind == "S" else 1) for dtype in owners), default=0)
        needed = sum(int(np.prod(shape, dtype=object)) * dtypes[key].itemsize for key, shape in shapes.items())
        needed += sum((16 + widest) * shape[0] for shape in shapes.values())
        _refuse_growth(needed, file_length(self._file))
        room.require(needed)

    def images(self, key: str, *, shape: tuple[int, int, int, int], room: Room) -> np.ndarray:
        header = self.headers[key]
        out = room.array(key, shape=shape, dtype=facts.image_dtype(header.dtype, name=key))
        step = max(1, _BLOCK * shape[0] // max(1, header.bytes))
        for number, block in enumerate(self.blocks(key, shape=shape, count=step)):
            out[number * step : number * step + len(block)] = block
        return out

    def blocks(self, key: str, *, shape: tuple[int, int, int, int], count: int) -> Iterator[np.ndarray]:
        """Images in order and as they are stored, `count` at a time; the check sum is looked at after the last."""
        header = self.headers[key]
        if header.fortran:
            whole = self.whole(key).reshape(shape)
            facts.check_pixels(whole, name=key)
            yield from (whole[start : start + count] for start in range(0, shape[0], count))
            return
        stream = self._at_data(key)
        for start in range(0, shape[0], count):
            some = min(count, shape[0] - start)
            data = stream.read(some * header.bytes // shape[0])
            block = np.frombuffer(data, header.dtype).reshape(some, *shape[1:])
            facts.check_pixels(block, name=key)
            yield block
        stream.finish()

    def integers(self, key: str) -> np.ndarray:
        """Labels as (N,) int64."""
        values = self.whole(key).reshape(-1)
        if values.dtype.kind == "u" and int(values.max()) > np.iinfo(np.int64).max:
            raise Refusal(f"has {key} with numbers that are too large for a class.")
        return values.astype(np.int64)

    def whole(self, key: str) -> np.ndarray:
        header = self.headers[key]
        stream = self._at_data(key)
        flat = np.frombuffer(stream.read(header.bytes), header.dtype)
        stream.finish()
        return flat.reshape(header.shape, order="F" if header.fortran else "C")

    def _at_data(self, key: str) -> MemberStream:
        stream = MemberStream(self._file, self._members[key])
        self._header(stream, self._members[key])
        return stream

    def _header(self, stream: MemberStream, member: Member) -> ArrayHeader:
        try:
            return parse_header(stream.read, member.size)
        except Refusal as exc:
            raise Refusal(f"the member {member.name} {exc}") from None


def _is_ours(key: str) -> bool:
    split, _, what = key.partition("_")
    return key == "images" or (split in SPLITS and what in ("images", "labels", "persons"))


def _refuse_bomb(members: Mapping[str, Member]) -> None:
    packed = sum(member.packed for member in members.values())
    _refuse_growth(sum(member.size for member in members.values()), packed)
    for member in members.values():
        _refuse_growth(member.size, member.packed)


def _refuse_growth(size: int, packed: int) -> None:
    if size > max(limits.EXPANSION_FREE, limits.EXPANSION_RATIO * packed):
        raise Refusal(
            f"grows from {packed:,} to {size:,} bytes when it is read, as a decompression bomb does. "
            "Fix: if it is genuine, save it without compression (numpy.savez)."
        )
