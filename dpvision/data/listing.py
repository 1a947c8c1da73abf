"""Lists the image files of a folder or a CSV file, before any of them is opened."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dpvision.data import limits
from dpvision.data.dataset import SPLITS, Broken
from dpvision.data.facts import TEST_SHARE, Declared, join_cell, require_class_name, require_label_columns, split_cell
from dpvision.data.files import Refusal, file_length, open_regular, printable, resolve_inside

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".dcm", ".dicom")
_NO_SUFFIX = re.compile(r"[^.]*|.*\.[0-9]+")  # names of DICOM files, which often are UIDs
_SYSTEM_FILES = ("thumbs.db", "desktop.ini", "dicomdir")
"""Files that operating systems create. Names that start with a dot are ignored as well."""
_MAX_DEPTH = 8
"""Maximum number of levels of folders below a folder of images to predict."""
MAX_GROUP_LETTERS = 60
_COLUMNS = ("path", "label", "person", "split")
_HEADER_FIX = "Fix: start the file with the line path,label or path,label,person,split."
LAYOUTS = (
    "\n  cat/1.png, dog/2.png                               a folder for each class; a test part is set aside"
    "\n  train/cat/1.png, train/dog/2.png, test/cat/3.png   a folder for each split (train, val, test) and class"
    "\n  images.csv with path,label and photos/1.png,cat     a line per image; columns person and split are optional"
)
"""The accepted layouts of image files, with an example of each, at the end of a message."""


def list_folder(path: Path) -> Listing:
    """List all files below the folder, sorted by name. A link to a folder must not lead out of `path`."""
    root = os.path.realpath(path)
    items: dict[str, list[Item]] = {}
    broken: list[Broken] = []
    classes: set[str] = set()
    for split in SPLITS:
        if not os.path.lexists(os.path.join(root, split)):
            continue
        split_items: list[Item] = []
        for label in _list_names(root, split):
            relative = f"{split}/{label}"
            if not os.path.isdir(os.path.join(root, relative)):
                reason = f"is not in the folder of a class. Fix: move it to {split}/CLASS/."
                broken.append(Broken(printable(relative), reason))
                continue
            classes.update({label} if split == "train" else ())
            split_items += _list_class(root, relative, label, broken)
        if split_items:
            items[split] = split_items
    return Listing(root, items, frozenset(classes), str(path), tuple(broken))


def list_classes(path: Path) -> Listing:
    """List a folder whose subfolders are classes, without a split. Other files next to them are ignored."""
    root = os.path.realpath(path)
    items: list[Item] = []
    broken: list[Broken] = []
    classes: set[str] = set()
    for name in _list_names(root, ""):
        if os.path.isdir(os.path.join(root, name)):
            classes.add(name)
            items += _list_class(root, name, name, broken)
        elif name.lower().endswith(SUFFIXES):
            broken.append(Broken(printable(name), "is not in the folder of a class. Fix: move it to CLASS/."))
    return Listing(
        root, {"train": items} if items else {}, frozenset(classes), str(path), tuple(broken), share=TEST_SHARE
    )


def _list_class(root: str, relative: str, label: str, broken: list[Broken]) -> list[Item]:
    """List the files in the folder of a class, and add those that cannot be images to `broken`."""
    require_class_name(label)
    items = []
    for name in _list_names(root, relative):
        problem = find_problem(root, f"{relative}/{name}")
        if problem:
            broken.append(Broken(printable(f"{relative}/{name}"), problem))
        else:
            items.append(Item(f"{relative}/{name}", label))
    return items


def list_images(root: str, relative: str = "", *, depth: int = _MAX_DEPTH) -> list[str]:
    """List the files of a folder and its subfolders, for images without a class. Links to folders are not followed."""
    paths = []
    for name in _list_names(root, relative):
        path = f"{relative}/{name}" if relative else name
        full = os.path.join(root, path)
        is_folder = depth > 0 and os.path.isdir(full) and not os.path.islink(full)
        paths += list_images(root, path, depth=depth - 1) if is_folder else [path]
    return paths


def find_problem(root: str, relative: str) -> str | None:
    """Return why a file cannot be an image, judged by its name and kind alone; None if it can be one."""
    if os.path.isdir(os.path.join(root, relative)):
        return "is a folder inside the folder of a class. Fix: move its images up."
    name = relative.rpartition("/")[2].lower()
    if not name.endswith(SUFFIXES) and not _NO_SUFFIX.fullmatch(name):
        return f"is not an image by its name, which ends in none of {', '.join(SUFFIXES)}."
    return None


def _list_names(root: str, relative: str) -> list[str]:
    try:
        with os.scandir(resolve_inside(root, relative) if relative else root) as entries:
            names = [entry.name for entry in entries]
    except Refusal as exc:
        raise Refusal(f"{printable(relative)} {exc}") from None
    except NotADirectoryError:
        raise Refusal(f"{printable(relative)} is not a folder.") from None
    return sorted(name for name in names if not name.startswith(".") and name.lower() not in _SYSTEM_FILES)


def list_table(path: Path, declared: Declared) -> Listing:
    """List one item per line. Paths are relative to the folder of the CSV file; an empty split means train.

    With the task labels, either the column label has cells such as "edema|pneumonia", or each declared label has a
    column of its own with 1, 0, or nothing if it is unknown.
    """
    rows = _read_rows(path)
    columns, of_labels = _parse_columns(next(rows, (1, []))[1], declared)
    group = declared.group if declared.group in columns else None
    if declared.group is not None and group is None:
        raise Refusal(f"has no column {printable(declared.group)!r} of groups. Fix: name one of its columns (--group).")
    items: dict[str, list[Item]] = {}
    labels: dict[str, str] = {}
    seen: set[str] = set()
    for number, row in rows:
        if len(row) != len(columns):
            raise Refusal(f"line {number} has {len(row)} fields, the first line has {len(columns)}.")
        values = dict(zip(columns, row, strict=True))
        split = values.get("split", "").strip() or "train"
        if split not in SPLITS:
            raise Refusal(f"line {number} has the split {printable(split)!r}. Fix: use train, val or test.")
        plain = str(PurePosixPath(values["path"]))  # ./a.png and a.png are one record
        if plain in seen:
            raise Refusal(f"line {number} lists {printable(values['path'])} again. Fix: list every image once.")
        seen.add(plain)
        if of_labels:
            values["label"] = join_cell({name: values[name] for name in of_labels}, where=f"line {number}")
        items.setdefault(split, []).append(_parse_item(values, labels, number=number, declared=declared))
    train = items.get("train", [])
    ordered = {split: items[split] for split in SPLITS if split in items}
    root, share = os.path.realpath(path.parent), None if "split" in columns else 0.0
    classes = names_in((item.label for item in train), declared.task)
    return Listing(root, ordered, classes, str(path.parent), share=share)


def names_in(cells: Iterable[str], task: str) -> frozenset[str]:
    """Return the classes, or with the task labels all names in the cells."""
    if task != "labels":
        return frozenset(cells)
    return frozenset(name for cell in set(cells) for names in split_cell(cell) for name in names if name)


def _parse_item(values: dict[str, str], labels: dict[str, str], *, number: int, declared: Declared) -> Item:
    task, group = declared.task, values.get(declared.group or "", "")
    label, person = values["label"].strip(), values.get("person")
    if not values["path"]:
        raise Refusal(f"line {number} has no path.")
    if not label and task != "labels":
        raise Refusal(f"line {number} has no label.")
    if label not in labels:
        for name in (label,) if task != "labels" else [n for names in split_cell(label) for n in names if n]:
            require_class_name(name)
    if person is not None and not person.strip():
        raise Refusal(f"line {number} has no person. Fix: name one on every line, or leave the column out.")
    # One string object per class, not one per line.
    person = None if person is None else person.strip()
    return Item(values["path"], labels.setdefault(label, label), person, group_name(group))


def group_name(value: object) -> str:
    """Return the name of a group, shortened and printable; empty if it is not stated."""
    return "" if value is None else printable(str(value).strip())[:MAX_GROUP_LETTERS]


def _parse_columns(first: list[str], declared: Declared) -> tuple[list[str], tuple[str, ...]]:
    """Return the columns, and those of them that are labels."""
    names = (declared.names or ()) if declared.task == "labels" else ()
    kept = (*names, declared.group)
    columns = [name.strip() if name.strip() in kept else name.strip().lower() for name in first]
    of_labels = () if "label" in columns else names
    require_label_columns(of_labels)
    if missing := [name for name in of_labels if name not in columns]:
        raise Refusal(
            f"has neither a column label nor one named {printable(missing[0])!r}; its first line is "
            f"{printable(','.join(first))!r}. Fix: declare the names of its columns of labels, such as "
            "--classes edema,pneumonia."
        )
    if len(set(columns)) != len(columns):
        raise Refusal(f"has duplicate columns: {printable(','.join(columns))}.")
    if not {"path", *(() if of_labels else ("label",))} <= set(columns):
        raise Refusal(f"has no columns path and label; its first line is {printable(','.join(first))!r}. {_HEADER_FIX}")
    unknown = [name for name in columns if name not in (*_COLUMNS, *of_labels, declared.group)]
    if unknown:
        raise Refusal(
            f"has the unknown column {printable(unknown[0])!r}. Fix: remove it; or, if it names groups such as sex or "
            f"site, use --group {printable(unknown[0])}."
        )
    return columns, of_labels


def _read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields). Lines are parsed separately, so that an open quote cannot consume the file."""
    with open_regular(path) as file:
        if file_length(file) > limits.CSV_BYTES:
            raise Refusal(f"is larger than {limits.CSV_BYTES // limits.MIB} MiB.")
        number = 0
        while raw := file.readline(limits.CSV_LINE_BYTES + 1):
            number += 1
            if len(raw) > limits.CSV_LINE_BYTES:
                raise Refusal(f"line {number} has more than {limits.CSV_LINE_BYTES:,} bytes.")
            if b"\0" in raw:
                raise Refusal(f"line {number} contains a NUL character. Fix: save it as UTF-8 text.")
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
    """One image: its path below the root (or the row of a table, for messages), its class or labels, and its person."""

    path: str
    label: str
    person: str | None = None
    group: str = ""


@dataclass(frozen=True)
class Listing:
    """The files of a source, before any of them is opened."""

    root: str
    """The real path of the folder that contains all files."""
    items: dict[str, list[Item]]
    """The files of each split that has any."""
    classes: frozenset[str]
    """The names of the classes in the training data."""
    given_root: str
    """The root as the user wrote it, for messages."""
    broken: tuple[Broken, ...] = ()
    """Files that cannot be used because of their name or place."""
    share: float | None = None
    """The share that is set aside as the test split by default; None if the source names its splits."""
    contents: Callable[[str], Iterator[bytes | None]] | None = None
    """The bytes of the images of a split, in the order of its items; None if each item is a separate file."""
