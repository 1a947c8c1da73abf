"""Facts about a data set that are declared or inferred: classes, image size, channels; and requirements on arrays.

If the image size is not declared, it is the size of the images if they all have the same size, or else `MIXED_SIZE`, a
constant that does not depend on the images. If the channels are not declared, they are 1 if all images are grey, or
else 3. Both are recorded as inferred, because the data decided, and the card lists them as read from the data.

Classes are declared by the user, because they are public, or inferred from the training data and recorded as inferred.
A declared number k stands for the names "0" to "k-1". In sources with numbered labels (.npz) a label is an index into
the names. In sources with named labels (folders, CSV) it is one of the names, so with a declared number k labels must
be numbers below k. Inferred names are sorted, as numbers if all of them are numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpvision.data import limits
from dpvision.data.files import Refusal, printable

Classes = int | Sequence[str] | None
Size = int | tuple[int, int] | None
INFERABLE = ("classes", "image size", "channels")
MIXED_SIZE = (64, 64)
"""The size of images of several sizes, unless another one is declared."""
TEST_SHARE = 0.2
"""The fraction that is set aside as the test split of a source without one, unless another one is declared."""
FEWEST = {"classes": 2, "labels": 1, "grades": 2}
MOST = {"classes": limits.CLASSES, "labels": limits.LABELS, "grades": limits.GRADES}
"""The least and the largest number of classes of each task."""
SEPARATOR, UNSURE = "|", "?"
"""Between the labels in a cell, and before the name of one that is unknown: "edema|?pneumonia"."""
RESERVED = ("path", "image", "images", "features", "label", "labels", "person", "persons", "patient_id", "split")
COLUMN_ROLES = ("image", "label", "person", "split")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def declare(
    *,
    classes: Classes = None,
    size: Size = None,
    channels: int | None = None,
    task: str = "classes",
    group: str | None = None,
) -> Declared:
    """Return the declared facts; a Refusal if no data set can have them."""
    if task not in MOST:
        raise Refusal(f"cannot have the task {task!r}. Fix: use {', '.join(MOST)}.")
    names, sides = _declared_names(classes, task), _declared_size(size)
    if group is not None and (not group.strip() or group.strip().lower() in RESERVED):
        raise Refusal(f"cannot have groups in the column {group!r}. Fix: name a column such as sex, site or device.")
    if channels not in (None, 1, 3):
        raise Refusal(f"cannot have images with {channels!r} channels. Fix: use 1 for grey, 3 for colour.")
    return Declared(names, isinstance(classes, int), sides, channels, task, group)


def require_label_columns(names: Sequence[str]) -> None:
    """Refuse columns of labels that have the name of another role: a label would be read as the person, say."""
    wrong = next((name for name in names if name.strip().lower() in RESERVED), None)
    if wrong is not None:
        raise Refusal(
            f"cannot have a column of its own for the label {wrong!r}, which is the name of another column. "
            "Fix: rename it, or give all labels of an image in one column label, such as edema|pneumonia."
        )


def _declared_names(classes: Classes, task: str) -> tuple[str, ...] | None:
    if classes is None:
        return None
    if isinstance(classes, int):
        if not FEWEST[task] <= classes <= MOST[task]:
            raise Refusal(f"cannot have {classes} {task}. Fix: use {FEWEST[task]} to {MOST[task]:,}.")
        return tuple(str(number) for number in range(classes))
    names = tuple(classes)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in names):
        raise Refusal(f"cannot have the classes {classes!r}. Fix: give their number or a list of names.")
    require_class_names(names, task)
    return names


def _declared_size(size: Size) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides) or math.prod(sides) > limits.PIXELS:
        raise Refusal(f"cannot have images of size {size!r}. Fix: give one number or (height, width).")
    return sides[0], sides[1]


def parse_window(window: str | tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the centre and width of a window, from numbers or from text such as "40,400"."""
    if window is None:
        return None
    try:
        centre, width = (float(part) for part in (window.split(",") if isinstance(window, str) else window))
    except (TypeError, ValueError):
        centre, width = 0.0, 0.0
    if not (math.isfinite(centre) and math.isfinite(width) and 0 < width < 1e9 and abs(centre) < 1e9):
        raise Refusal(f"cannot have the window {window!r}. Fix: give its centre and its width, such as 40,400.")
    return centre, width


