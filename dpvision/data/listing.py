"""Lists the image files of a folder of classes, or of a CSV table, before any of them is opened."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dpvision.data import limits
from dpvision.data.dataset import SPLITS, Broken
from dpvision.data.facts import check_name
from dpvision.data.files import Refusal, file_length, open_regular, resolve_inside, shown

SUFFIXES = (".png", ".jpg", ".jpeg")
_LITTER = ("thumbs.db", "desktop.ini")
"""Files that operating systems leave behind; names that start with a dot are left out too."""
_DEEPEST = 8
"""Folders in folders, of images to predict."""
_COLUMNS = ("path", "label", "person", "split")
_LAYOUT = "Fix: the first line is path,label or path,label,person,split."


def list_folder(path: Path) -> Listing:
    """All files below the folder, sorted by name. A folder that is a link may not leave `path`."""
    root = os.path.realpath(path)
    items: dict[str, list[Item]] = {}
    broken: list[Broken] = []
    classes: set[str] = set()
    for split in SPLITS:
        if not os.path.lexists(os.path.join(root, split)):
            continue
        found: list[Item] = []
        for label in _names(root, split):
            relative = f"{split}/{label}"
            if not os.path.isdir(os.path.join(root, relative)):
                broken.append(Broken(shown(relative), "is not in the folder of a class."))
                continue
            check_name(label)
            classes.update({label} if split == "train" else ())
            for name in _names(root, relative):
                reason = unsuitable(root, f"{relative}/{name}")
                if reason:
                    broken.append(Broken(shown(f"{relative}/{name}"), reason))
                else:
                    found.append(Item(f"{relative}/{name}", label))
        if found:
            items[split] = found
    return Listing(root, items, frozenset(classes), str(path), tuple(broken))


def image_names(root: str, relative: str = "", *, depth: int = _DEEPEST) -> list[str]:
    """The files of a folder and of those in it, for images without a class. A link to a folder is not followed."""
    found = []
    for name in _names(root, relative):
        path = f"{relative}/{name}" if relative else name
        place = os.path.join(root, path)
        inside = depth > 0 and os.path.isdir(place) and not os.path.islink(place)
        found += image_names(root, path, depth=depth - 1) if inside else [path]
    return found


def unsuitable(root: str, relative: str) -> str | None:
    """Why a file cannot be an image, as far as its name shows; it is not opened."""
    if os.path.isdir(os.path.join(root, relative)):
        return "is a folder inside the folder of a class. Fix: move its images up."
    if not relative.lower().endswith(SUFFIXES):
        return "is not a .png, .jpg or .jpeg file."
    return None


def _names(root: str, relative: str) -> list[str]:
    try:
        place = resolve_inside(root, relative) if relative else root
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries]
    except Refusal as exc:
        raise Refusal(f"{shown(relative)} {exc}") from None
    except NotADirectoryError:
        raise Refusal(f"{shown(relative)} is not a folder.") from None
    return sorted(name for name in names if not name.startswith(".") and name.lower() not in _LITTER)


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
    """(line number, fields). Lines are parsed one by one, so that an open quote cannot swallow the file."""
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


@dataclass(frozen=True, slots=True)
class Item:
    """One image file: its path below the root, the name of its class, and whose image it is."""

    path: str
    label: str
    person: str | None = None


@dataclass(frozen=True)
class Listing:
    """The files of a source before any of them was opened."""

    root: str
    """The real path that all files lie below."""
    items: dict[str, list[Item]]
    """By split; a split without files is not there."""
    classes: frozenset[str]
    """The names of the classes in the training data."""
    shown_root: str
    """The same place as the user named it."""
    broken: tuple[Broken, ...] = ()
    """What the listing alone shows to be unusable."""
