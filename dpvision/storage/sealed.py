"""The header of a safetensors file and its digest, read without torch and before anything is believed or allocated.

Our header is one JSON text under the name "dpvision": safetensors writes several entries in any order, and the same run
must give the same bytes. Its `digest` covers the rest of the header, the table of tensors and every byte of data. It
finds damage and careless edits. What must not be made by others either carries a `signature` of that digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.errors import DataError

MOST_HEADER, MOST = 16 << 20, 4 << 30
# What reading a header that somebody made by hand can raise.
UNSOUND = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Sealed:
    """A whole file: our header, the tensors it names with their shapes, and the bytes."""

    header: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    data: bytes


def seal(
    save: Callable[[dict[str, str]], bytes], header: Mapping[str, str], sign: Callable[[str], str] | None = None
) -> bytes:
    """The bytes that `save` makes with our header and its digest in them, and what `sign` makes of the digest."""
    _, table, body = _parts(save({"dpvision": json.dumps(dict(header), sort_keys=True)}))
    whole = {**header, "digest": _digest(header, table, body)}
    if sign is not None:
        whole["signature"] = sign(whole["digest"])
    return save({"dpvision": json.dumps(whole, sort_keys=True)})


def read(path: Path) -> Sealed:
    """The file, unchanged since it was sealed, or a DataError that names it."""
    try:
        data = files.read(path, most=MOST)
        header, table, body = _parts(data)
        shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in table.items()}
        digest = _digest({k: v for k, v in header.items() if k not in ("digest", "signature")}, table, body)
    except UNSOUND as exc:
        raise DataError(f"{path}: can not be read as a safetensors file of dpvision ({exc}).") from exc
    if header.get("digest") != digest:
        raise DataError(f"{path}: was changed after it was written (its digest does not fit).")
    return Sealed(header, shapes, data)


def said_by(path: Path) -> dict[str, str]:
    """What a file says of itself, sealed or not; nothing, if it is not one of ours."""
    try:
        with files.open_regular(path) as file:
            return _parts(file.read(8 + MOST_HEADER))[0]
    except UNSOUND:
        return {}


def said_unchanged(path: Path) -> dict[str, str]:
    """The same; a sealed file that was changed is a DataError."""
    said = said_by(path)
    return read(path).header if "digest" in said else said


def _parts(data: bytes) -> tuple[dict[str, str], dict[str, Any], memoryview]:
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= min(MOST_HEADER, len(data) - 8):
        raise ValueError(f"its header would have {size:,} bytes")
    table = json.loads(data[8 : 8 + size])
    header = json.loads(table.pop("__metadata__")["dpvision"])
    if not isinstance(header, dict) or not all(isinstance(v, str) for v in header.values()):
        raise ValueError("its header is not a table of texts")
    return header, table, memoryview(data)[8 + size :]


def _digest(header: Mapping[str, str], table: Mapping[str, Any], body: memoryview) -> str:
    digest = hashlib.blake2b(json.dumps([dict(header), dict(table)], sort_keys=True).encode(), digest_size=20)
    digest.update(body)
    return digest.hexdigest()
