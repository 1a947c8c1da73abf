"""Tensors in and out of sealed safetensors files; nothing here can run code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import Tensor

from dpvision.errors import DataError
from dpvision.storage import sealed


def dump(tensors: Mapping[str, Tensor], header: Mapping[str, str], sign: Callable[[str], str] | None = None) -> bytes:
    """The file's bytes."""
    plain = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    return sealed.seal(lambda metadata: write_safetensors(plain, metadata), header, sign)


def load(path: Path, like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors with exactly the names, shapes and kinds of `like`, and the header, from an unchanged file.

    `like` may be on torch's meta device: then nothing is allocated for a file that does not fit.
    """
    file = sealed.read(path)
    wanted = {name: tuple(tensor.shape) for name, tensor in like.items()}
    for name in sorted(wanted.keys() | file.shapes.keys()):
        if wanted.get(name) != file.shapes.get(name):
            has, asked = file.shapes.get(name, "missing"), wanted.get(name, "not in the model")
            raise DataError(f"{path}: tensor {name!r} is {has}; by the settings it is {asked}.")
    try:
        tensors = read_safetensors(file.data)  # not torch.load: only numbers are read
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as exc:
        raise DataError(f"{path}: not a sound safetensors file: {exc}.") from exc
    for name, tensor in like.items():
        if tensors[name].dtype != tensor.dtype:
            raise DataError(f"{path}: tensor {name!r} is {tensors[name].dtype}; by the settings it is {tensor.dtype}.")
    return tensors, file.header
