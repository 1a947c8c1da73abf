"""Lists the rows of Parquet files and of Hugging Face data sets on disk, with pyarrow.

    SOURCE.parquet, or a folder with *.parquet or data/*.parquet      the files of the Hugging Face hub
    a folder with state.json or dataset_dict.json                     what `datasets.save_to_disk` writes

Each row has an image (the bytes of a file, in a column of bytes or of {bytes, path}), a label (a number or text) and
optionally a person. With several labels, the label is a list or text such as "edema|pneumonia", or each declared label
has a column. The split is named by the file (train-00000-of-00001.parquet), the folder, or a column named split;
otherwise a test part is set aside. Labels, persons and splits are read first. Images are read in batches while they are
decoded, so memory holds only a few images of a table of any size. pyarrow is an extra:
`pip install 'dpvision[parquet]'`.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpvision.data import limits
from dpvision.data.dataset import SPLITS
from dpvision.data.facts import (
    SEPARATOR,
    TEST_SHARE,
    Declared,
    join_cell,
    require_class_name,
    require_label_columns,
    split_cell,
)
from dpvision.data.files import Refusal, open_inside, printable
from dpvision.data.listing import Item, Listing, group_name, names_in

_USUAL = {
    "image": ("image", "img"),
    "label": ("label", "labels"),
    "person": ("person", "patient_id"),
    "split": ("split",),
}
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val", "test": "test"}
_SPLIT_NAME = re.compile(r"(train|validation|valid|val|dev|test)(?![a-z0-9])", re.IGNORECASE)
_ROWS_AT_A_TIME = 64
_MISSING = "is a table, and pyarrow is not installed. Fix: run pip install 'dpvision[parquet]'"


def list_tables(path: Path, kind: str, columns: dict[str, str], declared: Declared) -> Listing:
    """Return the rows of all files of a source, with their images to be read later."""
    root = os.path.realpath(path if path.is_dir() else path.parent)
    files = _list_parquet(path) if kind == "parquet" else _list_arrow(path, root)
    if not files:
        raise Refusal("has no table with rows.")
    tables = [_open_table(root, name, split, kind, columns, declared) for name, split in files]
    if len({table.split is None for table in tables}) > 1:
        raise Refusal("has files with a split in their names and files without one. Fix: name all of them alike.")
    if len({"person" in table.columns for table in tables}) > 1:
        raise Refusal(
            "has files with a column of persons and files without one. Fix: give all of them the same columns."
        )
    items: dict[str, list[Item]] = {}
    has_splits = False
    for table in tables:
        splits = table.read_splits()
        has_splits = has_splits or table.split is not None or "split" in table.columns
        for split, item in zip(splits, table.read_items(), strict=True):
            items.setdefault(split, []).append(item)
        table.splits = splits
    if sum(map(len, items.values())) > limits.TABLE_ROWS:
        raise Refusal(f"has more than {limits.TABLE_ROWS:,} rows.")

    def contents(split: str) -> Iterator[bytes | None]:
        for table in tables:
            yield from table.images(split)

    ordered = {split: items[split] for split in SPLITS if split in items}
    classes = names_in((item.label for item in items.get("train", ())), declared.task)
    given = str(path if path.is_dir() else path.parent)
    return Listing(root, ordered, classes, given, share=None if has_splits else TEST_SHARE, contents=contents)


def _list_parquet(path: Path) -> list[tuple[str, str | None]]:
    """Return the Parquet files below the root with the split in their names."""
    if not path.is_dir():
        return [(path.name, None)]
    names = sorted(entry for entry in os.listdir(path) if entry.lower().endswith(".parquet"))
    if not names:
        names = sorted(f"data/{entry}" for entry in os.listdir(path / "data") if entry.lower().endswith(".parquet"))
    matches = [(name, _SPLIT_NAME.match(name.rpartition("/")[2])) for name in names]
    return [(name, _SPLITS[split[1].lower()] if split else None) for name, split in matches]


def _list_arrow(path: Path, root: str) -> list[tuple[str, str | None]]:
    """Return the Arrow files of a data set, or of each split of a dictionary of data sets."""
    if not os.path.lexists(path / "dataset_dict.json"):
        return [(name, None) for name in _files_of_state(root, "")]
    splits = _read_json(root, "dataset_dict.json").get("splits")
    if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
        raise Refusal("has a malformed dataset_dict.json.")
    unknown = [split for split in splits if split not in _SPLITS]
    if unknown:
        raise Refusal(f"has the split {printable(unknown[0])!r}. Fix: name splits train, validation and test.")
    return [(name, _SPLITS[split]) for split in splits for name in _files_of_state(root, split)]


def _files_of_state(root: str, folder: str) -> list[str]:
    prefix = f"{folder}/" if folder else ""
    state = _read_json(root, f"{prefix}state.json")
    files = state.get("_data_files")
    if state.get("_indices_files"):
        raise Refusal("has rows that were shuffled or selected. Fix: call `flatten_indices()` before `save_to_disk`.")
    if not isinstance(files, list) or not all(
        isinstance(f, dict) and isinstance(f.get("filename"), str) for f in files
    ):
        raise Refusal(f"has a malformed {prefix}state.json.")
    return [prefix + file["filename"] for file in files]


def _read_json(root: str, name: str) -> dict[str, Any]:
    with open_inside(root, name) as file:
        data = file.read(limits.META_BYTES + 1)
    try:
        value = json.loads(data) if len(data) <= limits.META_BYTES else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refusal(f"has a malformed {printable(name)}.")
    return value


def _open_table(
    root: str, name: str, split: str | None, kind: str, columns: dict[str, str], declared: Declared
) -> _Table:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise Refusal(_MISSING) from None
    table = _Table(root, name, split, kind, {}, {}, declared.task)
    with table.refusals():
        schema = table.schema()
        names = (declared.names or ()) if declared.task == "labels" and "label" not in columns else ()
        if names and set(names) <= set(schema.names):
            require_label_columns(names)
            table.of_labels = names  # each declared label has a column
        table.group = declared.group
        if table.group is not None and table.group not in schema.names:
            raise Refusal(
                f"has no column {printable(table.group)!r} of groups. Fix: name one of its columns (--group)."
            )
        table.columns = _choose_columns(schema.names, columns, name, has_labels=bool(table.of_labels))
        used = [*table.columns.values(), *table.of_labels]
        if twice := [column for column in used if used.count(column) > 1]:
            raise Refusal(f"uses the column {printable(twice[0])!r} twice. Fix: use --columns with one role for each.")
        table.names = {} if table.of_labels else _class_names(schema, table.columns["label"])
        table.require_image_column(schema.field(table.columns["image"]).type)
    return table


def _choose_columns(present: list[str], named: dict[str, str], file: str, *, has_labels: bool) -> dict[str, str]:
    """Return the columns by their roles. Named columns must exist, and so must image and, without others, label."""
    columns = {}
    for role, usual in _USUAL.items():
        if role == "label" and has_labels:
            continue
        wanted = (named[role],) if role in named else usual
        found = [name for name in present if (name if role in named else name.strip().lower()) in wanted]
        if len(found) > 1:
            raise Refusal(
                f"{printable(file)} has the columns {printable(' and '.join(found[:2]))!r}. "
                f"Fix: use --columns {role}=NAME."
            )
        if found:
            columns[role] = found[0]
        elif role in named or role in ("image", "label"):
            listed = printable(", ".join(present[:20]) + (", ..." if len(present) > 20 else ""))
            raise Refusal(
                f"{printable(file)} has no column {printable(wanted[0])!r}; its columns are {listed}. "
                f"Fix: use --columns {role}=NAME."
            )
    return columns


def _class_names(schema: Any, label: str) -> dict[int, str]:
    """Return the names of numbered labels from the Hugging Face metadata; empty if there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label].get("feature", features[label])["names"]
        valid = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return dict(enumerate(names)) if valid else {}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


