"""Safetensors files with a header and a digest. Nothing in them can execute code.

The header is a single JSON text under the name "dpvision", because safetensors writes several entries in an arbitrary
order and the same run must produce the same bytes. Its `digest` covers the rest of the header, the table of tensors and
all data. It detects damage and careless edits. Files that others must not be able to forge also have a `signature`.

Headers and digests are checked without torch, before any content is trusted and before memory is allocated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from dpvision.core import files
from dpvision.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER, MAX_BYTES = 16 << 20, 4 << 30
# Exceptions that reading a forged or damaged header may raise.
UNSOUND = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class File:
    """A file: its header, the shapes of its tensors by name, and all of its bytes."""

    header: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    data: bytes


def dump(tensors: Mapping[str, Tensor], header: Mapping[str, str], sign: Callable[[str], str] | None = None) -> bytes:
    """Return the bytes of a file with these tensors, this header, a digest and, if `sign` is given, a signature."""
    from safetensors.torch import save

    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    return seal(lambda metadata: save(plain, metadata), header, sign)


def load(path: Path, like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Load tensors with exactly the names, shapes and types of `like`, and the header, from an unmodified file.

    `like` may be on torch's meta device; no memory is allocated for a file that does not match.
    """
    from safetensors.torch import load as read_tensors

    file = read(path)
    wanted = {name: tuple(tensor.shape) for name, tensor in like.items()}
    for name in sorted(wanted.keys() | file.shapes.keys()):
        if wanted.get(name) != file.shapes.get(name):
            shape, expected = file.shapes.get(name, "missing"), wanted.get(name, "not in the model")
            raise DataError(f"{path}: tensor {name!r} is {shape}, but the settings require {expected}.")
    try:
        tensors = read_tensors(file.data)  # unlike torch.load, this reads only numbers
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as exc:
        raise DataError(f"{path}: is not a valid safetensors file: {exc}.") from exc
    for name, tensor in like.items():
        if tensors[name].dtype != tensor.dtype:
            raise DataError(
                f"{path}: tensor {name!r} is {tensors[name].dtype}, but the settings require {tensor.dtype}."
            )
    return tensors, file.header


def seal(
    save: Callable[[dict[str, str]], bytes], header: Mapping[str, str], sign: Callable[[str], str] | None = None
) -> bytes:
    """Return the bytes that `save` produces for the header with its digest and, if `sign` is given, a signature."""
    _, table, body = _parts(save({"dpvision": json.dumps(dict(header), sort_keys=True)}))
    whole = {**header, "digest": _digest(header, table, body)}
    if sign is not None:
        whole["signature"] = sign(whole["digest"])
    return save({"dpvision": json.dumps(whole, sort_keys=True)})


def read(path: Path) -> File:
    """Read a file; raise a DataError that names it if it is damaged or was modified after it was written."""
    try:
        data = files.read(path, most=MAX_BYTES)
        header, table, body = _parts(data)
        shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in table.items()}
        digest = _digest({k: v for k, v in header.items() if k not in ("digest", "signature")}, table, body)
    except UNSOUND as exc:
        raise DataError(f"{path}: cannot be read as a safetensors file of dpvision ({exc}).") from exc
    if header.get("digest") != digest:
        raise DataError(f"{path}: was modified after it was written (its digest does not match).")
    return File(header, shapes, data)


def read_header(path: Path) -> dict[str, str]:
    """Return the header of a file without checking its digest; it is empty if dpvision did not write the file."""
    try:
        with files.open_regular(path) as file:
            return _parts(file.read(8 + MAX_HEADER))[0]
    except UNSOUND:
        return {}


def verified_header(path: Path) -> dict[str, str]:
    """Return the header of a file; raise a DataError if it has a digest that does not match the file."""
    header = read_header(path)
    return read(path).header if "digest" in header else header


def _parts(data: bytes) -> tuple[dict[str, str], dict[str, Any], memoryview]:
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= min(MAX_HEADER, len(data) - 8):
        raise ValueError(f"its header would have {size:,} bytes")
    table = json.loads(data[8 : 8 + size])
    header = json.loads(table.pop("__metadata__")["dpvision"])
    if not isinstance(header, dict) or not all(isinstance(v, str) for v in header.values()):
        raise ValueError("its header is not a table of strings")
    return header, table, memoryview(data)[8 + size :]


def _digest(header: Mapping[str, str], table: Mapping[str, Any], body: memoryview) -> str:
    digest = hashlib.blake2b(json.dumps([dict(header), dict(table)], sort_keys=True).encode(), digest_size=20)
    digest.update(body)
    return digest.hexdigest()
