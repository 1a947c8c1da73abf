"""A released data set is a folder that anyone can read without dpvision.

rows-00000.safetensors ...   "features" (rows, d) float32; "labels" (rows,) int64 of classes, or (rows, classes) float32
moments.safetensors          of a release of moments: the noisy numbers that the rows were drawn from
map.safetensors              the public map from the encoder's features to these, where there is one
schema.json                  what is in the files
card.json, card.md           the guarantee, how it was made, and the licence
README.md                    how to read it
audit.json, audit.svg        what `dpvision audit` showed from below, where it was asked to

It is made beside its place and gets its name when it is whole. No row is ever left out: how many there are is public.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as read_safetensors
from safetensors.numpy import save as write_safetensors

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.storage.run_folder import FIXED_KEY

FORMAT = "dpvision-release-1"
SHARD = 8192  # rows in a file
MOST, MOST_TEXT = 4 << 30, 1 << 24  # bytes of one file that is read
HEADER = 1 << 16  # bytes that a file of arrays may have beside them
# What each file says of itself, and what that means.
STATUS = {
    "private": "may leave: its noise is secret, and card.json has the guarantee",
    "NOT PRIVATE": f"must not leave: {FIXED_KEY}",
}
Block = tuple[NDArray[np.float32], NDArray[Any]]


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `folder` if all went well."""
    folder = Path(os.path.abspath(folder))
    require_free(folder)
    files.make_folder(folder.parent, mode=0o755)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    try:
        yield partial
        if folder.exists():
            folder.rmdir()  # empty, see above
        os.rename(partial, folder)
        os.chmod(folder, 0o755)
        files.sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_free(folder: Path) -> None:
    """A release never writes into a folder that holds something; and its folder can be made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists already. Fix: another --out.")
    above = next(path for path in Path(os.path.abspath(folder)).parents if path.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise ConfigError(f"{folder}: {above} is no folder that can be written into. Fix: another --out.")


def next_free() -> Path:
    """releases/1, releases/2 and so on."""
    return next(p for p in (Path("releases") / str(i) for i in itertools.count(1)) if not p.exists())


def write_rows(folder: Path, blocks: Iterator[Block], mark: Mapping[str, str] | None = None) -> int:
    """Shards of rows, in order, each with the mark in its header; how many rows there were."""
    waiting: list[Block] = []
    count = shard = held = 0
    for block in blocks:
        waiting.append(block)
        count, held = count + len(block[0]), held + len(block[0])
        if held >= SHARD:
            _write_shard(folder, shard, waiting, mark)
            waiting, shard, held = [], shard + 1, 0
    if waiting:
        _write_shard(folder, shard, waiting, mark)
    return count


def _write_shard(folder: Path, number: int, blocks: list[Block], mark: Mapping[str, str] | None) -> None:
    features, labels = (np.concatenate([block[i] for block in blocks]) for i in (0, 1))
    write_arrays(folder / f"rows-{number:05d}.safetensors", {"features": features, "labels": labels}, mark)


def write_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], mark: Mapping[str, str] | None = None, *, mode: int = 0o644
) -> None:
    plain = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    files.write(path, write_safetensors(plain, dict(mark) if mark else None), mode=mode)


def digests(folder: Path) -> dict[str, str]:
    """File name -> BLAKE2b of its bytes, of every file of arrays in the folder: what a card is about."""
    try:
        return {
            path.name: hashlib.blake2b(files.read(path, most=MOST), digest_size=20).hexdigest()
            for path in sorted(folder.glob("*.safetensors"))
        }
    except (OSError, ValueError) as exc:
        raise DataError(f"{folder}: its files cannot be read ({exc}). Fix: copy it again.") from exc


def mark_of(path: Path) -> str | None:
    """What a file of arrays says of itself; None where it says nothing."""
    try:
        with files.open_regular(path) as file:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), HEADER)))
        found = header["__metadata__"]["status"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def write_json(path: Path, value: Any) -> None:
    files.write(path, json.dumps(value, indent=1, allow_nan=False) + "\n", mode=0o644)


def read_rows(folder: str | Path) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """All rows and labels of a released folder, checked against its schema; a file too large for it is not read."""
    schema = read_schema(folder)
    left = schema["rows"] * (4 * schema["width"] + max(8, 4 * len(schema["classes"])))
    parts = []
    for name in schema["files"]:
        parts.append(read_arrays(Path(folder) / name, most=left + HEADER))
        left -= sum(array.nbytes for array in parts[-1].values())
    if not parts or not all({"features", "labels"} <= part.keys() for part in parts):
        raise DataError(f"{folder}: its files have no features and labels.")
    kinds = {_kind(part["features"], part["labels"], schema) for part in parts}
    if len(kinds) != 1 or None in kinds or sum(len(part["features"]) for part in parts) != schema["rows"]:
        raise DataError(f"{folder}: its rows are not what schema.json says. Fix: copy it again.")
    with _enough_memory(folder):
        features, labels = (np.concatenate([part[k] for part in parts]) for k in ("features", "labels"))
    return features, labels


def _kind(features: NDArray[Any], labels: NDArray[Any], schema: dict[str, Any]) -> str | None:
    """Of labels: "class" or "shares"; None where the arrays are not rows of this schema."""
    count = len(features) if features.ndim == 2 else -1
    if features.dtype != np.float32 or features.shape != (count, schema["width"]):
        return None
    if labels.dtype == np.int64 and labels.shape == (count,):
        return "class"
    if labels.dtype == np.float32 and labels.shape == (count, len(schema["classes"])):
        return "shares"
    return None


def read_schema(folder: str | Path) -> dict[str, Any]:
    path = Path(folder) / "schema.json"
    try:
        found = json.loads(files.read(path, most=MOST_TEXT))
        fine = found["format"] == FORMAT and all(type(found[k]) is int and found[k] > 0 for k in ("rows", "width"))
        names, classes = found["files"], found["classes"]
        fine = fine and isinstance(names, list) and isinstance(classes, list) and len(classes) > 0
        fine = fine and len(set(names)) == len(names)
        fine = fine and all(isinstance(n, str) and os.path.basename(n) == n and n.startswith("rows-") for n in names)
        fine = fine and all(isinstance(c, str) for c in classes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise DataError(f"{folder}: not a released data set (schema.json: {str(exc).rstrip('.')}).") from exc
    if not fine:
        raise DataError(f"{folder}: schema.json is not of format {FORMAT}.")
    return dict(found)


def read_arrays(path: Path, *, most: int = MOST) -> dict[str, NDArray[Any]]:
    try:
        with _enough_memory(path):
            return dict(read_safetensors(files.read(path, most=min(most, MOST))))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, OverflowError) as exc:
        raise DataError(f"{path}: cannot be read as safetensors ({exc}). Fix: copy it again.") from exc


@contextmanager
def _enough_memory(path: str | Path) -> Iterator[None]:
    try:
        yield
    except MemoryError as exc:
        raise DataError(f"{path}: takes more memory than there is. Fix: read it where there is more.") from exc
