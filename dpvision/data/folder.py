"""Lists a folder of images: train/CLASS/x.png and, where they are, val/CLASS/x.png and test/CLASS/x.png."""

from __future__ import annotations

import os
from pathlib import Path

from dpvision.data.classes import check_name
from dpvision.data.dataset import SPLITS, Broken
from dpvision.data.listing import Item, Listing
from dpvision.data.refusal import Refusal, shown
from dpvision.data.regular_file import resolve_inside

SUFFIXES = (".png", ".jpg", ".jpeg")
_LITTER = ("thumbs.db", "desktop.ini")
"""Files that operating systems leave behind; names that start with a dot are left out too."""
# Folders in folders, of images to predict.
DEEPEST = 8


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


def image_names(root: str, relative: str = "", *, depth: int = DEEPEST) -> list[str]:
    """The files of a folder and of those in it, for images without a class. A link to a folder is not followed."""
    found = []
    for name in _names(root, relative):
        path = f"{relative}/{name}" if relative else name
        place = os.path.join(root, path)
        inside = depth > 0 and os.path.isdir(place) and not os.path.islink(place)
        found += image_names(root, path, depth=depth - 1) if inside else [path]
    return found


def unsuitable(root: str, relative: str) -> str | None:
    """Why a name can not be an image, as far as can be told without opening it."""
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
