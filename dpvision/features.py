"""Features of a frozen part of a network, computed once for all records and kept beside the ledgers.

A frozen part with public weights is a public function of each image alone, so training on features is training on
images. The file is as private as the images themselves: it is readable by its owner only and never part of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision import atomic, distributed
from dpvision.data import Split
from dpvision.errors import DataError, UnsafeLayer
from dpvision.inputs import Inputs
from dpvision.models import Featured
from dpvision.privacy.ledger import home

AT_A_TIME = 256
Progress = Callable[[int, int], None]


def kept(parts: Featured, split: Split, *, of: tuple[str, ...], progress: Progress = lambda *_: None) -> NDArray[Any]:
    """(N, ...) float32, read from the disk where they were computed before; `of` names the records and the network."""
    path, team = file(of), distributed.team()
    if team.first and not path.exists():
        atomic.make_folder(path.parent)
        _compute(parts, split, path, progress)
    team.wait()
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as exc:
        raise DataError(f"{path}: can not be read as features ({exc}). Fix: remove the file.") from exc
    if found.dtype != np.float32 or len(found) != len(split):
        raise DataError(f"{path}: holds {found.dtype} {found.shape}, not features of this data. Fix: remove the file.")
    return found


def file(of: tuple[str, ...]) -> Path:
    return home() / "features" / f"{hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()}.npy"


def digest(parts: Featured) -> str:
    """Names the frozen part's weights and tables."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in (*parts.prefix.named_parameters(), *parts.prefix.named_buffers()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _compute(parts: Featured, split: Split, path: Path, progress: Progress) -> None:
    """Into a file beside it, which gets its name when it is whole.

    `Featured.features` gives an image the same bits whatever other images are there.
    """
    inputs, count = Inputs(split), len(split)
    shape = shape_of(parts, tuple(inputs(slice(0, 1)).shape[1:]))
    partial = path.with_suffix(f".{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.close(descriptor)
    try:
        out = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=(count, *shape))
        for start in range(0, count, AT_A_TIME):
            part = slice(start, min(start + AT_A_TIME, count))
            with torch.no_grad():
                out[part] = parts.features(inputs(part)).float().numpy()
            progress(part.stop, count)
        out.flush()
        del out
        os.rename(partial, path)
        atomic.sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def shape_of(parts: Featured, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(parts.features(torch.zeros(1, *shape)).shape[1:])


def require_separate(parts: Featured, shape: tuple[int, ...]) -> None:
    """By trial, on random images: an image's features are the same whatever other images are in the batch."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, *shape, generator=generator) * 2 - 1
    with torch.no_grad():
        together = parts.features(images)
        images[1] *= 1e3
        beside = parts.features(images)
    others = [0, 2, 3]
    if not torch.equal(together[others], beside[others]):
        raise UnsafeLayer("the frozen part of the model mixes the images of a batch, so nobody could be told apart.")
