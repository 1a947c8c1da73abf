"""Finds out what a source is and reads it: the word digits, an .npz, a CSV, a folder of images or a packed store."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from dpvision.core.files import sync_folder
from dpvision.data import facts
from dpvision.data.dataset import Dataset, Split
from dpvision.data.facts import Classes, Size
from dpvision.data.files import Refusal, named, shown
from dpvision.data.image_files import Progress, read_listing
from dpvision.data.listing import Listing, list_folder, list_table
from dpvision.data.npz import read_npz
from dpvision.data.store import META, FolderRoom, MemoryRoom, Room, finish_store, read_store

Source = str | PathLike[str]
DIGITS = "digits"
_DIGITS_TO_TRAIN, _BRIGHTEST_DIGIT = 1_437, 16


def load(
    source: Source,
    *,
    classes: Classes = None,
    size: Size = None,
    channels: int | None = None,
    skip_broken: bool = False,
) -> Dataset:
    """Reads a data set, or raises a DataError that names the file, the reason and the fix.

    `source` is the word "digits" (./digits is a folder of that name), an .npz file with train_images and
    train_labels, a CSV file with `path,label[,person][,split]`, a folder with train/CLASS/x.png, or a packed store.

    `classes` is the number of classes or their names in order, `size` the height and width of the images (one number
    if they are square), `channels` 1 for gray and 3 for colour. They are public facts and should be declared; what is
    not declared is read off the data and listed in `Dataset.inferred`. Image files are resized and recoloured; arrays
    must have what is declared.

    `skip_broken` leaves image files out that cannot be read and lists them in `Dataset.broken`.
    """
    return read_source(
        source, classes=classes, size=size, channels=channels, skip_broken=skip_broken, room=MemoryRoom()
    )


def pack(
    source: Source,
    out: Source,
    *,
    classes: Classes = None,
    size: Size = None,
    channels: int | None = None,
    skip_broken: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Writes the store `out` and returns its path.

    The images go from the source into the files of the store without being in memory together. The store is written
    under another name next to `out` and renamed when it is complete and on the disk, so it is there whole or not at
    all. `progress` is called with the number of images done and their total. Only the owner may read the store.
    """
    target = Path(out)
    with named(target):
        if os.path.lexists(target):
            raise Refusal("is there already. Fix: remove it or choose another name.")
        if not target.parent.is_dir():
            raise Refusal("cannot be written because its folder does not exist.")
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".packing", dir=target.parent))
    try:
        room = FolderRoom(temporary)
        dataset = read_source(
            source,
            classes=classes,
            size=size,
            channels=channels,
            skip_broken=skip_broken,
            room=room,
            progress=progress,
        )
        with named(target):
            finish_store(dataset, temporary, room=room)
            os.rename(temporary, target)
            sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def read_source(
    source: Source,
    *,
    classes: Classes,
    size: Size,
    channels: int | None,
    skip_broken: bool,
    room: Room,
    progress: Progress | None = None,
) -> Dataset:
    """`load` with a choice of where the images are put."""
    path = Path(source)
    kind = kind_of(source)
    with named(path):
        declared = facts.declare(classes=classes, size=size, channels=channels)
    if kind in ("folder", "csv"):
        listing, name = list_files(path, kind)
        with named(path):
            return read_listing(
                listing, path, declared, name=name, skip_broken=skip_broken, room=room, progress=progress
            )
    if kind == "npz":
        dataset = read_npz(path, declared, room=room)
    else:
        finished = _read_digits(declared) if kind == DIGITS else read_store(path, declared)
        with named(source):
            dataset = _placed(finished, room)
    if progress is not None:
        total = sum(len(part) for part in (dataset.train, dataset.val, dataset.test) if part is not None)
        progress(total, total)
    return dataset


def list_files(path: Path, kind: str) -> tuple[Listing, str]:
    """The listing of a folder or CSV file, and the name of the data set."""
    with named(path):
        if kind == "folder":
            return list_folder(path), shown(path.resolve().name)
        return list_table(path), shown(path.stem)


def kind_of(source: Source) -> str:
    """One of "digits", "npz", "csv", "folder" and "store", by names alone: nothing is opened."""
    if source == DIGITS:
        return DIGITS
    path = Path(source)
    with named(source):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            raise Refusal("there is no such file or folder.") from None
        except ValueError:
            raise Refusal("its path holds a character that no path may have.") from None
        if stat.S_ISDIR(mode):
            return _kind_of_folder(path)
        if not stat.S_ISREG(mode):
            raise Refusal("is neither a regular file nor a folder.")
        kind = path.suffix.lower().removeprefix(".")
        if kind not in ("npz", "csv"):
            raise Refusal("is not a data set. Fix: give an .npz or .csv file, a folder of images or a packed store.")
        return kind


def _kind_of_folder(path: Path) -> str:
    if os.path.lexists(path / META):
        return "store"
    if os.path.lexists(path / "train"):
        return "folder"
    raise Refusal(
        "has no folder 'train' in it. Fix: put the images into train/CLASS/ (and test/CLASS/), "
        "or list them in a CSV file with path,label."
    )


def _placed(dataset: Dataset, room: Room) -> Dataset:
    """The finished data set with its images in the room."""
    parts = [part for part in (dataset.train, dataset.val, dataset.test) if part is not None]
    room.require(sum(part.images.nbytes for part in parts) if room.copies else 0)

    def keep(split: str, part: Split) -> Split:
        return replace(part, images=room.keep(f"{split}_images", part.images))

    return replace(
        dataset,
        train=keep("train", dataset.train),
        val=None if dataset.val is None else keep("val", dataset.val),
        test=None if dataset.test is None else keep("test", dataset.test),
    )


def _read_digits(declared: facts.Declared) -> Dataset:
    """scikit-learn's 8x8 digits, which are public: 1,437 to train and 360 to test, in the same order for everyone."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images * 255 / _BRIGHTEST_DIGIT).astype(np.uint8).reshape(-1, 8, 8, 1)
    names = tuple(str(number) for number in range(10))
    with named(DIGITS):
        facts.match_stored(names, declared)
        facts.require_shape(pixels.shape, declared)
    order = np.random.default_rng(0).permutation(len(pixels))
    train, test = (
        Split(images=pixels[part], labels=labels[part].astype(np.int64), persons=None)
        for part in (order[:_DIGITS_TO_TRAIN], order[_DIGITS_TO_TRAIN:])
    )
    return Dataset(DIGITS, names, train, None, test, ())