def parse_columns(columns: str | Mapping[str, str] | None) -> dict[str, str]:
    """Return the columns of a table by what they hold, from a mapping or text such as "image=img,label=fine_label"."""
    if columns is None:
        return {}
    if isinstance(columns, str):
        pairs = [part.partition("=") for part in columns.split(",")]
        named = {role.strip(): name.strip() for role, equals, name in pairs if equals}
        complete = len(named) == len(pairs)
    else:
        named, complete = dict(columns), True
    if not complete or not set(named) <= set(COLUMN_ROLES) or not all(named.values()):
        raise Refusal(
            f"cannot have the columns {columns!r}. Fix: name columns of the table, such as image=img,label=fine_label; "
            f"known are {', '.join(COLUMN_ROLES)}."
        )
    return named


def require_shape(shape: tuple[int, ...], declared: Declared) -> None:
    """Refuse arrays that contradict the declaration: only image files are resized and recoloured."""
    if declared.size is not None and shape[1:3] != declared.size:
        raise Refusal(
            f"contains images of {shape[1]}x{shape[2]}, not {declared.size[0]}x{declared.size[1]}. "
            "Fix: declare their size, or resize them before saving (only image files are resized)."
        )
    if declared.channels is not None and shape[3] != declared.channels:
        raise Refusal(f"contains images with {shape[3]} channels, not {declared.channels}. Fix: declare their number.")


def require_class_names(names: Sequence[str], task: str = "classes") -> None:
    """Refuse too few or too many classes, and names that are not unique, short and printable."""
    if not FEWEST[task] <= len(names) <= MOST[task]:
        only = f" ({printable(names[0])!r})" if names else ""
        raise Refusal(f"has {len(names):,} {task}{only}. Fix: use {FEWEST[task]} to {MOST[task]:,} {task}.")
    if len(set(names)) != len(names):
        raise Refusal(f"has two {task} with the same name.")
    for name in names:
        require_class_name(name)
        if task == "labels" and (SEPARATOR in name or name.startswith(UNSURE)):
            raise Refusal(
                f"has a label named {printable(name)!r}. Fix: use a name without {SEPARATOR!r}, not beginning with "
                f"{UNSURE!r}."
            )


def require_class_name(name: str) -> None:
    """Refuse a name that is empty, long or not printable."""
    if not name.strip() or len(name) > limits.CLASS_NAME_CHARACTERS or not name.isprintable():
        raise Refusal(f"has a class named {printable(name)!r}. Fix: use a short name without control characters.")


