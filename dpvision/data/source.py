"""Detects what a source is and reads it: the word digits, an .npz, a CSV, a folder, a table or a packed store."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

import numpy as np

from dpvision.core.files import sync_folder
from dpvision.data import facts
from dpvision.data.dataset import Dataset, Findings, Split, Unlabelled
from dpvision.data.facts import Classes, Size
from dpvision.data.files import Refusal, name_errors, printable
from dpvision.data.image_files import Progress, Reading, inspect_listing, read_listing, read_unlabelled
from dpvision.data.listing import LAYOUTS, Listing, list_classes, list_folder, list_table
from dpvision.data.npz import has_features, read_npz, read_npz_rows, read_unlabelled_npz, read_unlabelled_rows
from dpvision.data.picture import RULE, Rule
from dpvision.data.store import META, Destination, FolderDestination, MemoryDestination, finish_store, read_store
from dpvision.data.test_part import require_share

Source = str | PathLike[str]
Window = str | tuple[float, float] | None
Columns = str | Mapping[str, str] | None
_LISTED = ("folder", "classes", "csv", "parquet", "arrow")
DIGITS = "digits"
_DIGITS_TO_TRAIN, _BRIGHTEST_DIGIT = 1_437, 16


def load(
    source: Source,
    *,
    classes: Classes = None,
    size: Size = None,
    channels: int | None = None,
    skip_broken: bool = False,
    test_share: float | None = None,
    window: Window = None,
    columns: Columns = None,
    task: str = "classes",
    group: str | None = None,
    rule: int = RULE,
) -> Dataset:
    """Read a data set, or raise a DataError that names the file, the reason and the fix.

    `source` is the word "digits" (./digits is a folder of this name), an .npz file with train_images and
    train_labels, a CSV file with `path,label[,person][,split]`, a folder with train/CLASS/x.png or CLASS/x.png, a
    Parquet file, a folder of Parquet files or of `datasets.save_to_disk`, or a packed store.

    `classes` is the number of classes or their names in order, `size` the height and width of the images (one number
    if they are square), `channels` 1 for grey and 3 for colour. They are public facts and should be declared; those
    that are not are inferred from the data and listed in `Dataset.inferred`. Image files are resized and recoloured;
    arrays must agree with the declaration.

    `skip_broken` leaves out image files that cannot be read and lists them in `Dataset.broken`. `test_share` is the
    share that becomes the test split if the source names no splits (0.2 by default; 0 for CSV files). `window` is the
    centre and width of the window of DICOM images, `columns` names the columns of a table
    ("image=img,label=fine_label"). `rule` is the version of the rule by which files become pixels; a model takes
    images by the rule that it was trained with.

    `task` is what labels are: one of the classes; several "labels" per image (in a table a list, text such as
    "edema|pneumonia", or a column for each declared label; in an .npz file (N, labels) with 1, 0, and -1 or NaN if
    unknown); or one of the "grades", which are classes in order. `group` names a column (in an .npz file the array
    test_GROUP) with the group of each image, which is read for the test split alone.
    """
    with name_errors(source):
        declared = facts.declare(classes=classes, size=size, channels=channels, task=task, group=group)
        how = _How.of(test_share=test_share, window=window, columns=columns, rule=rule, skip_broken=skip_broken)
    return _read(source, declared, MemoryDestination(), how)


def holds_features(source: Source) -> bool:
    """Return whether the source is an .npz file with train_features, for `load_rows`, and no train_images."""
    return detect_kind(source) == "npz" and has_features(Path(source))


def load_rows(source: Source, *, classes: Classes = None, task: str = "classes", group: str | None = None) -> Dataset:
    """Read an .npz file with train_features (N, d) and train_labels, and optionally test_*: rows, not images.

    A row is an "image" (1, d, 1) of float32, as estimators have it, but of any values: nothing is scaled. A row with
    NaN or infinity is read too; it is in no sum.
    """
    path = Path(source)
    with name_errors(path):
        declared = facts.declare(classes=classes, task=task, group=group)
        if detect_kind(source) != "npz":
            raise Refusal(
                "is not an .npz file of features. Fix: write it with numpy.savez with train_features and train_labels."
            )
    return read_npz_rows(path, declared)


def pack(
    source: Source,
    out: Source,
    *,
    classes: Classes = None,
    size: Size = None,
    channels: int | None = None,
    skip_broken: bool = False,
    test_share: float | None = None,
    window: Window = None,
    columns: Columns = None,
    task: str = "classes",
    progress: Progress | None = None,
) -> Path:
    """Pack a source into the store `out` and return its path.

    Images are copied into the files of the store one after the other, so they need not fit into memory. The store is
    written under another name next to `out` and renamed when it is complete and on disk, so `out` is complete or does
    not exist. `progress` is called with the number of images done and their total. Only the owner may read the store.
    """
    target = Path(out)
    with name_errors(source):
        declared = facts.declare(classes=classes, size=size, channels=channels, task=task)
        how = _How.of(test_share=test_share, window=window, columns=columns, skip_broken=skip_broken)
    with name_errors(target):
        if os.path.lexists(target):
            raise Refusal("already exists. Fix: remove it or choose another name.")
        if not target.parent.is_dir():
            raise Refusal("cannot be written because its folder does not exist.")
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".packing", dir=target.parent))
    try:
        destination = FolderDestination(temporary)
        dataset = _read(source, declared, destination, how, progress=progress)
        with name_errors(target):
            finish_store(dataset, temporary, destination=destination)
            os.rename(temporary, target)
            sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def check(
    source: Source,
    *,
    classes: Classes = None,
    size: Size = None,
    test_share: float | None = None,
    window: Window = None,
    columns: Columns = None,
    task: str = "classes",
    group: str | None = None,
) -> Findings:
    """Read every image without stopping at a broken one, and report what is there. Not for release.

    Raises a DataError only if the source cannot be read at all. Why `load` would refuse a source whose files are
    readable, such as an unknown class, is in `Findings.problems`.
    """
    kind = detect_kind(source)
    if kind not in _LISTED:
        return _describe(load(source, classes=classes, size=size, task=task))
    path = Path(source)
    with name_errors(path):
        how = _How.of(test_share=test_share, window=window, columns=columns)
        declared = facts.declare(classes=classes, size=size, task=task, group=group)
    listing, name = list_files(path, kind, how.columns, declared)
    with name_errors(path):
        return inspect_listing(listing, name, declared, how.reading)


def image_batches(
    path: Source,
    *,
    size: tuple[int, int],
    channels: int,
    at_a_time: int = 256,
    window: Window = None,
    rule: int = RULE,
) -> Iterator[Unlabelled]:
    """Yield the images of a folder, of one file, or of an .npz with test_images or images, unlabelled, in batches.

    Image files are resized to `size` and converted to `channels` (1 or 3) by the same rule as `load` reads them. An
    unreadable file is listed with its name and the reason, because a missing prediction would go unnoticed.
    Arrays must have this size; grey arrays may become colour. Images of an array are named by their number.
    """
    with name_errors(path):
        how = _How.of(window=window, rule=rule)
        if channels not in (1, 3):
            raise Refusal(f"cannot be read with {channels} channels. Fix: give 1 or 3.")
        is_folder = _is_folder(path)
        if not is_folder and Path(path).suffix.lower() == ".npz":
            yield from read_unlabelled_npz(Path(path), size=size, channels=channels, at_a_time=at_a_time)
        else:
            yield from read_unlabelled(Path(path), how.reading.rule, size=size, channels=channels, at_a_time=at_a_time)


def row_batches(path: Source, *, width: int, at_a_time: int = 256) -> Iterator[Unlabelled]:
    """Yield the rows of test_features or features of an .npz file, unlabelled, in batches; named by their number."""
    with name_errors(path):
        if detect_kind(path) != "npz":
            raise Refusal(
                "is not an .npz file of features, which this model takes. Fix: write it with numpy.savez(features=...)."
            )
        yield from read_unlabelled_rows(Path(path), width=width, at_a_time=at_a_time)


def _read(
    source: Source,
    declared: facts.Declared,
    destination: Destination,
    how: _How,
    *,
    progress: Progress | None = None,
) -> Dataset:
    """Read a source of any kind into a destination."""
    path, kind = Path(source), detect_kind(source)
    if kind in _LISTED:
        listing, name = list_files(path, kind, how.columns, declared)
        with name_errors(path):
            return read_listing(
                listing, path, declared, how.reading, name=name, destination=destination, progress=progress
            )
    if kind == "npz":
        dataset = read_npz(path, declared, destination=destination)
    else:
        if declared.group is not None:
            with name_errors(source):
                raise Refusal("has no column of groups. Fix: leave --group out, or use the source that it is made of.")
        finished = _read_digits(declared) if kind == DIGITS else read_store(path, declared)
        with name_errors(source):
            dataset = _copy_images(finished, destination)
    if progress is not None:
        total = sum(map(len, dataset.splits.values()))
        progress(total, total)
    return dataset


def list_files(
    path: Path, kind: str, columns: dict[str, str] | None = None, declared: facts.Declared = facts.NOTHING
) -> tuple[Listing, str]:
    """Return the listing of a folder, a CSV file or a table, and the name of the data set."""
    with name_errors(path):
        if declared.group is not None and kind in ("folder", "classes"):
            raise Refusal("has no column of groups. Fix: leave --group out, or list the images in a CSV file.")
        if declared.task == "labels" and kind in ("folder", "classes"):
            raise Refusal(
                "is a folder of classes, so each image has one label. Fix: list the images in a CSV file, with a "
                "column label such as edema|pneumonia; or leave --task labels out."
            )
        if kind == "folder":
            return list_folder(path), printable(path.resolve().name)
        if kind == "classes":
            return list_classes(path), printable(path.resolve().name)
        if kind in ("parquet", "arrow"):
            from dpvision.data.tables import list_tables

            return list_tables(path, kind, columns or {}, declared), printable(path.resolve().stem)
        return list_table(path, declared), printable(path.stem)


def detect_kind(source: Source) -> str:
    """Return "digits", "npz", "csv", "folder", "classes", "parquet", "arrow" or "store", by names alone."""
    if source == DIGITS:
        return DIGITS
    path = Path(source)
    with name_errors(source):
        if _is_folder(path):
            if os.path.lexists(path / META):
                return "store"
            return _kind_of_folder(path)
        kind = path.suffix.lower().removeprefix(".")
        if kind not in ("npz", "csv", "parquet"):
            raise Refusal(
                "is not a data set. Fix: give an .npz, .csv or .parquet file, a folder of images or a packed store."
            )
        return kind


def _kind_of_folder(path: Path) -> str:
    if os.path.lexists(path / "dataset_dict.json") or os.path.lexists(path / "state.json"):
        return "arrow"
    if os.path.lexists(path / "train"):
        return "folder"
    with os.scandir(path) as entries:
        names = {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    if any(name.lower().endswith(".parquet") for name in [*names, *_names_in(path / "data")]):
        return "parquet"
    if "test" not in names and "val" not in names and any(names.values()):
        return "classes"
    raise Refusal(f"has no folder named train. Fix: use one of the layouts{LAYOUTS}")


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_folder(path: Source) -> bool:
    """Return whether the path is a folder; refuse what is neither a folder nor a regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise Refusal("there is no such file or folder.") from None
    except ValueError:
        raise Refusal("its path contains a character that no path may contain.") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise Refusal("is neither a regular file nor a folder.")
    return stat.S_ISDIR(mode)


