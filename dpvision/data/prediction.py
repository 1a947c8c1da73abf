"""Reads images that have no labels, to predict them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from dpvision.data import records
from dpvision.data.dataset import Broken
from dpvision.data.folder import image_names, unsuitable
from dpvision.data.listing import Item, Listing
from dpvision.data.listing_reader import decode_listing
from dpvision.data.npz import read_npz_images
from dpvision.data.refusal import Refusal, named, shown
from dpvision.data.room import MemoryRoom
from dpvision.data.source import Source
from dpvision.errors import DataError


def load_images(
    path: Source, *, size: records.Size = None, channels: int | None = None
) -> tuple[list[str], np.ndarray]:
    """Names and (N, H, W, C) images of a folder of images, one image, or an .npz with test_images or images.

    Image files are resized to `size` and turned to `channels` (1 or 3) where these are given; arrays must have the
    size, and get three channels from one. The images of an array are named by their number.
    """
    place = Path(path)
    with named(place):
        if channels not in (None, 1, 3):
            raise Refusal(f"can not be read with {channels} channels. Fix: give 1 or 3.")
        try:
            mode = os.stat(place).st_mode
        except FileNotFoundError:
            raise Refusal("there is no such file or folder.") from None
        except ValueError:
            raise Refusal("its path holds a character that no path may have.") from None
        if not stat.S_ISDIR(mode) and place.suffix.lower() == ".npz":
            images = _with_channels(read_npz_images(place, size=size), channels)
            return [str(number) for number in range(len(images))], images
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise Refusal("is neither a regular file nor a folder.")
        listing = _list_images(place, folder=stat.S_ISDIR(mode))
        sides = records.declared_size(size)
        images_by_split, kept, broken, _ = decode_listing(
            listing, place, sides=sides, skip_broken=True, room=MemoryRoom(), channels=channels
        )
        # A prediction that is missing would go unnoticed, so nothing is left out here.
        if broken:
            count = "It is the only broken file" if len(broken) == 1 else f"{len(broken):,} files are broken"
            first = shown(Path(listing.shown_root) / broken[0].path)
            raise DataError(f"{first}: {broken[0].reason} {count}. Fix: mend it or take it away.")
        return [shown(item.path) for item in kept["test"]], images_by_split["test"]


def _list_images(path: Path, *, folder: bool) -> Listing:
    root = os.path.realpath(path)
    if not folder:
        # Links are followed here, because the user named this very file.
        place, name = os.path.split(root)
        return Listing(place, {"test": [Item(name, "")]}, frozenset(), place if path.is_symlink() else str(path.parent))
    reasons = {name: unsuitable(root, name) for name in image_names(root)}
    items = [Item(name, "") for name, reason in reasons.items() if reason is None]
    if not items:
        raise Refusal("has no .png, .jpg or .jpeg file in it.")
    broken = tuple(Broken(shown(name), reason) for name, reason in reasons.items() if reason is not None)
    return Listing(root, {"test": items}, frozenset(), str(path), broken)


def _with_channels(images: np.ndarray, channels: int | None) -> np.ndarray:
    found = images.shape[3]
    if channels in (None, found):
        return images
    if found == 1:
        return np.repeat(images, 3, axis=3)
    raise Refusal("holds colour images where gray ones are needed. Fix: save them as (N, H, W).")