def resolve_numbered(labels: Mapping[str, np.ndarray], declared: Declared) -> tuple[str, ...]:
    """Return the names of the classes for numbered labels, or refuse a label that is not among them."""
    lowest = min(int(array.min()) for array in labels.values())
    if lowest < 0:
        raise Refusal(f"has the label {lowest}. Fix: number the classes from 0.")
    names = declared.names
    if names is None:
        count = int(labels["train"].max()) + 1
        if not 2 <= count <= MOST[declared.task]:
            raise Refusal(
                f"has labels up to {count - 1}. Fix: number the classes from 0; 2 to {MOST[declared.task]:,} are "
                "possible."
            )
        names = tuple(str(number) for number in range(count))
    for split, array in labels.items():
        if int(array.max()) >= len(names):
            raise Refusal(
                f"has the label {int(array.max())} in {split}, but the classes are 0 to {len(names) - 1}. "
                "Fix: correct the label or declare more classes."
            )
    return names


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names sorted, as numbers if all are numbers, so that class "10" comes after class "9"."""
    listed = list(names)
    if all(_NUMBER.fullmatch(name) for name in listed):
        return tuple(sorted(listed, key=int))
    return tuple(sorted(listed))


def resolve_named(present: Iterable[str], declared: Declared) -> tuple[str, ...]:
    """Return the names of the classes for named labels, given the names that are present in the training data."""
    names = sort_names(present)
    if declared.names is None:
        require_class_names(names, declared.task)
        if declared.task == "grades" and not all(_NUMBER.fullmatch(name) for name in names):
            raise Refusal(
                "has grades that are not numbers, so their order is not known. Fix: declare them in order, such as "
                "--classes none,mild,severe."
            )
        return names
    unknown = sorted(set(names) - set(declared.names))
    if unknown:
        raise Refusal(describe_unknown(unknown[0], declared.names, numbered=declared.numbered))
    return declared.names


def describe_unknown(name: str, names: Sequence[str], *, numbered: bool = False) -> str:
    """Return the message about a class that is not among the classes."""
    listed = ", ".join(printable(known) for known in names[:10]) + (", ..." if len(names) > 10 else "")
    fix = "declare the names of the classes instead of their number" if numbered else "correct the label or declare it"
    return f"has the class {printable(name)!r}, which is none of: {listed}. Fix: {fix}."


def match_stored(stored: tuple[str, ...], declared: Declared) -> bool:
    """Return whether the stored class names are declared now; refuse a declaration that contradicts them.

    A number k agrees with any k names, but declares only the names "0" to "k-1".
    """
    names = declared.names
    if names is None:
        return False
    if names != stored and not (declared.numbered and len(names) == len(stored)):
        raise Refusal(describe_unknown(next((n for n in stored if n not in names), stored[0]), names))
    return names == stored


def image_shape(shape: tuple[int, ...], *, name: str) -> tuple[int, int, int, int]:
    """Return (N, H, W, C) for an array that may lack the last axis; refuse other shapes."""
    full = (*shape, 1) if len(shape) == 3 else shape
    if len(full) != 4 or full[3] not in (1, 3):
        hint = " The channels come last: numpy.moveaxis(images, 1, -1)." if len(full) == 4 and full[1] in (1, 3) else ""
        raise Refusal(
            f"has {name} of shape {shape}. Fix: save images as (N, H, W), (N, H, W, 1) or (N, H, W, 3).{hint}"
        )
    if 0 in full:
        raise Refusal(f"has {name} of shape {shape}, which is empty.")
    if full[1] * full[2] > limits.PIXELS:
        raise Refusal(f"has {name} of {full[1]}x{full[2]} pixels; at most {limits.PIXELS:,} per image are allowed.")
    return full[0], full[1], full[2], full[3]


def image_dtype(dtype: np.dtype, *, name: str) -> np.dtype:
    """Return the type in which images of `dtype` are stored: uint8, or float32 for any float. Refuse other types."""
    if dtype == np.uint8:
        return np.dtype(np.uint8)
    if dtype.kind == "f":
        return np.dtype(np.float32)
    raise Refusal(
        f"has {name} of type {dtype}. Fix: save images as uint8 (0 to 255) or as float32 (0 to 1), "
        "for example images.astype(numpy.uint8)."
    )


def require_unit_range(block: np.ndarray, *, name: str) -> None:
    """Refuse floats outside of [0, 1]. NaN fails both comparisons."""
    if block.dtype.kind == "f" and not (block.min() >= 0 and block.max() <= 1):
        raise Refusal(f"has {name} with values that are NaN or outside of [0, 1]. Fix: scale floats to [0, 1].")


def require_labels(shape: tuple[int, ...], dtype: np.dtype, *, name: str, count: int, task: str = "classes") -> None:
    """Refuse an array that is not one integer label, or with the task labels one row of labels, per image."""
    if task == "labels":
        if dtype.kind not in "iufb" or len(shape) != 2 or shape[0] != count or not 1 <= shape[1] <= limits.LABELS:
            raise Refusal(
                f"has {name} of type {dtype} and shape {shape} for {count:,} images. Fix: save one row of 1 to "
                f"{limits.LABELS:,} labels per image: 1, 0, or -1 (or NaN) if unknown."
            )
        return
    if len(shape) == 2 and shape[1] > 1:
        raise Refusal(
            f"has {name} of shape {shape}, several labels per image. Fix: train on it with --task labels, or save one "
            "label per image."
        )
    if dtype.kind not in "iu":
        raise Refusal(f"has {name} of type {dtype}. Fix: save labels as integers from 0.")
    _require_one_each(shape, name=name, count=count, what="label")


def as_labels(values: np.ndarray, *, name: str) -> np.ndarray:
    """Return labels (N, L) as int8: 1, 0, or -1 if unknown, which NaN is too. Refuse other values."""
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
    if not np.isin(values, (-1, 0, 1)).all():
        raise Refusal(f"has {name} with values other than 1, 0, and -1 (or NaN) for unknown. Fix: correct them.")
    return values.astype(np.int8)


def resolve_columns(widths: Mapping[str, int], declared: Declared) -> tuple[str, ...]:
    """Return the names of the labels, given the number of columns of labels in each split."""
    count = next(iter(widths.values()))
    if set(widths.values()) != {count}:
        raise Refusal(f"has {' and '.join(f'{n} labels in {s}' for s, n in widths.items())}. Fix: save the same ones.")
    if declared.names is None:
        return tuple(str(number) for number in range(count))
    if len(declared.names) != count:
        raise Refusal(f"has {count:,} labels per image, but {len(declared.names):,} are declared. Fix: declare all.")
    return declared.names


def split_cell(cell: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels that a cell states, and those that it states to be unknown: "edema|?pneumonia"."""
    parts = [part.strip() for part in cell.split(SEPARATOR)] if cell.strip() else []
    stated = tuple(part for part in parts if not part.startswith(UNSURE))
    unknown = tuple(part[len(UNSURE) :].strip() for part in parts if part.startswith(UNSURE))
    if len(set(parts)) != len(parts) or set(stated) & set(unknown) or ("" in unknown and len(parts) > 1):
        raise Refusal(f"has the labels {printable(cell)!r}, in which one is stated twice. Fix: state each once.")
    if "" in stated:
        raise Refusal(f"has the labels {printable(cell)!r}, one of which is empty. Fix: use edema{SEPARATOR}pneumonia.")
    return stated, unknown


