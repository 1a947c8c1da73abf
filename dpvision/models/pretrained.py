"""Public weights from a local safetensors file: only numbers are read, and none before every shape fits."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from torch import Tensor, nn

from dpvision.core import files
from dpvision.errors import DataError
from dpvision.models.featured import head_of

# Tensors of published files that are used in their training only.
UNUSED = {"mask_token"}
KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Room for another head and the file's header.
ROOM = 256 << 20
# Where no model says how large a file may be: 2,000 million weights.
MOST = 8 << 30


def load_public(model: nn.Module, path: str | Path) -> str:
    """Fill the model from the file and return the blake2b digest of its bytes, which names the weights in a report.

    The head may be missing or have another number of classes; then the model keeps its own. Everything else must be
    there with its shape, and nothing unknown may be. The model is changed only if all of it is right.
    """
    path = Path(path)
    wanted, head = model.state_dict(), head_of(model) + "."
    data = _bytes(path, most=8 * sum(t.numel() for t in wanted.values()) + ROOM)
    found = _tensors(path, data)
    for name in sorted(wanted.keys() | found.keys()):
        _check(path, name, found.get(name), wanted.get(name), in_head=name.startswith(head))
    fitting = {n: t for n, t in found.items() if n in wanted and t.shape == wanted[n].shape}
    if not all(n in fitting for n in wanted if n.startswith(head)):
        fitting = {n: t for n, t in fitting.items() if not n.startswith(head)}  # both of weight and bias, or neither
    with torch.no_grad():
        for name, tensor in fitting.items():
            wanted[name].copy_(tensor)  # these are the model's own; half precision is widened
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def digest_of(path: Path) -> str:
    """The same digest, without a model."""
    try:
        _require_file(path)
        with files.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST:
                raise DataError(f"{path}: it has {size:,} bytes, more than weights may have ({MOST:,}).")
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
    except (OSError, ValueError) as exc:
        raise DataError(f"{path}: cannot be read ({exc}).") from exc


def _require_file(path: Path) -> None:
    if (path / "weights.safetensors").is_file():
        raise DataError(f"{path}: is a folder. Fix: {path / 'weights.safetensors'}.")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file. Fix: download the weights first; nothing is fetched here.")


def _bytes(path: Path, *, most: int) -> bytes:
    try:
        _require_file(path)
        return files.read(path, most=most)
    except (OSError, ValueError) as exc:
        raise DataError(f"{path}: cannot be read as weights of this model ({exc}).") from exc


def _tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    try:
        return read_safetensors(data)  # not torch.load: only numbers are read
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as exc:
        raise DataError(
            f"{path}: not a sound safetensors file ({exc}). Fix: download it again; a file of torch.save or pickle "
            "must be converted to safetensors by its owner."
        ) from exc


def _check(path: Path, name: str, found: Tensor | None, wanted: Tensor | None, *, in_head: bool) -> None:
    fix = "Fix: weights of the same architecture."
    if found is None:
        if not in_head:
            raise DataError(f"{path}: tensor {name!r} of the model is missing. {fix}")
        return
    if wanted is None:
        if name not in UNUSED:
            raise DataError(f"{path}: tensor {name!r} {tuple(found.shape)} is not in the model. {fix}")
        return
    if found.shape != wanted.shape and not (in_head and found.shape[1:] == wanted.shape[1:]):
        raise DataError(
            f"{path}: tensor {name!r} is {tuple(found.shape)}; in the model it is {tuple(wanted.shape)}. {fix}"
        )
    if found.dtype not in KINDS and found.dtype != wanted.dtype:
        raise DataError(f"{path}: tensor {name!r} is {found.dtype}; in the model it is {wanted.dtype}. {fix}")
    if not bool(torch.isfinite(found.to(wanted.dtype)).all()):
        raise DataError(f"{path}: tensor {name!r} has values that are not numbers. Fix: download the file again.")
