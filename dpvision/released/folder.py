"""A released data set: a folder that anyone can read without dpvision.

rows-00000.safetensors ...   "features" (rows, d) float32; "labels" (rows,) int64 of classes, or (rows, classes) float32
moments.safetensors          for a release of moments: the noisy sums that the rows were drawn from
map.safetensors              the public map from the encoder's features to these, if there is one
schema.json                  the format of the files
card.json, card.md           the guarantee, how the release was made, and its licence
report.html                  the card as a web page
README.md                    how to read and use the release
audit.json, audit.svg        lower bounds on epsilon, if `dpvision audit` was run
evidence.html                the document for a data protection officer, if `dpvision evidence` was run
signature.json               who vouches for the bytes of all these files, if `dpvision sign` was run

The folder is written under a temporary name and renamed when it is complete. No row is left out: the number of rows is
public.

`read_release` reads a folder of any origin strictly: settings, event and files must agree. What can be computed is not
taken from card.json: the event follows from the settings, and the headers of the rows state whether their noise is
secret. The digests on the card bind it to the bytes of its rows. They detect damage and careless edits, not forgery:
someone who forges a whole folder can claim anything, unless it is verified by its signature (signatures.py).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as read_safetensors
from safetensors.numpy import save as write_safetensors

from dpvision.core import files
from dpvision.core.events import Event, to_json
from dpvision.errors import ConfigError, DataError
from dpvision.settings.release import Release
from dpvision.settings.setting import check_values
from dpvision.storage import run_folder

FORMAT, CARD_FORMAT = "dpvision-release-1", "dpvision-release-card-1"
SHARD = 8192  # rows in a file
MAX_ARRAYS, MAX_TEXT = 4 << 30, 1 << 24  # bytes of one file of arrays, and of one text file
HEADER = 1 << 16  # bytes that a file of arrays may have in addition to the arrays
# The status in the header of each file, and what it means.
STATUS = {
    "private": "may be released: its noise is secret, and card.json has the guarantee",
    "NOT PRIVATE": f"must not be released: {run_folder.FIXED_KEY}",
}
# The parts of card.json that cannot be recomputed and are copied when it is regenerated, with their types.
KEPT = {
    "run": str,
    "licence": str,
    "mechanism": dict,
    "features": dict,
    "classes": list,
    "read_off": list,
    "not_covered": list,
    "config": dict,
}
Block = tuple[NDArray[np.float32], NDArray[Any]]


@contextmanager
def create_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into; it is renamed to `folder` if nothing was raised."""
    folder = Path(os.path.abspath(folder))
    require_free(folder)
    with run_folder.create_folder(folder, mode=0o700) as partial:
        yield partial
        os.chmod(partial, 0o755)


def require_free(folder: Path) -> None:
    """Refuse a folder that is not empty or that cannot be created."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: already exists. Fix: choose another --out.")
    above = next(path for path in Path(os.path.abspath(folder)).parents if path.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise ConfigError(f"{folder}: {above} is not a folder with write access. Fix: choose another --out.")


def next_free() -> Path:
    """Return the first of releases/1, releases/2, ... that does not exist."""
    return next(p for p in (Path("releases") / str(i) for i in itertools.count(1)) if not p.exists())


def write_rows(folder: Path, blocks: Iterator[Block], mark: Mapping[str, str] | None = None) -> int:
    """Write the rows as shards, each with `mark` in its header; return the number of rows."""
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
    """Write named arrays as a safetensors file, with `mark` in its header."""
    plain = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    files.write(path, write_safetensors(plain, dict(mark) if mark else None), mode=mode)


def digest_files(folder: Path) -> dict[str, str]:
    """Return the BLAKE2b digest of every file of arrays in the folder, by file name."""
    try:
        return {
            path.name: hashlib.blake2b(files.read(path, most=MAX_ARRAYS), digest_size=20).hexdigest()
            for path in sorted(folder.glob("*.safetensors"))
        }
    except (OSError, ValueError) as exc:
        raise DataError(f"{folder}: its files cannot be read ({exc}). Fix: copy the folder again.") from exc


def _read_status(path: Path) -> str | None:
    """Return the status in the header of a file of arrays; None if it has none."""
    try:
        with files.open_regular(path) as file:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), HEADER)))
        status = header["__metadata__"]["status"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return status if isinstance(status, str) else None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is readable by everyone."""
    files.write(path, json.dumps(value, indent=1, allow_nan=False) + "\n", mode=0o644)