def _describe(dataset: Dataset) -> Findings:
    """Return the findings about arrays that passed every check."""
    total = sum(map(len, dataset.splits.values()))
    _, height, width, channels = dataset.train.images.shape
    counts = {}
    for split, part in dataset.splits.items():
        several = part.labels.ndim == 2
        numbers = dict(enumerate((part.labels == 1).sum(0).tolist())) if several else Counter(part.labels.tolist())
        counts[split] = {name: numbers.get(index, 0) for index, name in enumerate(dataset.classes)}
    return Findings(
        name=dataset.name,
        counts=counts,
        sizes={(height, width): total},
        size=(height, width),
        channels={channels: total},
        persons=None if dataset.train.persons is None else len(np.unique(dataset.train.persons)),
        problems=(),
        broken=(),
    )


def _copy_images(dataset: Dataset, destination: Destination) -> Dataset:
    """Return the data set with its images in the destination."""
    parts = dataset.splits
    destination.require(sum(part.images.nbytes for part in parts.values()) if destination.copies else 0)
    copied = {
        split: replace(part, images=destination.copy(f"{split}_images", part.images)) for split, part in parts.items()
    }
    return replace(dataset, **copied)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _How:
    """How a source is read, after its options were checked."""

    reading: Reading
    columns: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        *,
        test_share: float | None = None,
        window: Window = None,
        columns: Columns = None,
        rule: int = RULE,
        skip_broken: bool = False,
    ) -> _How:
        require_share(test_share)
        if rule not in (1, RULE):
            raise Refusal(f"cannot be read by rule {rule!r}, which this dpvision does not know. Fix: update dpvision.")
        reading = Reading(Rule(rule, facts.parse_window(window)), test_share, skip_broken)
        return _How(reading, facts.parse_columns(columns))


def _read_digits(declared: facts.Declared) -> Dataset:
    """Read scikit-learn's public 8x8 digits: 1,437 to train and 360 to test, always in the same order."""
    sklearn = find_spec("sklearn")  # found but not imported, which takes longer than everything else here
    assert sklearn and sklearn.submodule_search_locations
    table = np.loadtxt(Path(sklearn.submodule_search_locations[0], "datasets/data/digits.csv.gz"), delimiter=",")
    images, labels = table[:, :-1], table[:, -1]
    pixels = np.rint(images * 255 / _BRIGHTEST_DIGIT).astype(np.uint8).reshape(-1, 8, 8, 1)
    names = tuple(str(number) for number in range(10))
    with name_errors(DIGITS):
        if declared.task == "labels":
            raise Refusal("has one label per image. Fix: leave --task labels out.")
        facts.match_stored(names, declared)
        facts.require_shape(pixels.shape, declared)
    order = np.random.default_rng(0).permutation(len(pixels))
    train, test = (
        Split(images=pixels[part], labels=labels[part].astype(np.int64), persons=None)
        for part in (order[:_DIGITS_TO_TRAIN], order[_DIGITS_TO_TRAIN:])
    )
    return Dataset(DIGITS, names, train, None, test, (), task=declared.task)
