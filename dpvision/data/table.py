"""Lists the images of a CSV file with the columns path and label and, if wanted, person and split."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from dpvision.data import limits
from dpvision.data.classes import check_name
from dpvision.data.dataset import SPLITS
from dpvision.data.listing import Item, Listing
from dpvision.data.refusal import Refusal, shown
from dpvision.data.regular_file import file_length, open_regular

_COLUMNS = ("path", "label", "person", "split")
_LAYOUT = "Fix: the first line is path,label or path,label,person,split."


def list_table(path: Path) -> Listing:
    """One item per line. Paths are relative to the folder of the CSV file; split is train where it is empty."""
    rows = _rows(path)
    columns = _columns(next(rows, (1, []))[1])
    items: dict[str, list[Item]] = {}
    labels: dict[str, str] = {}
    seen: set[str] = set()
    for number, row in rows:
        if len(row) != len(columns):
            raise Refusal(f"line {number} has {len(row)} fields, the first line has {len(columns)}.")
        values = dict(zip(columns, row, strict=True))
        split = values.get("split", "").strip() or "train"
        if split not in SPLITS:
            raise Refusal(f"line {number} has the split {shown(split)!r}. Fix: use train, val or test.")
        plain = str(PurePosixPath(values["path"]))  # ./a.png and a.png are one image, and one record
        if plain in seen:
            raise Refusal(f"line {number} names {shown(values['path'])} again. Fix: list every image once.")
        seen.add(plain)
        items.setdefault(split, []).append(_item(values, labels, number=number))
    train = items.get("train", [])
    ordered = {split: items[split] for split in SPLITS if split in items}
    root = os.path.realpath(path.parent)
    return Listing(root, ordered, frozenset(item.label for item in train), str(path.parent))


def _item(values: dict[str, str], labels: dict[str, str], *, number: int) -> Item:
    label, person = values["label"].strip(), values.get("person")
    if not values["path"]:
        raise Refusal(f"line {number} has no path.")
    if not label:
        raise Refusal(f"line {number} has no label.")
    if label not in labels:
        check_name(label)
    if person is not None and not person.strip():
        raise Refusal(f"line {number} has no person. Fix: name one on every line, or leave the column out.")
    # One string object per class, not one per line.
    return Item(values["path"], labels.setdefault(label, label), None if person is None else person.strip())


def _columns(first: list[str]) -> list[str]:
    columns = [name.strip().lower() for name in first]
    if len(set(columns)) != len(columns):
        raise Refusal(f"has a column twice: {shown(','.join(columns))}.")
    if not {"path", "label"} <= set(columns):
        raise Refusal(f"has no columns path and label; its first line is {shown(','.join(first))!r}. {_LAYOUT}")
    strange = [name for name in columns if name not in _COLUMNS]
    if strange:
        raise Refusal(f"has the unknown column {shown(strange[0])!r}. {_LAYOUT}")
    return columns


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields). Lines are parsed one by one, so that an open quote can not swallow the file."""
    with open_regular(path) as file:
        if file_length(file) > limits.CSV_BYTES:
            raise Refusal(f"takes more than {limits.CSV_BYTES // limits.MIB} MiB.")
        number = 0
        while raw := file.readline(limits.CSV_LINE_BYTES + 1):
            number += 1
            if len(raw) > limits.CSV_LINE_BYTES:
                raise Refusal(f"line {number} has more than {limits.CSV_LINE_BYTES:,} bytes.")
            if b"\0" in raw:
                raise Refusal(f"line {number} has a NUL character. Fix: save it as UTF-8 text.")
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    yield number, next(csv.reader([line], strict=True))
            except UnicodeDecodeError:
                raise Refusal(f"line {number} is not UTF-8. Fix: save it as UTF-8 text.") from None
            except csv.Error as exc:
                raise Refusal(f"line {number} is not valid CSV ({exc}).") from None
