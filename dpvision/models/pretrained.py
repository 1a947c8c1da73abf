"""Public weights from a local safetensors file. Only numbers are read, and they are used only if every shape fits."""

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
from dpvision.models.featured import head_name

# Tensors in published files that were used only in pretraining.
UNUSED = {"mask_token"}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Allowance for a different head and the file's header.
EXTRA_BYTES = 256 << 20
# Limit if no model bounds the size of a file: two billion float32 weights.
MAX_BYTES = 8 << 30


def load_public(model: nn.Module, path: str | Path) -> str:
    """Load the weights in the file into the model and return the BLAKE2b digest of the file.

    The head may be missing or have another number of classes; then the model keeps its own. Every other tensor must be
    present with the right shape, and unknown tensors are refused. Other names of published files are translated by the
    model's `from_published`. The model is changed only if every check passes.
    """
    path = Path(path)
    wanted, head = model.state_dict(), head_name(model) + "."
    data = _read_bytes(path, most=8 * sum(t.numel() for t in wanted.values()) + EXTRA_BYTES)
    tensors = _parse(path, data)
    rename = getattr(model, "from_published", None)
    if rename is not None:
        tensors = rename(tensors)
    for name in sorted(wanted.keys() | tensors.keys()):
        _require_fitting(path, name, tensors.get(name), wanted.get(name), in_head=name.startswith(head))
    fitting = {n: t for n, t in tensors.items() if n in wanted and t.shape == wanted[n].shape}
    if not all(n in fitting for n in wanted if n.startswith(head)):
        fitting = {n: t for n, t in fitting.items() if not n.startswith(head)}  # use weight and bias, or neither
    with torch.no_grad():
        for name, tensor in fitting.items():
            wanted[name].copy_(tensor)  # state_dict shares the model's memory; half precision is converted
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def digest_file(path: Path) -> str:
    """Return the BLAKE2b digest of a weight file, as `load_public` does, without a model."""
    try:
        _require_file(path)
        with files.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise DataError(f"{path}: it has {size:,} bytes, but weights may have at most {MAX_BYTES:,}.")
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
    except (OSError, ValueError) as exc:
        raise DataError(f"{path}: cannot be read ({exc}).") from exc


def _require_file(path: Path) -> None:
    if (path / "weights.safetensors").is_file():
        raise DataError(f"{path}: is a folder. Fix: give {path / 'weights.safetensors'}.")
    if not path.is_file():
        raise DataError(
            f"{path}: there is no such file. Fix: use another path, or a name that `dpvision weights list` shows."
        )


def _read_bytes(path: Path, *, most: int) -> bytes:
    try:
        _require_file(path)
        return files.read(path, most=most)
    except (OSError, ValueError) as exc:
        raise DataError(f"{path}: cannot be read as weights of this model ({exc}).") from exc


def _parse(path: Path, data: bytes) -> dict[str, Tensor]:
    try:
        return read_safetensors(data)  # never torch.load, which unpickles
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as exc:
        raise DataError(
            f"{path}: is not a valid safetensors file ({exc}). Fix: download it again; a file written by torch.save or "
            "pickle must be converted to safetensors by its owner."
        ) from exc


def _require_fitting(path: Path, name: str, tensor: Tensor | None, wanted: Tensor | None, *, in_head: bool) -> None:
    fix = "Fix: use weights of the same architecture."
    if tensor is None:
        if not in_head:
            raise DataError(f"{path}: tensor {name!r} of the model is missing. {fix}")
        return
    if wanted is None:
        if name not in UNUSED:
            raise DataError(f"{path}: tensor {name!r} {tuple(tensor.shape)} is not in the model. {fix}")
        return
    if tensor.shape != wanted.shape and not (in_head and tensor.shape[1:] == wanted.shape[1:]):
        raise DataError(
            f"{path}: tensor {name!r} is {tuple(tensor.shape)}; in the model it is {tuple(wanted.shape)}. {fix}"
        )
    if tensor.dtype not in FLOATS and tensor.dtype != wanted.dtype:
        raise DataError(f"{path}: tensor {name!r} is {tensor.dtype}; in the model it is {wanted.dtype}. {fix}")
    if not bool(torch.isfinite(tensor.to(wanted.dtype)).all()):
        raise DataError(f"{path}: tensor {name!r} has values that are not finite. Fix: download the file again.")
