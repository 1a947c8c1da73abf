"""Finds out what a source is and reads it: the word digits, an .npz, a CSV, a folder of images or a packed store."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from os import PathLike
from pathlib import Path

from dpvision.data.classes import Classes
from dpvision.data.dataset import Dataset, Split
from dpvision.data.digits import read_digits
from dpvision.data.folder import list_folder
from dpvision.data.listing import Listing, Progress
from dpvision.data.listing_reader import read_listing
from dpvision.data.npz import read_npz
from dpvision.data.records import Size
from dpvision.data.refusal import Refusal, named, shown
from dpvision.data.room import MemoryRoom, Room
from dpvision.data.store import META, read_store
from dpvision.data.table import list_table

Source = str | PathLike[str]
DIGITS = "digits"


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

    `skip_broken` leaves image files out that can not be read and lists them in `Dataset.broken`.
    """
    return read_source(
        source, classes=classes, size=size, channels=channels, skip_broken=skip_broken, room=MemoryRoom()
    )


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
    if kind in ("folder", "csv"):
        listing, name = list_files(path, kind)
        with named(path):
            return read_listing(
                listing,
                path,
                name=name,
                classes=classes,
                size=size,
                channels=channels,
                skip_broken=skip_broken,
                room=room,
                progress=progress,
            )
    if kind == "npz":
        dataset = read_npz(path, classes=classes, size=size, channels=channels, room=room)
    else:
        if kind == DIGITS:
            finished = read_digits(classes=classes, size=size, channels=channels)
        else:
            finished = read_store(path, classes=classes, size=size, channels=channels)
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
    """One of "digits", "npz", "csv", "folder" and "store", told from names alone: nothing is opened."""
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
