"""Reads images that have no labels, some at a time, to predict them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpvision.data import facts
from dpvision.data.files import Refusal, named, open_inside, shown
from dpvision.data.image_files import broken_file
from dpvision.data.listing import image_names, unsuitable
from dpvision.data.npz import read_npz_images
from dpvision.data.picture import decode
from dpvision.data.source import Source


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Some of the images, in order."""

    names: list[str]
    problems: list[str | None]
    """Why a file cannot be read, for each name; None where it can."""
    images: np.ndarray
    """(N, H, W, C) of those that can."""
    of: int
    """How many names there are in all."""


def image_batches(path: Source, *, size: tuple[int, int], channels: int, at_a_time: int = 256) -> Iterator[Unlabelled]:
    """The images of a folder, of one file, or of an .npz with test_images or images: never more than a few in memory.

    Image files are resized to `size` and turned to `channels` (1 or 3); one that cannot be read has its name and the
    reason in its place, for a prediction that is missing would go unnoticed. Arrays must have the size, and get three
    channels from one. The images of an array are named by their number.
    """
    place = Path(path)
    with named(place):
        if channels not in (1, 3):
            raise Refusal(f"cannot be read with {channels} channels. Fix: give 1 or 3.")
        try:
            mode = os.stat(place).st_mode
        except FileNotFoundError:
            raise Refusal("there is no such file or folder.") from None
        except ValueError:
            raise Refusal("its path holds a character that no path may have.") from None
        if not stat.S_ISDIR(mode) and place.suffix.lower() == ".npz":
            yield from _of_array(place, size=size, channels=channels, at_a_time=at_a_time)
            return
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise Refusal("is neither a regular file nor a folder.")
        yield from _of_files(place, stat.S_ISDIR(mode), size=size, channels=channels, at_a_time=at_a_time)


def _of_files(
    path: Path, folder: bool, *, size: tuple[int, int], channels: int, at_a_time: int
) -> Iterator[Unlabelled]:
    sides = facts.declare(size=size).size
    assert sides is not None
    root, paths = os.path.realpath(path), [""]
    if folder:
        paths = image_names(root)
        if all(unsuitable(root, name) for name in paths):
            raise Refusal("has no .png, .jpg or .jpeg file in it, nor in a folder of it.")
    else:  # links are followed here, because the user named this very file
        root, paths[0] = os.path.split(root)
    for start in range(0, len(paths), at_a_time):
        some = paths[start : start + at_a_time]
        found, problems = [], []
        for name in some:
            image, problem = _read(root, name, sides, channels, why_not=unsuitable(root, name) if folder else None)
            problems.append(problem)
            found += [] if image is None else [image]
        images = np.stack(found) if found else np.empty((0, *sides, channels), np.uint8)
        yield Unlabelled([shown(name) for name in some], problems, images, len(paths))


def _read(
    root: str, name: str, sides: tuple[int, int], channels: int, *, why_not: str | None
) -> tuple[np.ndarray | None, str | None]:
    """The image, or why there is none."""
    if why_not is not None:
        return None, why_not
    try:
        with open_inside(root, name) as file:
            return decode(file, size=sides, channels=channels)[0], None
    except (Refusal, OSError) as exc:
        return None, broken_file(name, exc).reason


def _of_array(path: Path, *, size: tuple[int, int], channels: int, at_a_time: int) -> Iterator[Unlabelled]:
    done = 0
    for images, count in read_npz_images(path, size=size, at_a_time=at_a_time):
        names = [str(number) for number in range(done, done + len(images))]
        done += len(images)
        yield Unlabelled(names, [None] * len(images), _with_channels(images, channels), count)


def _with_channels(images: np.ndarray, channels: int) -> np.ndarray:
    found = images.shape[3]
    if channels == found:
        return images
    if found == 1:
        return np.repeat(images, 3, axis=3)
    raise Refusal("holds colour images where gray ones are needed. Fix: save them as (N, H, W).")
