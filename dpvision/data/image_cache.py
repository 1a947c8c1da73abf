"""Stores images of large listings as they were decoded, so that `check` and then `train` decode every file once.

A stored listing is a folder below $DPVISION_HOME/images with the pictures, the sides and digests of the originals, and
the reasons of broken files. It is as private as the images, readable by its owner only, and may be removed at any time;
DPVISION_CACHE_IMAGES=no stores nothing. Its name is a digest of everything that the pictures depend on: the rule, the
declared size and channels, the versions of the decoders, and path, inode, length and times of every file. The least
recently used listings are removed when the total exceeds `limits.CACHE_BYTES`.

Not stored are listings of fewer than `limits.CACHE_FROM` files, with DICOM files, with files that the system could not
read just now, or with files that changed within the last two seconds (another change could leave their times as they
are), and tables.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from dpvision.core import files
from dpvision.data import limits
from dpvision.data.dataset import DIGEST
from dpvision.data.facts import Declared
from dpvision.data.files import Refusal, resolve_inside
from dpvision.data.listing import Listing
from dpvision.data.picture import Decoded, Rule
from dpvision.data.store import FolderDestination
from dpvision.errors import DPVisionError

_FORMAT = "dpvision-images-1"
_SETTLED_NS = 2_000_000_000
_UNFINISHED, _UNFINISHED_DAYS = ".storing", 1


class Passing(str):
    """A reason that says nothing about the file, such as an error of the disk: the next reading may succeed."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Stored:
    """The decoded images of a listing, in the order of its items."""

    images: np.ndarray
    sides: np.ndarray
    digests: np.ndarray
    reasons: dict[int, str]

    def outcome(self, number: int) -> Decoded | str:
        """Return the image with this number, or the reason why its file is broken."""
        if number in self.reasons:
            return self.reasons[number]
        height, width, depth = self.sides[number].tolist()
        return Decoded(self.images[number], self.digests[number].tobytes(), (height, width, depth))


def name_of(listing: Listing, declared: Declared, rule: Rule) -> str | None:
    """Return the name under which a listing is stored; None if it is not to be stored."""
    count = sum(map(len, listing.items.values()))
    if count < limits.CACHE_FROM or listing.contents is not None or os.environ.get("DPVISION_CACHE_IMAGES") == "no":
        return None
    from PIL import Image, features

    decoders = [features.version(name) for name in ("jpg", "libjpeg_turbo", "zlib", "libtiff", "webp")]
    about = [_FORMAT, rule.version, rule.window, declared.size, declared.channels, Image.__version__, decoders]
    digest = blake2b(json.dumps(about).encode(), digest_size=16)
    newest = time.time_ns() - _SETTLED_NS
    for split, items in listing.items.items():
        for item in items:
            try:
                status = os.stat(resolve_inside(listing.root, item.path))
            except (Refusal, OSError, ValueError):
                return None
            if max(status.st_mtime_ns, status.st_ctime_ns) > newest:
                return None
            facts = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            digest.update(f"{split} {facts} {item.path!r}\n".encode())
    return digest.hexdigest()