@dataclass
class _Table:
    """One Parquet or Arrow file."""

    root: str
    name: str
    split: str | None
    kind: str
    columns: dict[str, str]
    names: dict[int, str]
    task: str = "classes"
    of_labels: tuple[str, ...] = ()  # the columns of labels, if each label has its own
    group: str | None = None
    splits: list[str] | None = None

    def refusals(self) -> _Refusals:
        return _Refusals(self.name)

    def schema(self) -> Any:
        import pyarrow.parquet

        with open_inside(self.root, self.name) as file:
            if self.kind == "parquet":
                parquet = pyarrow.parquet.ParquetFile(file)
                groups = (parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups))
                if any(group.total_byte_size > limits.ROW_GROUP_BYTES for group in groups):
                    raise Refusal(f"has a row group above {limits.ROW_GROUP_BYTES // limits.GIB} GiB.")
                return parquet.schema_arrow
            return self._batches_of_arrow(file).schema

    def require_image_column(self, kind: Any) -> None:
        from pyarrow import types

        def is_bytes(kind: Any) -> bool:
            return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))

        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type):
            return
        if not is_bytes(kind):
            column = printable(self.columns["image"])
            raise Refusal(
                f"{printable(self.name)} has the column {column!r} of type {printable(str(kind))}, not of image files. "
                "Fix: store the bytes of PNG or JPEG files; in Hugging Face data sets, the feature Image."
            )

    def read_splits(self) -> list[str]:
        """Return the split of each row."""
        if "split" in self.columns and self.split is None:
            values = self._column(self.columns["split"])
            unknown = next((value for value in values if value not in _SPLITS), None)
            if unknown is not None or None in values:
                raise Refusal(
                    f"{printable(self.name)} has the split {printable(str(unknown))!r}. Fix: use train, val or test."
                )
            return [_SPLITS[value] for value in values]
        return [self.split or "train"] * len(self._column(self.columns.get("label", *self.of_labels[:1])))

    def read_items(self) -> Iterator[Item]:
        """Yield the rows in order, without their images."""
        labels = self._cells() if self.task == "labels" else self._column(self.columns["label"])
        persons = self._column(self.columns["person"]) if "person" in self.columns else [None] * len(labels)
        groups = [None] * len(labels) if self.group is None else self._column(self.group)
        known: dict[Any, str] = {}
        for number, (label, person) in enumerate(zip(labels, persons, strict=True)):
            if isinstance(label, list | dict) or label not in known:
                known[label] = label if self.task == "labels" else self._label(label, number)
            name = self._person(person, number) if "person" in self.columns else None
            yield Item(f"{self.name}, row {number}", known[label], name, group_name(groups[number]))

    def _cells(self) -> list[str]:
        """Return the labels of each row as a cell such as "edema|pneumonia"."""
        if self.of_labels:
            columns = [self._column(name) for name in self.of_labels]
            where = f"{printable(self.name)}, row"
            return [
                join_cell(dict(zip(self.of_labels, row, strict=True)), where=f"{where} {number}")
                for number, row in enumerate(zip(*columns, strict=True))
            ]
        cells = []
        for number, value in enumerate(self._column(self.columns["label"])):
            if isinstance(value, list):
                value = SEPARATOR.join(self._label(entry, number) for entry in value)
            elif not isinstance(value, str):
                raise Refusal(
                    f"{printable(self.name)} has labels in row {number} that are neither a list nor a text. Fix: "
                    "store a list, or text such as edema|pneumonia, or declare the columns of labels (--classes)."
                )
            for names in split_cell(value):
                for name in filter(None, names):
                    require_class_name(name)
            cells.append(value)
        return cells

    def images(self, split: str) -> Iterator[bytes | None]:
        """Yield the bytes of the images of one split, in order; None for a row without an image."""
        assert self.splits is not None
        number = 0
        with self.refusals():
            for batch in self._batches():
                for value in batch:
                    if self.splits[number] == split:
                        yield value.as_py()
                    number += 1

    def _person(self, value: Any, number: int) -> str:
        """Return the name of a person: one person must have one name in all files, however their columns are stored."""
        if value is None or not str(value).strip():
            raise Refusal(f"{printable(self.name)} has no person in row {number}. Fix: name one in every row.")
        if isinstance(value, bool) or not isinstance(value, int | str):
            kind = type(value).__name__
            raise Refusal(
                f"{printable(self.name)} has a person of type {kind} in row {number}. Fix: store persons as text or as "
                "whole numbers."
            )
        return unicodedata.normalize("NFC", str(value).strip())

    def _label(self, value: Any, number: int) -> str:
        if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
            raise Refusal(
                f"{printable(self.name)} has a label in row {number} that is neither a number nor a text. "
                "Fix: remove the row, or --columns label=NAME."
            )
        if isinstance(value, int) and self.names and value not in self.names:
            raise Refusal(f"{printable(self.name)} has the label {value} in row {number}, which has no name.")
        name = self.names.get(value, str(value)) if isinstance(value, int) else value
        require_class_name(name)
        return name

    def _column(self, name: str) -> list[Any]:
        import pyarrow.parquet

        with self.refusals(), open_inside(self.root, self.name) as file:
            if self.kind == "parquet":
                return list(pyarrow.parquet.ParquetFile(file).read(columns=[name]).column(0).to_pylist())
            return [value for batch in self._batches_of_arrow(file) for value in batch.column(name).to_pylist()]

    def _batches(self) -> Iterator[Any]:
        """Yield arrays of the bytes of images, a batch at a time."""
        import pyarrow.parquet

        image = self.columns["image"]
        with open_inside(self.root, self.name) as file:
            if self.kind == "parquet":
                parquet = pyarrow.parquet.ParquetFile(file)
                is_struct = pyarrow.types.is_struct(parquet.schema_arrow.field(image).type)
                column = f"{image}.bytes" if is_struct else image
                arrays = (b.column(0) for b in parquet.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=[column]))
            else:
                arrays = (batch.column(image) for batch in self._batches_of_arrow(file))
            for array in arrays:
                yield array.field("bytes") if pyarrow.types.is_struct(array.type) else array

    def _batches_of_arrow(self, file: Any) -> Any:
        import pyarrow

        return pyarrow.ipc.open_stream(file)


class _Refusals:
    """Turns every error of pyarrow into a Refusal that names the file."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, exc: BaseException | None, _: object) -> None:
        if isinstance(exc, Exception) and not isinstance(exc, Refusal | MemoryError | OSError):
            raise Refusal(f"{printable(self._name)} is not a readable table ({printable(str(exc))}).") from exc
