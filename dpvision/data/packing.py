"""Writes a source as a packed store, which opens at once and may be larger than memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from dpvision.data.classes import Classes
from dpvision.data.dataset import SPLITS, Dataset
from dpvision.data.listing import Progress
from dpvision.data.records import Size
from dpvision.data.refusal import Refusal, named
from dpvision.data.room import FolderRoom
from dpvision.data.source import Source, read_source
from dpvision.data.store import META, written_meta


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
    under another name beside `out` and renamed when it is complete and on the disk, so it is there whole or not at
    all. `progress` is called with the number of images done and their total. Only the owner may read the store.
    """
    target = Path(out)
    with named(target):
        if os.path.lexists(target):
            raise Refusal("is there already. Fix: remove it or choose another name.")
        if not target.parent.is_dir():
            raise Refusal("can not be written because its folder does not exist.")
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
            _finish(dataset, temporary, room=room)
            os.rename(temporary, target)
            _sync(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def _finish(dataset: Dataset, folder: Path, *, room: FolderRoom) -> None:
    for split in SPLITS:
        part = getattr(dataset, split)
        if part is None:
            continue
        part.images.flush()
        for what in ("labels", "persons", "originals"):
            values = getattr(part, what)
            if values is not None:
                room.keep(f"{split}_{what}", values).flush()  # type: ignore[attr-defined]
    (folder / META).write_bytes(written_meta(dataset))
    present = {f"{split}_images.npy" for split in SPLITS if getattr(dataset, split) is not None}
    for file in sorted(folder.iterdir()):
        # A split of which every image was broken left its reserved file behind.
        if file.name.endswith("_images.npy") and file.name not in present:
            file.unlink()
        else:
            _sync(file)
    _sync(folder)


def _sync(path: Path) -> None:
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
