"""Tensors in and out of safetensors files, with a header of plain text and a digest; nothing here can run code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from dpvision.errors import DataError

MOST_HEADER = 16 << 20


def dump(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bytes:
    """The file's bytes. The digest in the header covers names, shapes, values and the rest of the header."""
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    whole = {**header, "digest": _digest(plain, header)}
    # One entry: safetensors writes several in any order, and the same run must give the same bytes.
    return safetensors.torch.save(plain, {"dpvision": json.dumps(whole, sort_keys=True)})


def load(path: Path, like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors with exactly the names, shapes and kinds of `like`, and the header, from an unchanged file."""
    data, header = read(path)
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, RuntimeError, KeyError) as exc:
        raise DataError(f"{path}: not a sound safetensors file: {exc}.") from exc
    for name, tensor in like.items():
        found = tensors.get(name)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            what = "missing" if found is None else f"{tuple(found.shape)} {found.dtype}"
            raise DataError(
                f"{path}: tensor {name!r} is {what}; the run's settings ask for {tuple(tensor.shape)} {tensor.dtype}."
            )
    extra = sorted(set(tensors) - set(like))
    if extra:
        raise DataError(f"{path}: holds tensors that the run does not have: {', '.join(extra[:5])}.")
    if header.get("digest") != _digest(tensors, {k: v for k, v in header.items() if k != "digest"}):
        raise DataError(f"{path}: was changed after it was written (its digest does not fit).")
    return tensors, header


def read(path: Path) -> tuple[bytes, dict[str, str]]:
    """The file's bytes and its header, before any tensor is made."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= MOST_HEADER:
                raise DataError(f"{path}: not a safetensors file (its header would have {size:,} bytes).")
            head = json.loads(file.read(size))
            meta = json.loads(head["__metadata__"]["dpvision"])
            if not isinstance(meta, dict) or not all(isinstance(v, str) for v in meta.values()):
                raise DataError(f"{path}: its header does not come from dpvision.")
            file.seek(0)
            return file.read(), meta
    except (KeyError, TypeError) as exc:
        raise DataError(f"{path}: its header does not come from dpvision.") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise DataError(f"{path}: can not be read as safetensors: {exc}.") from exc


def _digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(json.dumps(dict(header), sort_keys=True).encode(), digest_size=20)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