def read(name: str) -> Stored | None:
    """Return what is stored under a name, or None if it is absent or damaged."""
    try:
        folder = _folder() / name
        meta = json.loads(files.read(folder / "meta.json", most=limits.META_BYTES * 16))
        shape, reasons = tuple(meta["shape"]), {int(number): str(text) for number, text in meta["reasons"].items()}
        if meta["format"] != _FORMAT or len(shape) != 4:
            return None
        os.utime(folder)  # used now
        return Stored(
            _map(folder / "images", np.uint8, shape),
            _map(folder / "sides", np.int32, (shape[0], 3)),
            _map(folder / "digests", np.uint8, (shape[0], DIGEST)),
            reasons,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _map(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    with files.open_regular(path, follow=False) as file:
        if os.fstat(file.fileno()).st_size != int(np.prod(shape)) * np.dtype(dtype).itemsize:
            raise ValueError("another length")
        return np.memmap(file, dtype=dtype, mode="r", shape=shape)


class Writer:
    """Stores images one after the other; if anything fails, nothing is stored and reading continues."""

    def __init__(self, name: str, shape: tuple[int, int, int, int]) -> None:
        self._name, self._shape, self._done = name, shape, 0
        self._reasons: dict[int, str] = {}
        self._place: Path | None = None
        with suppress(OSError, DPVisionError, Refusal):
            folder = _folder()
            files.make_folder(folder)
            _make_space(folder, int(np.prod(shape)))
            place = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=_UNFINISHED, dir=folder))
            try:
                FolderDestination(place).require(2 * int(np.prod(shape)))
                self._images, self._sides, self._digests = (
                    os.open(place / part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                    for part in ("images", "sides", "digests")
                )
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
            self._place = place

    def add(self, outcome: Decoded | str) -> None:
        """Store the next image, or the reason why it is broken."""
        if self._place is None:
            return
        picture, sides, digest = np.zeros(self._shape[1:], np.uint8), (0, 0, 0), bytes(DIGEST)
        if isinstance(outcome, Passing) or (isinstance(outcome, Decoded) and outcome.dicom):
            self.discard()
            return
        if isinstance(outcome, str):
            self._reasons[self._done] = outcome
        else:
            picture, sides, digest = outcome.picture, outcome.sides, outcome.digest
        self._done += 1
        try:
            _write(self._images, np.ascontiguousarray(picture))
            _write(self._sides, np.array(sides, np.int32))
            _write(self._digests, np.frombuffer(digest, np.uint8))
        except OSError:
            self.discard()

    def finish(self) -> None:
        """Give the images their name; all must have been added."""
        if self._place is None or self._done != self._shape[0]:
            self.discard()
            return
        meta = {"format": _FORMAT, "shape": self._shape, "reasons": self._reasons}
        with suppress(OSError, DPVisionError):
            for part in (self._images, self._sides, self._digests):
                os.fsync(part)
            files.write(self._place / "meta.json", json.dumps(meta))
            shutil.rmtree(_folder() / self._name, ignore_errors=True)  # damaged, or stored by another process
            os.rename(self._place, _folder() / self._name)
        self.discard()

    def discard(self) -> None:
        """Close all files, and remove what has no name yet."""
        if self._place is not None:
            for part in (self._images, self._sides, self._digests):
                os.close(part)
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None


def _write(file: int, values: np.ndarray) -> None:
    data = values.reshape(-1).view(np.uint8).data
    while data:
        data = data[os.write(file, data) :]


def _folder() -> Path:
    """Return $DPVISION_HOME/images, or raise an OSError if another user may write there.

    The home is that of dpvision.storage.home, which public code must not import: it knows the ledger.
    """
    home = Path(os.environ.get("DPVISION_HOME") or Path.home() / ".dpvision")
    for folder in (home, home / "images"):
        with suppress(FileNotFoundError):
            status = os.stat(folder)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise PermissionError(f"{folder}: another user may write there")
    if not home.is_absolute():
        raise NotADirectoryError(f"{home}: is relative")
    return home / "images"


def _make_space(folder: Path, needed: int) -> None:
    """Remove what a kill left behind, and what was used least recently, until there is space for `needed` bytes."""
    known: list[tuple[float, int, Path]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if entry.name.endswith(_UNFINISHED):
                if time.time() - status.st_mtime > _UNFINISHED_DAYS * 86_400:
                    shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.is_dir(follow_symlinks=False):
                known.append((status.st_mtime, _size(Path(entry.path)), Path(entry.path)))
    total = needed + sum(size for _, size, _ in known)
    for _, size, path in sorted(known):
        if total <= limits.CACHE_BYTES:
            break
        shutil.rmtree(path, ignore_errors=True)
        total -= size
    if total > limits.CACHE_BYTES:
        raise Refusal("is larger than the cache.")


def _size(folder: Path) -> int:
    with suppress(OSError):
        return (folder / "images").stat().st_size
    return 0