def read_rows(folder: str | Path) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return all rows and labels of a released folder; refuse files that are larger than schema.json allows."""
    schema = read_schema(folder)
    left = schema["rows"] * (4 * schema["width"] + max(8, 4 * len(schema["classes"])))
    parts = []
    for name in schema["files"]:
        parts.append(read_arrays(Path(folder) / name, most=left + HEADER))
        left -= sum(array.nbytes for array in parts[-1].values())
    if not parts or not all({"features", "labels"} <= part.keys() for part in parts):
        raise DataError(f"{folder}: its files lack features or labels. Fix: copy the folder again.")
    kinds = {_kind(part["features"], part["labels"], schema) for part in parts}
    if len(kinds) != 1 or None in kinds or sum(len(part["features"]) for part in parts) != schema["rows"]:
        raise DataError(f"{folder}: its rows do not match schema.json. Fix: copy the folder again.")
    with _enough_memory(folder):
        features, labels = (np.concatenate([part[k] for part in parts]) for k in ("features", "labels"))
    return features, labels


def _kind(features: NDArray[Any], labels: NDArray[Any], schema: dict[str, Any]) -> str | None:
    """Return the kind of labels, "class" or "shares"; None if the arrays are not rows of this schema."""
    count = len(features) if features.ndim == 2 else -1
    if features.dtype != np.float32 or features.shape != (count, schema["width"]):
        return None
    if labels.dtype == np.int64 and labels.shape == (count,):
        return "class"
    if labels.dtype == np.float32 and labels.shape == (count, len(schema["classes"])):
        return "shares"
    return None


def read_schema(folder: str | Path) -> dict[str, Any]:
    """Return schema.json of a released folder, checked."""
    path = Path(folder) / "schema.json"
    try:
        schema = json.loads(files.read(path, most=MAX_TEXT))
        names, classes = schema["files"], schema["classes"]
        valid = (
            schema["format"] == FORMAT
            and all(type(schema[key]) is int and schema[key] > 0 for key in ("rows", "width"))
            and isinstance(names, list)
            and isinstance(classes, list)
            and len(classes) > 0
            and len(set(names)) == len(names)
            and all(isinstance(n, str) and os.path.basename(n) == n and n.startswith("rows-") for n in names)
            and all(isinstance(c, str) for c in classes)
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise DataError(f"{folder}: not a released data set (schema.json: {str(exc).rstrip('.')}).") from exc
    if not valid:
        raise DataError(f"{folder}: schema.json is not of format {FORMAT}.")
    return dict(schema)


def read_arrays(path: Path, *, most: int = MAX_ARRAYS) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file of at most `most` bytes, by name."""
    try:
        with _enough_memory(path):
            return dict(read_safetensors(files.read(path, most=min(most, MAX_ARRAYS))))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, OverflowError) as exc:
        raise DataError(f"{path}: cannot be read as safetensors ({exc}). Fix: copy the file again.") from exc


@contextmanager
def _enough_memory(path: str | Path) -> Iterator[None]:
    try:
        yield
    except MemoryError as exc:
        raise DataError(
            f"{path}: reading it needs more memory than this machine has. Fix: use a larger machine."
        ) from exc


@dataclass(frozen=True)
class FinishedRelease:
    """A released folder; its settings, event and files agree with each other."""

    folder: Path
    card: dict[str, Any]
    settings: Release  # complete
    event: Event
    private: bool  # whether its noise is secret, according to the headers of its rows

    @property
    def sigma(self) -> float:
        """The noise multiplier."""
        assert self.settings.sigma
        return self.settings.sigma

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their labels."""
        return tuple(self.card["classes"])


def read_release(folder: Path) -> FinishedRelease:
    """Read the release in a folder; raise a DataError if its files do not agree with each other."""
    schema, path = read_schema(folder), folder / "card.json"
    card = _read_card(path)
    if card.get("files") != digest_files(folder) or not set(schema["files"]) <= set(card["files"]):
        raise DataError(
            f"{folder}: the digests in card.json do not match its rows. Fix: copy the folder again. (A card "
            "without digests was written by an earlier version, and nothing shows which rows it belongs to.)"
        )
    read_rows(folder)  # checks their number and width
    settings = _settings(path, card, schema)
    event = settings.event(settings.sigma or 0.0, len(schema["classes"]))
    if card["classes"] != schema["classes"] or card.get("events") != [json.loads(json.dumps(to_json(event)))]:
        raise DataError(f"{path}: its event or its classes do not match its settings and schema.json.")
    statuses = {_read_status(folder / name) for name in schema["files"]}
    return FinishedRelease(folder, card, settings, event, private=statuses == {"private"})


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(files.read(path, most=MAX_TEXT), parse_constant=_refuse_constant)
        json.dumps(card, indent=1)  # it will be regenerated from this
        if card["format"] != CARD_FORMAT:
            raise ValueError(f"its format is {card['format']!r}")
        wrong = [name for name, kind in KEPT.items() if not isinstance(card[name], kind)]
        wrong += [name for name in ("not_covered", "read_off") if not all(isinstance(x, str) for x in card[name])]
        for name in ("accuracy", "balanced_accuracy"):  # earlier versions did not state the second
            shares = card["accuracy"] if name == "accuracy" else card.get(name)
            if shares is not None and not all(isinstance(x, int | float) for x in shares.values()):
                wrong.append(name)
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: wrong type")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise DataError(f"{path}: not a valid card of a release ({exc}). Fix: copy the folder again.") from exc
    return dict(card)


def _settings(path: Path, card: dict[str, Any], schema: dict[str, Any]) -> Release:
    try:
        settings = Release(**check_values(Release, card["config"], source=str(path)))
        if not settings.is_complete or settings.rows != schema["rows"]:
            raise ConfigError("they are incomplete, or their number of rows differs")
        if settings.class_counts is not None and len(settings.class_counts) != len(schema["classes"]):
            raise ConfigError("class_counts must be one number for each class")
        settings.event(settings.sigma or 0.0, len(schema["classes"]))
    except ConfigError as exc:
        raise DataError(
            f"{path}: its settings are not valid for a release ({exc}). Fix: copy the folder again."
        ) from exc
    return settings


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