def join_cell(values: Mapping[str, object], *, where: str) -> str:
    """Return the cell for columns of labels: 1, 0, or unknown (-1, empty or NaN)."""
    known = {1.0: "", -1.0: UNSURE}
    parts = []
    for name, value in values.items():
        text = str(value).strip().lower()
        try:
            number = {"": -1.0, "none": -1.0, "nan": -1.0, "true": 1.0, "false": 0.0}.get(text)
            number = float(text) if number is None else number
        except ValueError:
            number = math.inf
        if number not in (1.0, 0.0, -1.0):
            raise Refusal(
                f"{where} has {printable(text)!r} for the label {printable(name)!r}. Fix: use 1, 0, or -1 (or nothing) "
                "if it is unknown."
            )
        if number:
            parts.append(known[number] + name)
    return SEPARATOR.join(parts)


def cells_to_labels(cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the labels (N, L) that cells state; a cell "?" states that all are unknown."""
    number, rows = {name: place for place, name in enumerate(names)}, dict[str, np.ndarray]()
    for cell in set(cells):
        stated, unknown = split_cell(cell)
        row = np.full(len(names), -1 if unknown == ("",) else 0, np.int8)
        row[[number[name] for name in stated]] = 1
        row[[number[name] for name in unknown if name]] = -1
        rows[cell] = row
    return np.stack([rows[cell] for cell in cells])


def require_person_ids(shape: tuple[int, ...], dtype: np.dtype, *, name: str, count: int) -> None:
    """Refuse an array that is not one person id per image, integer or text."""
    if dtype.kind not in "iuUS":
        raise Refusal(f"has {name} of type {dtype}. Fix: save person ids as integers or text.")
    _require_one_each(shape, name=name, count=count, what="person")


def _require_one_each(shape: tuple[int, ...], *, name: str, count: int, what: str) -> None:
    if shape not in ((count,), (count, 1)):
        raise Refusal(f"has {name} of shape {shape} for {count:,} images. Fix: give every image one {what}.")


def require_same_kind(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, np.dtype]) -> None:
    """Refuse splits whose images have different sizes, channels or types."""
    first = next(iter(shapes))
    for split, shape in shapes.items():
        if shape[1:] != shapes[first][1:] or dtypes[split] != dtypes[first]:
            raise Refusal(
                f"has {split} images of {_describe_kind(shape, dtypes[split])} but {first} images of "
                f"{_describe_kind(shapes[first], dtypes[first])}. Fix: make them the same."
            )


def index_persons(ids: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return indices 0..P-1 in the sorted order of the ids, with one numbering for all splits."""
    if not ids:
        return {}
    kinds = {array.dtype.kind in "US" for array in ids.values()}
    if len(kinds) > 1:
        raise Refusal("has person ids that are text in one split and numbers in another. Fix: use one of the two.")
    values = [array.reshape(-1) for array in ids.values()]
    if np.result_type(*values).kind == "f":  # int64 and uint64, which float64 would round
        values = [array.astype(object) for array in values]
    _, indices = np.unique(np.concatenate(values), return_inverse=True)
    ends = np.cumsum([array.size for array in ids.values()])[:-1]
    return dict(zip(ids, np.split(indices.astype(np.int64, copy=False), ends), strict=True))


def _describe_kind(shape: tuple[int, ...], dtype: np.dtype) -> str:
    return f"{shape[1]}x{shape[2]}x{shape[3]} {dtype}"


@dataclass(frozen=True)
class Declared:
    """Facts that the user declared about a data set; None for each that is to be inferred from the data."""

    names: tuple[str, ...] | None
    numbered: bool
    """Whether the names stand for a declared number, which only changes the advice in messages."""
    size: tuple[int, int] | None
    """(height, width)."""
    channels: int | None
    task: str = "classes"
    group: str | None = None
    """The column of groups, which is only read if it is named here, and only for the test split."""

    @property
    def inferred(self) -> tuple[str, ...]:
        """The names of the facts that are to be inferred from the data."""
        values = zip(INFERABLE, (self.names, self.size, self.channels), strict=True)
        return tuple(fact for fact, value in values if value is None)


NOTHING = Declared(None, False, None, None)
"""No declared fact."""
